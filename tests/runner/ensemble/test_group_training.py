"""Members that train at once leave ordinary run folders, whatever happens in between."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit.runner.ensemble.group_training as subject
from lightkit.assembly import build_shared
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.loggers.events import read_events
from lightkit.loggers.files import read_jsonl
from lightkit.runner import Runner
from lightkit.runner.ensemble.at_once import train_at_once
from lightkit.runner.ensemble.engines import keep
from lightkit.runner.ensemble.group_training import Trained
from lightkit.runner.ensemble.predictions import HELD_OUT
from lightkit.runner.session import session
from lightkit.trainer.interrupt import Interrupted

QUICK = [
    *["data=wine", "trainer.epochs=3", "data.batch_size=16", "model.hidden=[8]", "model.dropout=0.2"],
    *["logger=quiet", "logger.every_steps=2", "device=cpu", "metrics.figures=[]", "logger.system.enabled=false"],
]
MEMBERS = [RunMember(f"{number:02d}", {"seed": number + 7}) for number in range(3)]


def train(
    folder: Path,
    *overrides: str,
    members: Sequence[RunMember] = MEMBERS,
    engine: str = "vectorized",
    resume: bool = False,
    **options: Any,
) -> list[MemberResult]:
    cfg = compose([*QUICK, *overrides]).cfg
    with session(cfg, folder, overrides=list(overrides), resume=resume) as run:
        shared = build_shared(run.cfg, folder, ranks=run.ranks, pretrained=run.fresh)
        alone = Runner(cfg, folder).train_member
        if engine == "sequential":
            done = [run.finished(member) or alone(run, member, shared) for member in members]
        else:
            found = [run.finished(member) for member in members]
            options |= {"finished": {result.member.name: result for result in found if result}}
            done = train_at_once(run, members, shared, alone, engine=engine, **options)
        run.finish({"status": "finished"}, done)
        return done


def weights(folder: Path) -> dict[str, torch.Tensor]:
    store = CheckpointStore(folder / "checkpoints")
    path = store.newest()
    assert path is not None
    return store.load(path)["model"]


def names(folder: Path) -> set[str]:
    return {path.name.partition(".out.")[0] for path in folder.rglob("*")} - {".lock"}


def test_the_folders_are_those_of_members_trained_one_after_the_other(tmp_path: Path) -> None:
    options = ["logger.tensorboard.enabled=true"]
    together = train(tmp_path / "a", *options, splits=tuple(HELD_OUT.values()), keep=keep)
    alone = train(tmp_path / "b", *options, engine="sequential")
    for one, other in zip(together, alone):
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
    assert not (tmp_path / "a" / "together").exists()


def tags(folder: Path) -> set[tuple[int, str]]:
    found = set()
    for file in folder.glob("events.*"):
        for _, _, event in read_events(file):
            found |= {(event.step, value.tag) for value in event.summary.value}
    return found


def test_a_member_can_be_evaluated_and_gone_on_with(tmp_path: Path) -> None:
    done = train(tmp_path / "run")
    folder = done[1].folder
    values = Runner(load_run(folder).cfg, folder).evaluate("test")
    assert values == pytest.approx(done[1].result["test"], abs=1e-6)
    Runner(load_run(folder, ["trainer.epochs=5"]).cfg, folder).run(resume=True)
    steps = [row["step"] for row in read_jsonl(folder / "metrics.jsonl")]
    assert max(steps) == 5 * 8


class Killed(Exception):
    """Ends the process, as far as a test can."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    def check(self: Any) -> None:
        if self.state.step == step:
            raise Killed

    monkeypatch.setattr(subject.VectorTrainer, "_check_step", check)


@pytest.mark.parametrize("step", [5, 13, 20])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(subject, "SECONDS_BETWEEN_SAVES", 0.0)
    options = ["trainer.epochs=3", "trainer.ema.decay=0.9"]
    whole = train(tmp_path / "whole", *options)
    with monkeypatch.context() as patch:
        killed_at(patch, step)
        with pytest.raises(Killed):
            train(tmp_path / "run", *options)
    resumed = train(tmp_path / "run", *options, resume=True)
    for one, other in zip(whole, resumed):
        same_bits(one.folder, other.folder)


def test_a_signal_ends_the_run_with_everything_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tmp_path / "whole")

    def asked(self: Any) -> None:
        self._interrupt.number = signal.SIGTERM if self.state.step == 11 else 0

    with monkeypatch.context() as patch:
        patch.setattr(subject.VectorTrainer, "_check_step", asked)
        with pytest.raises(Interrupted):
            train(tmp_path / "run", "trainer.epochs=3")
    assert list((tmp_path / "run" / "together" / "00").glob("step-*.pt"))
    for one, other in zip(whole, train(tmp_path / "run", resume=True)):
        same_bits(one.folder, other.folder)


def same_bits(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert all(tensor.equal(second[name]) for name, tensor in first.items())
    plain = [
        [{k: v for k, v in row.items() if k != "time" and not k.startswith("speed/")} for row in read_jsonl(path)]
        for path in (one / "metrics.jsonl", other / "metrics.jsonl")
    ]
    assert plain[0] == plain[1]


def test_members_that_were_written_before_a_kill_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole")
    finish = subject.MemberFiles.finish

    def one_only(self: Any, member: RunMember, *args: Any, **facts: Any) -> Any:
        if member.name == "01":
            raise Killed
        return finish(self, member, *args, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(subject.MemberFiles, "finish", one_only)
        with pytest.raises(Killed):
            train(tmp_path / "run")
    written = tmp_path / "run" / "members" / "00" / "result.json"
    before = written.stat().st_mtime_ns
    resumed = train(tmp_path / "run", resume=True)
    assert written.stat().st_mtime_ns == before
    for one, other in zip(whole, resumed):
        same_bits(one.folder, other.folder)


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


def test_what_a_member_gives_can_be_kept(tmp_path: Path) -> None:
    kept: list[Trained] = []
    train(tmp_path / "run", splits=["val"], keep=lambda run, trained: kept.append(trained))
    assert [trained.member.name for trained in kept] == ["00", "01", "02"]
    for trained in kept:
        rows, outputs, targets = trained.outputs["val"]
        assert len(rows) == len(outputs) == len(targets)
        x, _ = trained.learner.data.source.take(rows)
        trained.learner.model.eval()
        torch.testing.assert_close(trained.learner.model(x).detach(), outputs, atol=1e-5, rtol=0)


def test_figures_and_exports_are_there(tmp_path: Path) -> None:
    options = ["metrics.figures=[confusion_matrix]", "checkpoint.export=weights"]
    done = train(tmp_path / "run", *options, members=MEMBERS[:2])
    for result in done:
        assert list((result.folder / "figures").iterdir())
        assert (result.folder / "weights.pt").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "run" / "members").mkdir(parents=True)
    (tmp_path / "run" / "members" / "00").write_text("")
    with pytest.raises(UserError, match="this is no folder"):
        train(tmp_path / "run")


def test_members_show_their_own_bests_and_the_time_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[float]] = {}

    def update(self: Any, name: str, **facts: Any) -> None:
        if "value" in facts:
            seen.setdefault(name, []).append(facts["value"])

    monkeypatch.setattr("lightkit.loggers.members.MembersTable.update", update)
    done = train(tmp_path / "run")
    assert {name: max(values) for name, values in seen.items()} == pytest.approx(
        {result.member.name: result.result["objective"]["value"] for result in done}
    )
    assert len({result.result["seconds"] for result in done}) == 1
