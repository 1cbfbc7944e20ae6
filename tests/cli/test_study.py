"""Sweeps whose jobs Optuna chooses, and sweeps in a queue, from the command line."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

Cli = Callable[..., Outcome]
STAND_IN = Path(__file__).parents[1] / "sweep" / "engines" / "stand_in"
STUDY = ["train", "-m", "hydra/sweeper=optuna", "data=wine", "model.hidden=[4],[8]", "trainer.epochs=1"]
SPACE = "optim.lr=tag(log,interval(1e-3,1e-1))"


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_study_has_its_trials_grows_and_has_pictures(cli: Cli, project: Path) -> None:
    pytest.importorskip("optuna")
    command = [*STUDY, SPACE, "hydra.sweep.dir=outputs/study", "sweep.slots=1"]
    first = cli(*command, "hydra.sweeper.n_trials=2")
    assert first.code == 0, first.err
    assert "best: 00" in first.out
    folder = project / "outputs" / "study"
    before = rows(folder)
    assert [row["status"] for row in before] == ["done", "done"]
    assert "optim.lr" in before[0]
    assert (folder / "study" / "history.png").stat().st_size > 1000
    more = cli(*command, "hydra.sweeper.n_trials=3")
    assert more.code == 0, more.err
    assert [(row["job"], row["best"]) for row in rows(folder)[:2]] == [(row["job"], row["best"]) for row in before]
    assert len(rows(folder)) == 3


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("hydra.sweeper.n_trials=0", "hydra.sweeper.n_trials"),
        ("hydra.sweeper.sampler=tpo", "hydra.sweeper.sampler"),
        ("hydra.sweeper.sampler=grid", "hydra.sweeper.sampler"),
        ("hydra.sweeper.objectives=[val/accuracy,val/loss]", "hydra.sweeper.direction"),
        ("hydra.sweeper.sampler_options={trials:3}", "hydra.sweeper.sampler_options.trials"),
        ("hydra.sweeper.storage=sqlite:///study.db", "hydra.sweeper.storage"),
        ("hydra.sweeper.trials=3", "hydra.sweeper.trials"),
        ("optim.weight_decay=interval(-1,0.1)", "optim.weight_decay"),
    ],
)
def test_a_mistake_in_a_study_starts_nothing(cli: Cli, project: Path, typed: str, key: str) -> None:
    pytest.importorskip("optuna")
    found = cli(*STUDY, SPACE, typed)
    assert found.code == 2
    assert f"error: {key}" in found.err
    assert "Traceback" not in found.err
    assert not (project / "outputs").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_sweep_goes_through_the_queue_of_slurm(
    cli: Cli, project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path_factory.mktemp("slurm")
    monkeypatch.setenv("FAKE_SLURM", str(state))
    monkeypatch.setenv("PATH", f"{STAND_IN}:{os.environ['PATH']}")
    command = ["train", "-m", "data=wine", "model.hidden=[4]", "trainer.epochs=1", "seed=0,1"]
    found = cli(
        *command, "sweep.slots=1", "sweep.engine=slurm", "sweep.slurm.poll_seconds=0.5", "hydra.sweep.dir=outputs/queue"
    )
    assert found.code == 0, found.err
    assert [row["status"] for row in rows(project / "outputs" / "queue")] == ["done", "done"]
    assert "--array=0-1%1\n" in (project / "outputs" / "queue" / "slurm" / "000.sh").read_text()


def test_a_machine_without_slurm_starts_nothing(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project / "empty"))
    found = cli("train", "-m", "data=wine", "seed=0,1", "sweep.engine=slurm")
    assert found.code == 2
    assert "Slurm's commands are not on this machine" in found.err
    assert not (project / "outputs").exists()


def test_slurm_gives_whole_gpus(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{STAND_IN}:{os.environ['PATH']}")
    found = cli("train", "-m", "data=wine", "seed=0,1", "sweep.engine=slurm", "sweep.gpus_per_job=0.5")
    assert found.code == 2
    assert "error: sweep.gpus_per_job: Slurm gives a job whole GPUs" in found.err
    assert not (project / "outputs").exists()


def test_a_study_of_nothing_is_refused(cli: Cli, project: Path) -> None:
    pytest.importorskip("optuna")
    found = cli("train", "-m", "hydra/sweeper=optuna", "data=wine")
    assert found.code == 2
    assert "there is nothing to choose: all trials would be the same" in found.err
    assert not (project / "outputs").exists()
