from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli import sweep as module
from tests.conftest import Outcome

Cli = Callable[..., Outcome]


class Job:
    """A process that trains nothing: its exit status is looked up by its seed."""

    started: list[list[str]] = []
    codes: dict[str, int] = {}

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.started.append(command)
        seed = next(text for text in command if text.startswith("seed="))
        self.code = self.codes.get(seed, 0)

    def wait(self) -> int:
        folder = Path(self.command[self.command.index("--folder") + 1])
        folder.mkdir()
        if self.code == 0:
            result = {"status": "finished", "objective": {"name": "val/accuracy", "value": 0.5}}
            (folder / "result.json").write_text(json.dumps(result))
        return self.code


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> type[Job]:
    made = type("Job", (Job,), {"started": [], "codes": {}})
    monkeypatch.setattr(module.subprocess, "Popen", made)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    return made


def test_one_process_per_job_in_folders_named_by_what_differs(cli: Cli, job: type[Job], project: Path) -> None:
    done = cli("train", "-m", "data=wine", "seed=0,1", "optim.lr=0.1,0.2")
    assert done.code == 0, done.err
    (folder,) = (project / "outputs").glob("sweeps/*/*-wine_mlp")
    names = ["seed=0,optim.lr=0.1", "seed=0,optim.lr=0.2", "seed=1,optim.lr=0.1", "seed=1,optim.lr=0.2"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert job.started[0][3:7] == ["train", "data=wine", "seed=0", "optim.lr=0.1"]
    assert done.out.count("0.5000") == 4


def test_failures_are_told_and_the_rest_goes_on(cli: Cli, job: type[Job]) -> None:
    job.codes["seed=1"] = 3
    done = cli("train", "--multirun", "seed=0,1,2")
    assert done.code == 3
    assert len(job.started) == 3
    assert "failed (3)" in done.out
    assert "1 of 3 jobs did not end well" in done.err


def test_a_stopped_job_stops_the_sweep(cli: Cli, job: type[Job]) -> None:
    job.codes["seed=1"] = 130
    done = cli("train", "-m", "seed=0,1,2")
    assert done.code == 130
    assert len(job.started) == 2
    assert "not started" in done.out


def test_nothing_starts_while_one_job_is_wrong(cli: Cli, job: type[Job], project: Path) -> None:
    done = cli("train", "-m", "seed=0,1", "optim=adamw,adamww")
    assert done.code == 2
    assert "nearest: adamw" in done.err
    assert "1 problem found" in done.err
    assert job.started == []
    assert not (project / "outputs").exists()


def test_hydra_sweep_dir_is_respected(cli: Cli, job: type[Job], project: Path) -> None:
    assert cli("train", "-m", "seed=0,1", "hydra.sweep.dir=mine").code == 0
    assert sorted(path.name for path in (project / "mine").iterdir()) == ["seed=0", "seed=1"]


def test_commas_without_multirun(cli: Cli, job: type[Job]) -> None:
    done = cli("train", "seed=0,1")
    assert done.code == 2
    assert "-m" in done.err


@pytest.mark.slow
def test_real_jobs(process: Callable[..., Outcome], project: Path) -> None:
    tiny = ("data=wine", "trainer.epochs=1", "device=cpu", "model.hidden=[4]", "logger=quiet")
    done = process("train", "-m", *tiny, "seed=0,1")
    assert done.code == 0, done.err
    assert len(list((project / "outputs").glob("sweeps/*/*/seed=*/result.json"))) == 2
    assert done.out.count("done") == 2
