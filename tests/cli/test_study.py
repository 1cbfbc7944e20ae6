"""Sweeps whose jobs Optuna chooses, and sweeps in a queue, from the command line."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from tests.conftest import Cli

STAND_IN = Path(__file__).parents[1] / "sweep" / "engines" / "stand_in"
STUDY = ["train", "-m", "hydra/sweeper=optuna", "data=wine", "model.hidden=[4],[8]", "trainer.epochs=1"]
SPACE = "optim.lr=tag(log,interval(1e-3,1e-1))"


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_study_has_its_trials_grows_and_has_pictures(process: Cli, project: Path) -> None:
    pytest.importorskip("optuna")
    command = [*STUDY, SPACE, "hydra.sweep.dir=outputs/study", "sweep.slots=1"]
    first = process(*command, "hydra.sweeper.n_trials=1")
    assert first.code == 0, first.err
    assert "best: 00" in first.out
    folder = project / "outputs" / "study"
    (before,) = rows(folder)
    assert before["status"] == "done"
    more = process(*command, "hydra.sweeper.n_trials=2")
    assert more.code == 0, more.err
    first_row, _ = rows(folder)
    assert (first_row["job"], first_row["best"], "optim.lr" in first_row) == (before["job"], before["best"], True)
    assert (folder / "study" / "history.png").stat().st_size > 1000


def test_a_mistake_in_a_study_starts_nothing(cli: Cli, project: Path) -> None:
    pytest.importorskip("optuna")
    for typed, key in {
        "hydra.sweeper.n_trials=0": "hydra.sweeper.n_trials",
        "hydra.sweeper.sampler=tpo": "hydra.sweeper.sampler",
        "hydra.sweeper.sampler=grid": "hydra.sweeper.sampler",
        "hydra.sweeper.objectives=[val/accuracy,val/loss]": "hydra.sweeper.direction",
        "hydra.sweeper.sampler_options={trials:3}": "hydra.sweeper.sampler_options.trials",
        "hydra.sweeper.storage=sqlite:///study.db": "hydra.sweeper.storage",
        "hydra.sweeper.trials=3": "hydra.sweeper.trials",
        "optim.weight_decay=interval(-1,0.1)": "optim.weight_decay",
    }.items():
        wrong = cli(*STUDY, SPACE, typed)
        assert (wrong.code, f"error: {key}" in wrong.err, "Traceback" in wrong.err) == (2, True, False), wrong.err
    nothing = cli("train", "-m", "hydra/sweeper=optuna", "data=wine")
    assert (nothing.code, "there is nothing to choose: all trials would be the same" in nothing.err) == (2, True)
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


def test_what_slurm_cannot_do_starts_nothing(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, typed, message in (
        (str(project / "empty"), [], "Slurm's commands are not on this machine"),
        (f"{STAND_IN}:{os.environ['PATH']}", ["sweep.gpus_per_job=0.5"], "sweep.gpus_per_job: Slurm gives a job whole"),
    ):
        monkeypatch.setenv("PATH", path)
        wrong = cli("train", "-m", "data=wine", "seed=0,1", "sweep.engine=slurm", *typed)
        assert (wrong.code, message in wrong.err) == (2, True), wrong.err
    assert not (project / "outputs").exists()
