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
from lightkit.ensemble.plan import MemberResult, RunMember
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


def names(folder: Path) -> set[str]:
    return {path.name.partition(".out.")[0] for path in folder.rglob("*")} - {".lock"}


def test_the_folders_are_those_of_members_trained_one_after_the_other(tmp_path: Path) -> None:
    options = ["logger.tensorboard.enabled=true"]
    together = train(tmp_path / "a", *options)
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


@pytest.mark.parametrize(
    ("step", "model"), [(5, {}), (13, {"model": {"_target_": "tests.ensemble.networks.Tied"}}), (20, {})]
)
def test_a_killed_run_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, model: dict[str, Any]
) -> None:
    monkeypatch.setattr(subject, "SECONDS_BETWEEN_SAVES", 0.0)
    options = ["trainer.epochs=3", "trainer.ema.decay=0.9"]
    members = [RunMember(member.name, {**member.values, **model}) for member in MEMBERS]
    whole = train(tmp_path / "whole", *options, members=members)
    with monkeypatch.context() as patch:
        killed_at(patch, step)
        with pytest.raises(Killed):
            train(tmp_path / "run", *options, members=members)
    resumed = train(tmp_path / "run", *options, members=members, resume=True)
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
    assert comparable(one) == comparable(other)


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


ALONE = "one after the other trains "


def test_more_members_train_beside_those_that_have_finished(tmp_path: Path) -> None:
    train(tmp_path / "run", members=MEMBERS[:2])
    before = (tmp_path / "run" / "members" / "00" / "result.json").read_text()
    more = [*MEMBERS, RunMember("03", {"seed": 30})]
    done = train(tmp_path / "run", members=more, resume=True)
    assert [result.member.name for result in done] == ["00", "01", "02", "03"]
    assert (tmp_path / "run" / "members" / "00" / "result.json").read_text() == before


def test_members_that_differ_in_their_rate_are_told_to_train_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [RunMember(name, {"seed": 1, "optim.lr": rate}) for name, rate in (("00", 0.01), ("01", 0.02))]
    members += [RunMember("02", {"seed": 2, "optim.lr": 0.01}), RunMember("wide", {"seed": 3, "model.hidden": [9]})]
    train(tmp_path / "rates", "logger.console.style=lines", members=members[:2])
    said = capsys.readouterr().out.replace("\n", " ")
    told = "one after the other trains 00, 01: no other member has the same optim.lr, and a step of all at once has one"
    assert told in said
    train(tmp_path / "mixed", "logger.console.style=lines", members=members)
    said = capsys.readouterr().out.replace("\n", " ")
    assert "2 members train at once" in said
    assert "one after the other trains 01, wide: no other member has the same optim.lr and model.hidden" in said


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ("[{seed: 1}, {seed: 2}]", ["2 members train at once"]),
        ("[{name: a}, {name: b, seed: 7}]", ["2 members train at once"]),
        ("[{optim.lr: 0.01}, {optim.lr: 0.02}]", ["no other member has the same optim.lr, and a step of all", ALONE]),
        ("[{optim.weight_decay: 0.1}, {optim.weight_decay: 0.2}]", ["has the same optim.weight_decay", ALONE]),
        ("[{model.dropout: 0.1}, {model.dropout: 0.2}]", ["has the same model.dropout", ALONE]),
        ("[{model.hidden: [4]}, {model: soft_tree}, {model.hidden: [4]}]", ["2 members train at once", ALONE]),
        ("[{}, {seed: 5}]", ["00, 01-seed=5: name is not given for each member", ALONE]),
        (
            "[{seed: 4}, {seed: 5}]\nfinetune=bitfit",
            ["2 members train one after the other: the members are fine-tuned"],
        ),
        ("[{}]", [ALONE]),
    ],
)
def test_the_engine_that_was_asked_for_is_used_or_it_is_said_why_not(
    cli: Callable[..., Outcome], members: str, told: list[str]
) -> None:
    listed, *more = members.splitlines()
    args = [*QUICK, "trainer.epochs=1", "ensemble=voting", "ensemble.engine=vectorized", f"ensemble.members={listed}"]
    found = cli("train", *args, *more, "logger.console.style=lines")
    assert found.code == 0, found.err
    said = found.out.replace("\n", " ")
    assert [text for text in told if text not in said] == []
    assert "same name" not in said
    (run,) = Path("outputs/runs").glob("*/*")
    for member in (run / "members").iterdir():
        assert read_result(member)["name"] == from_yaml(read_config(member))["name"]


@pytest.mark.parametrize(
    ("role", "reason"),
    [({"weights_of": "x"}, "weights of another member"), ({"adds_to": []}, "what other members leave")],
)
def test_members_that_learn_otherwise_are_left_to_train_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: dict[str, Any], reason: str
) -> None:
    members = [RunMember(name, {"seed": 1, "ensemble": {"member": role}}) for name in ("00", "01")]
    told: list[str] = []
    with session(compose(QUICK).cfg, tmp_path / "run") as run:
        monkeypatch.setattr(type(run), "tell", lambda self, line: told.append(line))
        shared = build_shared(run.cfg, tmp_path / "run")
        alone: Any = lambda run, member, shared: member.name  # noqa: E731
        assert train_at_once(run, members, shared, alone, engine="vectorized") == ["00", "01"]
    assert reason in told[0]
