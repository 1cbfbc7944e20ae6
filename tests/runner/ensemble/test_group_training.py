"""Members that train at once leave ordinary run folders, whatever happens in between."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit.runner.ensemble.group_training as subject
from lightkit.assembly import build_shared
from lightkit.common.errors import UserError
from lightkit.config import compose, from_yaml, load_run
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.loggers.events import read_events
from lightkit.runner import Runner
from lightkit.runner.ensemble.engines import train_at_once
from lightkit.runner.session import session
from lightkit.runs.reading import read_config, read_jsonl, read_result
from lightkit.trainer.interrupt import Interrupted
from tests.conftest import Outcome
from tests.runner.test_run import comparable, weights

QUICK = [
    *["data=wine", "trainer.epochs=3", "data.batch_size=16", "model.hidden=[8]", "model.dropout=0.2"],
    *["logger=quiet", "logger.every_steps=2", "device=cpu", "metrics.figures=[]", "logger.system.enabled=false"],
]
EMA = "trainer.ema.decay=0.9"
MEMBERS = [RunMember(f"{number:02d}", {"seed": number + 7}) for number in range(3)]


def train(
    folder: Path,
    *overrides: str,
    members: Sequence[RunMember] = MEMBERS,
    engine: str = "vectorized",
    resume: bool = False,
) -> list[MemberResult]:
    cfg = compose([*QUICK, *overrides]).cfg
    with session(cfg, folder, overrides=list(overrides), resume=resume) as run:
        shared = build_shared(run.cfg, folder, ranks=run.ranks, pretrained=run.fresh)
        alone = Runner(cfg, folder).train_member
        if engine == "sequential":
            done = [run.finished(member) or alone(run, member, shared) for member in members]
        else:
            finished = {member.name: known for member in members if (known := run.finished(member))}
            done = train_at_once(run, members, shared, alone, engine=engine, finished=finished)
        run.finish({"status": "finished"}, done)
        return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[MemberResult]:
    """What is left where nothing happens in between."""
    return train(tmp_path_factory.mktemp("whole") / "run", EMA)


def names(folder: Path) -> set[str]:
    return {path.name.partition(".out.")[0] for path in folder.rglob("*")} - {".lock"}


def tags(folder: Path) -> set[tuple[int, str]]:
    events = [event for file in folder.glob("events.*") for _, _, event in read_events(file)]
    return {(event.step, value.tag) for event in events for value in event.summary.value}


def test_the_folders_are_those_of_members_trained_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, list[float]] = {}

    def update(self: Any, name: str, **facts: Any) -> None:
        if "value" in facts:
            shown.setdefault(name, []).append(facts["value"])

    options = ["logger.tensorboard.enabled=true", "metrics.figures=[confusion_matrix]", "checkpoint.export=weights"]
    with monkeypatch.context() as patch:
        patch.setattr("lightkit.loggers.members.MembersTable.update", update)
        together = train(tmp_path / "a", *options)
    assert {name: max(values) for name, values in shown.items()} == pytest.approx(
        {result.member.name: result.result["objective"]["value"] for result in together}
    )
    assert len({result.result["seconds"] for result in together}) == 1
    for one, other in zip(together, train(tmp_path / "b", *options, engine="sequential")):
        assert {"weights.pt", "figures"} <= names(one.folder)
        assert names(other.folder) - names(one.folder) <= {"step-00000016.pt"}
        for name in ("config.yaml", "overrides.yaml"):
            assert (one.folder / name).read_text() == (other.folder / name).read_text()
        mine, theirs = (json.loads((done.folder / "environment.json").read_text()) for done in (one, other))
        assert {**mine, "time": 0} == {**theirs, "time": 0}
        rows = [read_jsonl(done.folder / "metrics.jsonl") for done in (one, other)]
        assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
        assert [{*row} for row in rows[0]] == [{*row} for row in rows[1]]
        for name, tensor in weights(other.folder).items():
            torch.testing.assert_close(weights(one.folder)[name], tensor, atol=1e-5, rtol=0)
        assert one.result.keys() == other.result.keys()
        assert one.result["test"] == pytest.approx(other.result["test"], abs=1e-4)
        assert tags(one.folder) == tags(other.folder)
        weighed = max(path.stat().st_mtime_ns for path in one.folder.glob("checkpoints/*.pt"))
        assert (one.folder / "oof.safetensors").stat().st_mtime_ns >= weighed  # or it passes for outdated
    assert not (tmp_path / "a" / "together").exists()
    folder = together[1].folder
    values = Runner(load_run(folder).cfg, folder).evaluate("test")
    assert values == pytest.approx(together[1].result["test"], abs=1e-6)
    Runner(load_run(folder, ["trainer.epochs=4"]).cfg, folder).run(resume=True)
    assert max(row["step"] for row in read_jsonl(folder / "metrics.jsonl")) == 4 * 8


class Killed(Exception):
    """Ends the process, as far as a test can."""


def same_bits(one: MemberResult, other: MemberResult) -> None:
    first, second = weights(one.folder), weights(other.folder)
    assert all(tensor.equal(second[name]) for name, tensor in first.items())
    assert comparable(one.folder) == comparable(other.folder)


TIED = {"model": {"_target_": "tests.ensemble.networks.Tied"}}


@pytest.mark.parametrize(
    ("step", "model"), [(13, TIED), *(pytest.param(step, {}, marks=pytest.mark.thorough) for step in (5, 20))]
)
def test_a_killed_run_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, model: dict[str, Any], whole: list[MemberResult]
) -> None:
    def check(self: Any) -> None:
        if self.state.step == step:
            raise Killed

    monkeypatch.setattr(subject, "SECONDS_BETWEEN_SAVES", 0.0)
    members = [RunMember(member.name, {**member.values, **model}) for member in MEMBERS[: 2 if model else 3]]
    expected = train(tmp_path / "whole", EMA, members=members) if model else whole
    with monkeypatch.context() as patch:
        patch.setattr(subject.VectorTrainer, "_check_step", check)
        with pytest.raises(Killed):
            train(tmp_path / "run", EMA, members=members)
    for one, other in zip(expected, train(tmp_path / "run", EMA, members=members, resume=True)):
        same_bits(one, other)


@pytest.mark.thorough(first=0)
def test_a_signal_ends_the_run_with_everything_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[MemberResult]
) -> None:
    def asked(self: Any) -> None:
        self._interrupt.number = signal.SIGTERM if self.state.step == 11 else 0

    with monkeypatch.context() as patch:
        patch.setattr(subject.VectorTrainer, "_check_step", asked)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", EMA)
    assert list((tmp_path / "run" / "together" / "00").glob("step-*.pt"))
    for one, other in zip(whole, train(tmp_path / "run", EMA, resume=True)):
        same_bits(one, other)


@pytest.mark.thorough(first=0)
def test_members_that_were_written_before_a_kill_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[MemberResult]
) -> None:
    finish = subject.MemberFiles.finish

    def one_only(self: Any, member: RunMember, *args: Any, **facts: Any) -> Any:
        if member.name == "01":
            raise Killed
        return finish(self, member, *args, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(subject.MemberFiles, "finish", one_only)
        with pytest.raises(Killed):
            train(tmp_path / "run", EMA)
    written = tmp_path / "run" / "members" / "00" / "result.json"
    before = written.stat().st_mtime_ns
    resumed = train(tmp_path / "run", EMA, resume=True)
    assert written.stat().st_mtime_ns == before
    for one, other in zip(whole, resumed):
        same_bits(one, other)


def test_a_member_whose_loss_is_not_finite_is_trained_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = subject.VectorTrainer._settle

    def spoilt(self: Any) -> None:
        if self.state.epoch == 2:
            next(iter(self.stack.model.parameters())).data[1] = float("nan")
        settle(self)

    monkeypatch.setattr(subject.VectorTrainer, "_settle", spoilt)
    done = train(tmp_path / "run")
    assert all(result.result["status"] == "finished" for result in done)
    assert "others at once" not in (done[1].folder / "run.log").read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "members").mkdir(parents=True)
    (tmp_path / "run" / "members" / "00").write_text("")
    with pytest.raises(UserError, match="this is no folder"):
        train(tmp_path / "run")


@pytest.mark.thorough(first=0)
def test_members_train_at_once_as_far_as_they_are_alike(cli: Callable[..., Outcome]) -> None:
    kinds = (
        "[{name: a, seed: 4, optim.lr: 1e-5}, {name: b, seed: 5, optim.lr: 0.01}, {name: c, seed: 6, optim.lr: 0.02}"
    )
    kinds += ", {name: d, seed: 7, optim.lr: 0.01, model: soft_tree}]"
    args = [*QUICK, "trainer.epochs=1", "logger.console.style=lines", "ensemble=voting", "ensemble.engine=vectorized"]
    outcome = cli("train", *args, f"ensemble.members={kinds}")
    assert outcome.code == 0, outcome.err
    printed = outcome.out.replace("\n", " ")
    assert "3 members train at once" in printed
    assert "one after the other trains 03-d: no other member has the same model" in printed
    assert "same name" not in printed
    (run,) = Path("outputs/runs").glob("*/*")
    for member in (run / "members").iterdir():
        assert read_result(member)["name"] == from_yaml(read_config(member))["name"]
    kept = [from_yaml(read_config(member))["optim"]["lr"] for member in sorted((run / "members").iterdir())]
    assert kept == [1e-5, 0.01, 0.02, 0.01]


ALONE = """
{"optim.betas": [0.8, 0.9]} | {"optim.betas": [0.9, 0.9]} ; 00, 01: no other member has the same optim.betas
{"model.hidden": [3]} | {"model.hidden": [4]} ; one after the other trains 00, 01: no other member has the same model
{} | {"seed": 5} ; 00, 01: seed is not given for each member
{"seed": 5} ; one after the other trains 00: no other member is left
{"seed": 4, "finetune": {"freeze": ["*0*"]}} | {"seed": 5, "finetune": {"freeze": ["*0*"]}} ; the members are fine-tuned
{"ensemble": {"member": {"weights_of": "x"}}} | {"ensemble": {"member": {"weights_of": "x"}}} ; weights of another
{"ensemble": {"member": {"adds_to": []}}} | {"ensemble": {"member": {"adds_to": []}}} ; what other members leave
"""


@pytest.mark.parametrize("line", ALONE.strip().splitlines())
def test_members_that_cannot_train_at_once_train_alone_and_it_is_said_why(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values, reason = line.split(" ; ")
    members = [RunMember(f"{i:02}", json.loads(text)) for i, text in enumerate(values.split(" | "))]
    with session(compose([*QUICK, "logger.console.style=lines"]).cfg, tmp_path / "run") as run:
        shared = build_shared(run.cfg, tmp_path / "run")
        alone: Any = lambda run, member, shared: member.name  # noqa: E731
        assert train_at_once(run, members, shared, alone, engine="vectorized") == [one.name for one in members]
    assert reason in capsys.readouterr().out.replace("\n", " ")
