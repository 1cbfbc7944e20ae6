"""Which members train at once, and that the others are trained too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.assembly import build_shared
from lightkit.config import compose, from_yaml
from lightkit.ensemble.plan import RunMember
from lightkit.runner.ensemble.at_once import train_at_once
from lightkit.runner.session import session
from lightkit.runs.reading import read_config, read_result
from tests.conftest import Outcome
from tests.runner.ensemble.test_group_training import MEMBERS, QUICK, train

ALONE = "one after the other trains "


def test_more_members_train_beside_those_that_have_finished(tmp_path: Path) -> None:
    train(tmp_path / "run", members=MEMBERS[:2])
    before = (tmp_path / "run" / "members" / "00" / "result.json").read_text()
    more = [*MEMBERS, RunMember("03", {"seed": 30})]
    done = train(tmp_path / "run", members=more, resume=True)
    assert [result.member.name for result in done] == ["00", "01", "02", "03"]
    assert (tmp_path / "run" / "members" / "00" / "result.json").read_text() == before


def test_unlike_members_train_in_groups_of_their_own(tmp_path: Path) -> None:
    members = [*MEMBERS[:2], RunMember("wide", {"seed": 1, "model.hidden": [9]})]
    done = train(tmp_path / "run", members=members)
    assert [result.member.name for result in done] == ["00", "01", "wide"]
    assert all(result.result["status"] == "finished" for result in done)
    assert "others at once" in (done[0].folder / "run.log").read_text()
    assert "others at once" not in (done[2].folder / "run.log").read_text()


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


def test_what_cannot_train_at_once_trains_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = train(tmp_path / "run", "scheduler=plateau", "logger.console.style=lines", members=MEMBERS[:2])
    assert all(result.result["status"] == "finished" for result in done)
    assert "one after the other: the schedule" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("role", "reason"),
    [
        ({"weights_of": "x"}, "weights of another member"),
        ({"adds_to": []}, "what other members leave"),
    ],
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
