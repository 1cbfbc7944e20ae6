"""Which members a stack trains, in which order, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.ensemble.methods import RunFacts, Stacking
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.ensemble.methods.stacking import Base
from tests.ensemble.methods.running import role

KINDS = [("a", {"model.hidden": [4]}), ("b", {"model.hidden": [8]})]


def facts(rows: int = 90, **more: Any) -> RunFacts:
    return RunFacts(task="regression", seed=3, epochs=20, rows=torch.arange(rows), **more)


def trained(member: RunMember, *, best: int = 10, steps: int = 40, epochs: int = 20) -> MemberResult:
    result = {"objective": {"step": best}, "steps": steps, "epochs": epochs}
    return MemberResult(member, Path(member.name), result)


def stages(method: Stacking, known: RunFacts) -> tuple[list[list[RunMember]], list[MemberResult]]:
    found: list[list[RunMember]] = []
    done: list[MemberResult] = []
    while members := method.next(known, done):
        found.append([*members])
        done += [trained(member) for member in members]
    return found, done


def test_folds_come_first_then_a_network_of_all_rows_and_the_meta_model() -> None:
    method, known = Stacking(folds=2), facts(members=KINDS, meta={"optim.lr": 0.5})
    (folds, refits, meta), done = stages(method, known)
    assert [one.name for one in folds] == ["00-a-fold0", "01-a-fold1", "02-b-fold0", "03-b-fold1"]
    assert [one.name for one in refits] == ["04-a-refit", "05-b-refit"]
    assert [one.name for one in meta] == ["06-meta"]
    assert {role(one)["holdout"] for one in folds} == {1 / 9}
    assert "holdout" not in role(refits[0])
    assert refits[1].values["model.hidden"] == [8]
    own = role(meta[0])
    assert own["features"] == [["00-a-fold0", "01-a-fold1"], ["02-b-fold0", "03-b-fold1"]]
    assert (own["refits"], own["passthrough"]) == (["04-a-refit", "05-b-refit"], False)
    assert meta[0].values["optim.lr"] == 0.5
    assert method.bases(known, done)[0] == Base(("00-a-fold0", "01-a-fold1"), "04-a-refit")


def test_a_network_of_all_rows_trains_for_the_epochs_that_the_folds_found() -> None:
    method, known = Stacking(folds=2, size=1), facts()
    folds = method.next(known, [])
    done = [trained(folds[0], best=8), trained(folds[1], best=19)]  # of two steps an epoch: 4 and 10 epochs
    (refit,) = method.next(known, done)
    assert refit.values["trainer.epochs"] == 7
    assert refit.values["trainer.test"] == "last"
    counted = RunFacts(task="regression", seed=3, epochs=None, rows=torch.arange(90))
    (refit,) = method.next(counted, done)
    assert refit.values["trainer.steps"] == 14


def test_copies_and_repeats() -> None:
    method = Stacking(folds=2, repeats=2, refit=False)
    (folds, meta), _ = stages(method, facts())
    assert len(folds) == 3 * 2 * 2
    assert role(meta[0])["features"][0] == ["00-fold0", "01-fold1", "06-r1-fold0", "07-r1-fold1"]
    assert role(meta[0])["refits"] == []
    assert len({one.values["seed"] for one in folds}) == len(folds)


def test_a_further_layer_learns_from_the_one_before() -> None:
    method = Stacking(folds=2, layers=2, size=1)
    (_, refits, second, last, meta), done = stages(method, facts(anew={"finetune": {}}))
    assert [one.name for one in second] == ["03-layer2-fold0", "04-layer2-fold1"]
    own = role(second[0])
    assert (own["features"], own["refits"]) == ([["00-fold0", "01-fold1"]], [refits[0].name])
    assert own["passthrough"]
    assert role(last[0])["features"] == own["features"]
    assert role(meta[0])["features"] == [["03-layer2-fold0", "04-layer2-fold1"]]
    assert "finetune" not in refits[0].values
    assert [one.values["finetune"] for one in (second[0], last[0], meta[0])] == [{}] * 3
    assert len(method.bases(facts(), done)) == 2


def test_the_rows_that_decide_share_no_group_with_those_that_are_learnt_from() -> None:
    groups = torch.arange(90) // 4
    learnt, held = Stacking(folds=2).rows(facts(groups=groups))
    assert 0 < len(held) < len(learnt)
    assert not torch.isin(groups[held], groups[learnt]).any()
    folds = Stacking(folds=2).next(facts(groups=groups), [])
    assert {role(one)["draw"] for one in folds} == {3}


def test_a_weight_decay_left_open_goes_by_the_rows() -> None:
    meta = {"optim": {"_target_": "torch.optim.Adam"}}
    (_, (member,)), _ = stages(Stacking(folds=2, refit=False, holdout=0), facts(meta=meta))
    assert member.values["optim"]["weight_decay"] == 1 / 90


@pytest.mark.parametrize(
    ("options", "rows", "told"),
    [
        ({"folds": 1}, 90, "too few folds to learn from what they predict"),
        ({"layers": 0}, 90, "a stack needs a layer"),
        ({"size": 0}, 90, "an ensemble needs a member"),
        ({"holdout": 0.6}, 90, "not a share of the training rows that can be held out"),
        ({"folds": 5}, 4, "no part of 1/9 of the training rows can be held out: there are fewer rows than folds"),
        ({"folds": 5, "holdout": 0}, 4, "there are fewer rows than folds"),
        ({"folds": 2}, 12, "too few rows are held out to judge a stack by"),
    ],
)
def test_what_cannot_be_stacked_is_refused(options: dict[str, Any], rows: int, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Stacking(**options).check(facts(rows))
