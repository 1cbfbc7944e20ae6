"""Which models a run trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.config import compose, load_run
from lightkit.ensemble.methods.base import MemberResult, OneModel, RunMember
from lightkit.runner import Runner
from lightkit.runs.catalog import all_runs
from tests.runner.test_run import QUICK, comparable, weights

MEMBERS = {"00-a": {"seed": 3, "optim.lr": 0.02}, "01-b": {"seed": 4, "model.hidden": [4]}}
OPTIONS = [*QUICK, "checkpoint.every_steps=2", "model.dropout=0.3", "data.augment=[]"]


class TwoModels:
    """Trains two models that differ in seed and something else."""

    def __init__(self, more: dict[str, Any] | None = None) -> None:
        self.asked: list[list[str]] = []
        self.more = more or {}

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        self.asked.append([result.member.name for result in done])
        left = [*MEMBERS.items()][len(done) :]
        return [RunMember(left[0][0], {**left[0][1], **self.more})] if left else []

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        values = {result.member.name: result.result["objective"]["value"] for result in done}
        return {"status": "finished", "members": values}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one model each, with what the members of the plan differ in."""
    folder = tmp_path_factory.mktemp("alone")
    for name, values in MEMBERS.items():
        Runner(compose([*OPTIONS, *(f"{key}={value}" for key, value in values.items())]).cfg, folder / name).run()
    return folder


def assert_equal_runs(one: Path, other: Path) -> None:
    assert comparable(one) == comparable(other)
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


def test_a_plain_run_is_a_plan_of_one(tmp_path: Path) -> None:
    asked: list[int] = []

    class Noted(OneModel):
        def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
            asked.append(len(done))
            return super().next(done)

    cfg = compose(["data=wine", "model.hidden=[8]", "trainer.steps=2", "device=cpu", "metrics.figures=[]"]).cfg
    result = Runner(cfg, tmp_path / "run", plan=Noted()).run()
    assert (result["status"], asked) == ("finished", [0, 1])
    assert not (tmp_path / "run" / "members").exists()


def test_every_member_is_the_run_it_would_be_alone(alone: Path, tmp_path: Path) -> None:
    plan, folder = TwoModels(), tmp_path / "outputs" / "runs" / "two"
    result = Runner(compose(OPTIONS).cfg, folder, plan=plan).run()
    assert plan.asked == [[], ["00-a"], ["00-a", "01-b"]]
    assert result == json.loads((folder / "result.json").read_text())
    assert {*result["members"]} == {*MEMBERS}
    for name, values in MEMBERS.items():
        member = folder / "members" / name
        assert_equal_runs(member, alone / name)
        assert load_run(member).cfg.seed == values["seed"]
        assert json.loads((member / "result.json").read_text())["status"] == "finished"
    assert {path.name for path in folder.iterdir()} >= {"config.yaml", "environment.json", "run.log", "result.json"}
    assert all_runs(tmp_path) == [folder]
    assert Runner(load_run(folder / "members" / "01-b").cfg, folder / "members" / "01-b").evaluate()["test/loss"] > 0


@pytest.mark.thorough(first=0)
def test_a_killed_run_goes_on_with_the_member_it_was_at(alone: Path, tmp_path: Path) -> None:
    class Killed(TwoModels):
        def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
            members = super().next(done)
            kill = {"trainer.callbacks.kill": {"_target_": "tests.runner.test_run.KillAt", "step": 8}}
            return [RunMember(member.name, {**member.values, **kill}) for member in members] if done else members

    folder = tmp_path / "two"
    with pytest.raises(RuntimeError, match="killed"):
        Runner(compose(OPTIONS).cfg, folder, plan=Killed()).run()
    assert json.loads((folder / "result.json").read_text())["status"] == "failed"
    first = folder / "members" / "00-a"
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    Runner(load_run(folder).cfg, folder, plan=TwoModels()).run(resume=True)
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    for name in MEMBERS:
        assert_equal_runs(folder / "members" / name, alone / name)
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
