"""What is said of a detached run, and how one comes back to it. Real ones are in tests/detached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.detached import detach
from lightkit.detached.detach import Detached
from tests.conftest import Cli
from tests.detached.made import make_sweep

Begun = Callable[..., None]
MAKE = ("train", "-d", "data=wine")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    """`begun(7, None)`: what is detached from now on is process 7, and goes on."""

    def become(pid: int | None, code: int | None, said: str = "") -> None:
        def detached(folder: Path, _work: Callable[[], int], **_options: Any) -> Detached:
            for name in (".job", "output.log"):
                (folder / name).touch()
            return Detached(pid, code, said)

        monkeypatch.setattr(detach, "detach", detached)

    return become


def earlier(project: Path, place: str) -> None:
    (project / "outputs" / place).mkdir(parents=True)
    (project / "outputs" / place / "config.yaml").write_text("name: run\n")


def test_it_is_called_by_its_name_unless_another_has_it(cli: Cli, begun: Begun, project: Path) -> None:
    begun(7, None)
    earlier(project, "runs/2026-01-31/12-00-00-other")
    done = cli(*MAKE, "name=mine")
    assert done.code == 0
    assert done.out.startswith("mine goes on without this terminal: process 7, folder outputs/runs/")
    assert "lightkit stop mine  " in done.out
    assert done.out.endswith("let it save and end; then  lightkit resume -d mine\n")
    (first,) = project.glob("outputs/runs/*/*/.job")
    earlier(project, "runs/2026-01-31/12-00-00-taken")
    done = cli(*MAKE, "name=taken")
    (second,) = {*project.glob("outputs/runs/*/*/.job")} - {first}
    assert f"lightkit logs -f {second.parent.name}  " in done.out


@pytest.mark.parametrize("place", ["elsewhere", "'a b'", "../up"])
def test_a_folder_of_ones_own_is_called_by_its_path(cli: Cli, begun: Begun, place: str) -> None:
    begun(7, None)
    assert f"lightkit attach {place}  " in cli(*MAKE, f"hydra.run.dir={place}").out


def test_a_sweep_is_called_by_its_name_or_its_folder(cli: Cli, begun: Begun, project: Path) -> None:
    begun(7, None)
    earlier(project, "sweeps/2026-01-31/12-00-00-mine/seed=0")
    (project / "outputs/sweeps/2026-01-31/12-00-00-mine/sweep.jsonl").touch()
    for typed, name in (("name=grid", "grid"), ("hydra.sweep.dir=sweep", "sweep")):
        assert f"lightkit logs -f {name} " in cli("train", "-m", "-d", "data=wine", "seed=0,1", typed).out


def test_resuming_a_sweep_is_another_command(cli: Cli, project: Path) -> None:
    make_sweep(project, "seed=0")
    for arguments in (["grid"], ["-d", "grid"]):
        done = cli("resume", *arguments)
        assert done.code == 2
        assert "error: this is a sweep" in done.err
        assert f"fix:      lightkit sweep resume {' '.join(arguments)}" in done.err
    assert "no run here" in cli("resume", "grit").err


@pytest.mark.parametrize("code", [0, 3])
def test_what_has_ended_already_has_said_so(cli: Cli, begun: Begun, project: Path, code: int) -> None:
    begun(7, code, "what it said")
    done = cli(*MAKE)
    assert done.code == code
    assert (done.out, done.err)[code > 0] == "what it said\n"
    assert not (project / "outputs").exists()


def test_what_was_killed_has_said_nothing(cli: Cli, begun: Begun) -> None:
    begun(None, 1)
    assert "error: the process has ended before it had begun" in cli(*MAKE).err
