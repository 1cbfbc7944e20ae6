"""What all methods have in common."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.randomness import mix
from lightkit.config import compose, load_run
from lightkit.ensemble.combining import weigh
from lightkit.ensemble.methods import (
    Adversarial,
    Bagging,
    FastGeometric,
    Fusion,
    GradientBoosting,
    Greedy,
    Method,
    Snapshot,
    SoftGradientBoosting,
    Voting,
)
from lightkit.ensemble.methods.base import MemberResult, member
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from tests.ensemble.methods.running import QUICK, done, facts, predictions, rates, result, role, saved, stored, train


def test_a_member_has_a_folder_a_seed_and_a_role() -> None:
    made = member(facts(), 3, "fold1", {"optim.lr": 1}, rows="folds")
    assert made.name == "03-fold1"
    assert made.values["seed"] == mix(3, "member", 3) % 2**31
    assert made.values["optim.lr"] == 1
    assert made.values["ensemble"]["member"] == {"rows": "folds"}
    assert member(facts(), 3, values={"seed": 5}).values["seed"] == 5


@pytest.mark.parametrize(
    ("method", "known", "message"),
    [
        (Voting(), {"task": "language_modeling"}, "not defined for language_modeling targets"),
        (SoftGradientBoosting(), {"task": "multilabel"}, "not defined for multilabel targets"),
        (Fusion(), {"members": [("mlp", {})]}, "all members of this method are alike"),
        (Greedy(), {"validated": False}, "there is no validation split"),
        (Snapshot(size=4), {}, r"trainer\.epochs: the cycles do not divide"),
        *(
            (Adversarial(), {"inputs": inputs}, r"data\.normalize: adversarial training needs inputs in \[0, 1\]")
            for inputs in ((-0.1, 1.0), (0.0, 1.1), None)
        ),
    ],
)
def test_what_a_method_is_not_for_is_refused(method: Method, known: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        method.check(facts(**known))
    fitting = {"inputs": (0.0, 1.0)} | ({"epochs": 8} if "epochs" in message else {})
    method.check(facts(**fitting))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Voting(size=0), "an ensemble needs a member"),
        (lambda: Voting(slots=0), "no process is left"),
        (lambda: FastGeometric(low=0.5, high=0.5), "a smaller and a larger rate"),
    ],
)
def test_arguments_out_of_their_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_members_have_seeds_of_their_own_and_all_rows() -> None:
    members = Voting(size=3).next(facts(), [])
    assert [member.name for member in members] == ["00", "01", "02"]
    seeds = [member.values["seed"] for member in members]
    assert len({*seeds, 3}) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert [role(member) for member in members] == [{}] * 3
    assert seeds[:2] == [member.values["seed"] for member in Voting(size=2).next(facts(), [])], "a larger one grows"
    assert seeds != [member.values["seed"] for member in Voting(size=3).next(facts(seed=4), [])]


def test_unlike_members_are_taken_once_or_so_often_as_size_says() -> None:
    unlike = facts(members=[("mlp", {"optim.lr": 0.1}), ("wide", {"seed": 7})])
    names = [member.name for member in Voting().next(unlike, [])]
    assert names == ["00-mlp", "01-wide"]
    twice = Voting(size=2).next(unlike, [])
    assert [member.name for member in twice] == ["00-mlp", "01-wide", "02-mlp", "03-wide"]
    assert twice[0].values["optim.lr"] == 0.1
    assert twice[1].values["seed"] == 7


REFUSED = """
ensemble=voting ensemble.size=0 ; ensemble.size: out of range
ensemble=voting checkpoint=none ; checkpoint.enabled: an ensemble is made of the checkpoints
ensemble=voting ensemble.member.rows=bootstrap ; ensemble.member.rows: the method
ensemble=bagging ensemble.resample=folds ensemble.size=5 ; ensemble.size: the folds are the members
ensemble=bagging data.split.by=ordered ; ensemble.resample: a random draw
ensemble=bagging ensemble.resample=folds ensemble.folds=1 ; ensemble.folds: out of range
ensemble=snapshot ensemble.size=5 trainer.epochs=7 ; trainer.epochs: the cycles
ensemble=snapshot ensemble.size=2 trainer.steps=4 ; trainer.steps: the cycles
ensemble=fast_geometric ensemble.low=0.9 ; ensemble.low: a cycle needs a smaller and a larger rate
"""
LATER = """
ensemble=voting ensemble.vote=hard data=diabetes ; ensemble.vote: numbers cannot be voted for
ensemble=bagging ensemble.resample=folds ensemble.folds=500 ; ensemble.folds: there are fewer rows than folds
ensemble=adversarial ; from -
"""


def test_what_the_configuration_or_the_data_show_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for typed, message in (line.split(" ; ") for line in REFUSED.strip().splitlines()):
        with pytest.raises(UserErrors, match=re.escape(message)):
            compose([*QUICK, *typed.split()])
    for typed, message in (line.split(" ; ") for line in LATER.strip().splitlines()):
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            train(tmp_path / "run", *typed.split())
        assert caught.value.exit_code == 2
        assert not (tmp_path / "run").exists()


def test_weights_are_shares_of_the_selections(tmp_path: Path) -> None:
    assert Greedy(size=2).next(facts(), []) == Voting(size=2).next(facts(), [])
    train(tmp_path / "run", "ensemble=greedy", "ensemble.size=3", "ensemble.rounds=4")
    shares = [member.weight for member in stored(tmp_path / "run").members]
    assert sum(shares) == pytest.approx(1)
    folders = [tmp_path / "run" / "members" / name / "oof.safetensors" for name in ("00", "01", "02")]
    own = [MemberPredictions.read(path) for path in folders]
    assert weigh(own, "multiclass", how="greedy", rounds=4).tolist() == shares


def test_each_member_has_a_draw_of_its_own() -> None:
    members = Bagging(size=3).next(facts(), [])
    assert [role(member) for member in members] == [
        {"rows": "bootstrap", "draw": 3, "index": index} for index in range(3)
    ]


def test_folds_are_the_members_and_repeats_come_last() -> None:
    once, twice = (Bagging(resample="folds", folds=3, repeats=n).next(facts(), []) for n in (1, 2))
    names = "00-fold0 01-fold1 02-fold2 03-r1-fold0 04-r1-fold1 05-r1-fold2"
    assert [member.name for member in twice] == names.split()
    assert [member.values for member in twice[:3]] == [member.values for member in once], "a finished bag grows"
    assert role(twice[4]) == {"rows": "folds", "draw": 3, "folds": 3, "fold": 1, "repeat": 1}


def test_folds_predict_every_training_row_once(tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", "ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2")
    kept = load_file(tmp_path / "run" / "oof.safetensors")
    inner = kept["split"] == 0
    assert (kept["counts"][inner] == 1).all()
    assert (kept["counts"][~inner] == 2).all()
    assert "oof/accuracy" in outcome["metrics"]
    parts = [load_file(tmp_path / "run" / "members" / name / "oof.safetensors") for name in ("00-fold0", "01-fold1")]
    rows = [part["rows"][part["split"] == 0] for part in parts]
    assert torch.equal(torch.cat(rows).sort().values, kept["rows"][inner])
    first = parts[0]["predictions"][parts[0]["split"] == 0]
    torch.testing.assert_close(kept["predictions"][inner][torch.isin(kept["rows"][inner], rows[0])], first)
    both = [predictions(tmp_path / "run" / "members" / name, 1) for name in ("00-fold0", "01-fold1")]
    torch.testing.assert_close(predictions(tmp_path / "run", 1), (both[0] + both[1]) / 2)


def test_every_member_has_the_size_of_the_change() -> None:
    members = Adversarial(size=2, epsilon=0.1).next(facts(), [])
    assert [role(member) for member in members] == [{"epsilon": 0.1}] * 2


TWO = ("ensemble.size=2", "ensemble.shrinkage=0.5", "ensemble.patience=null")


def test_a_round_adds_to_all_rounds_before() -> None:
    method = GradientBoosting(size=3, shrinkage=0.5)
    (first,) = method.next(facts(), [])
    assert first.name == "00-round"
    assert role(first) == {"adds_to": [], "shrinkage": 0.5}
    (second,) = method.next(facts(), done(first))
    assert role(second)["adds_to"] == ["00-round"]
    (third,) = method.next(facts(), done(first, second))
    assert role(third)["adds_to"] == ["00-round", "01-round"]
    assert list(method.next(facts(), done(first, second, third))) == []


def test_patience_ends_with_the_best_round() -> None:
    method = GradientBoosting(size=9, patience=2)
    members = [member(facts(), number, "round", adds_to=[]) for number in range(3)]
    ended = done(*members, values=(0.5, 0.6, 0.7))
    assert list(method.next(facts(), ended)) == []
    assert [one.member.name for one in method.counted(ended)] == ["00-round"]
    assert len(list(method.next(facts(), done(*members, values=(0.5, 0.4, 0.7))))) == 1
    assert len(GradientBoosting(size=9).counted(ended)) == 1
    assert len(GradientBoosting(size=9, patience=None).counted(ended)) == 3


@pytest.mark.parametrize("last", [True, False])
def test_rounds_are_judged_by_the_weights_that_count(last: bool) -> None:
    method, of_run, ended = GradientBoosting(size=9), facts(last=last), list[MemberResult]()
    for one, other in ((0.5, 0.3), (0.4, 0.2), (0.6, 0.1), (0.7, 0.05)):  # the value that counts, and the other
        (coming,) = method.next(of_run, ended)
        (round,) = done(coming, values=(other if last else one,))
        ended.append(replace(round, result={**round.result, "metrics": {"val/loss": one if last else other}}))
    assert list(method.next(of_run, ended)) == []
    assert [one.member.name for one in method.counted(ended)] == ["00-round", "01-round"]


def test_without_validation_all_rounds_are_trained_and_count() -> None:
    method = GradientBoosting(size=4)
    ended = done(*(member(facts(), number, "round", adds_to=[]) for number in range(3)), values=(None, None, None))
    assert len(method.next(facts(), ended)) == 1
    assert len(method.counted(ended)) == 3


def test_the_sum_of_the_rounds_is_the_ensemble(tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", "ensemble=gradient_boosting", *TWO)
    kept = stored(tmp_path / "run")
    assert kept.rule == "sum"
    assert [one.weight for one in kept.members] == [0.5, 0.5]
    loss = outcome["metrics"]["val/loss"]
    assert loss == pytest.approx(result(tmp_path / "run", "01-round")["best"]["val/loss"])
    last = predictions(tmp_path / "run" / "members" / "01-round", 1)
    assert torch.equal(predictions(tmp_path / "run", 1), last)
    again = Runner(load_run(tmp_path / "run").cfg, tmp_path / "run").evaluate("val")
    assert again["val/loss"] == pytest.approx(loss, abs=1e-6)
    assert sum("val/loss" in row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")) == 1, "no curve over epochs"


def test_each_cycle_goes_on_from_the_last_weights() -> None:
    method = Snapshot(size=3)
    (first,) = method.next(facts(), [])
    assert first.values["trainer.epochs"] == 2
    assert role(first)["weights_of"] is None
    (second,) = method.next(facts(), done(first))
    assert role(second)["weights_of"] == "00-cycle"
    assert second.values["trainer.test"] == "last"


def test_the_rate_starts_anew_in_each_cycle(tmp_path: Path) -> None:
    train(tmp_path / "run", "ensemble=snapshot", "ensemble.size=2", "trainer.epochs=4")
    for name in ("00-cycle", "01-cycle"):
        assert saved(tmp_path / "run", name)["trainer"]["epochs"] == 2
        taken = rates(tmp_path / "run", name)
        expected = [0.01 * (math.cos(math.pi * step / len(taken)) + 1) / 2 for step in range(len(taken))]
        assert taken == pytest.approx(expected, rel=0.05, abs=2e-3)
        assert taken[0] == pytest.approx(0.01)
    assert sum("val/loss" in row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")) == 1, "no curve over epochs"


def test_the_first_run_is_no_part_of_the_ensemble() -> None:
    method = FastGeometric(size=2, cycle_epochs=3)
    (start,) = method.next(facts(), [])
    (first,) = method.next(facts(), done(start))
    (second,) = method.next(facts(), done(start, first))
    assert [role(one).get("weights_of") for one in (start, first, second)] == [None, "00-start", "01-cycle"]
    assert first.values["trainer.epochs"] == 3
    assert list(method.next(facts(), done(start, first, second))) == []
    assert [one.member.name for one in method.counted(done(start, first, second))] == ["01-cycle", "02-cycle"]


@pytest.mark.thorough(first=0)
def test_the_rate_of_a_cycle_is_a_triangle(tmp_path: Path) -> None:
    high, low = 0.5, 0.01
    more = [f"ensemble.high={high}", f"ensemble.low={low}", "ensemble.size=1", "ensemble.cycle_epochs=2"]
    train(tmp_path / "run", "ensemble=fast_geometric", *more)
    assert [member.name for member in stored(tmp_path / "run").members] == ["01-cycle"]
    taken = rates(tmp_path / "run", "01-cycle")
    last = len(taken) - 1
    expected = [0.01 * (low + (high - low) * (1 - abs(2 * step / last - 1))) for step in range(len(taken))]
    assert taken == pytest.approx(expected)


@pytest.mark.thorough(first=0)
def test_one_member_holds_all_networks_and_they_count_as_one(tmp_path: Path) -> None:
    (fused,) = Fusion(size=4).next(facts(), [])
    assert role(fused) == {"joint": "fusion", "networks": 4}
    (boosted,) = SoftGradientBoosting(size=3, shrinkage=0.2).next(facts(), [])
    assert role(boosted) == {"joint": "soft_gradient_boosting", "networks": 3, "shrinkage": 0.2}
    for method in ("fusion", "soft_gradient_boosting"):
        outcome = train(tmp_path / method, f"ensemble={method}", "ensemble.size=2")
        (member,) = stored(tmp_path / method).members
        assert {name.split(".")[1] for name in member.state} == {"0", "1"}
        first, second = (member.state[f"estimators.{number}.head.weight"] for number in (0, 1))
        assert not torch.equal(first, second)
        own = result(tmp_path / method, f"00-{method}")
        assert outcome["metrics"]["val/loss"] == pytest.approx(own["best"]["val/loss"], abs=1e-5)
