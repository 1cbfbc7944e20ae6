"""Gradient boosting: rounds that learn what the sum before them leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightkit.config import load_run
from lightkit.ensemble.methods import GradientBoosting
from lightkit.ensemble.methods.base import member
from lightkit.ensemble.plan import MemberResult
from lightkit.runner import Runner
from tests.ensemble.methods.running import done, facts, predictions, result, role, stored, train

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
        (found,) = done(coming, values=(other if last else one,))
        ended.append(replace(found, result={**found.result, "metrics": {"val/loss": one if last else other}}))
    assert list(method.next(of_run, ended)) == []
    assert [one.member.name for one in method.counted(ended)] == ["00-round", "01-round"]


def test_without_validation_all_rounds_are_trained_and_count() -> None:
    method = GradientBoosting(size=4)
    ended = done(*(member(facts(), number, "round", adds_to=[]) for number in range(3)), values=(None, None, None))
    assert len(method.next(facts(), ended)) == 1
    assert len(method.counted(ended)) == 3


def test_the_sum_of_the_rounds_is_the_ensemble(tmp_path: Path) -> None:
    found = train(tmp_path / "run", "ensemble=gradient_boosting", *TWO)
    kept = stored(tmp_path / "run")
    assert kept.rule == "sum"
    assert [one.weight for one in kept.members] == [0.5, 0.5]
    assert found["metrics"]["val/loss"] == pytest.approx(result(tmp_path / "run", "01-round")["best"]["val/loss"])
    last = predictions(tmp_path / "run" / "members" / "01-round", 1)
    assert torch.equal(predictions(tmp_path / "run", 1), last)
    again = Runner(load_run(tmp_path / "run").cfg, tmp_path / "run").evaluate("val")
    assert again["val/loss"] == pytest.approx(found["metrics"]["val/loss"], abs=1e-6)


def test_rounds_end_where_validation_does_by_default(tmp_path: Path) -> None:
    options = ("data=diabetes", "model.hidden=[64]", "model.norm=none", "trainer.epochs=6", "trainer.test=last")
    found = train(tmp_path, *options, "ensemble=gradient_boosting")
    rounds = sorted(path.name for path in (tmp_path / "members").iterdir())
    values = [result(tmp_path, name)["metrics"]["val/loss"] for name in rounds]
    best = values.index(min(values))
    assert len(rounds) == min(best + 3, 5)
    assert [one.name for one in stored(tmp_path).members] == rounds[: best + 1]
    assert found["metrics"]["val/loss"] == pytest.approx(values[best], rel=1e-5)
