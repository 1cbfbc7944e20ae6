"""Sweeps whose jobs have replicates, from the command line; the processes train nothing and leave values of a table."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from lightkit.sweep.engines import local as module
from lightkit.sweep.journal import find_job, read_journal
from tests.conftest import Cli

SWEEP = ("train", "-m", "data=wine", "hydra.sweep.dir=s", "sweep.slots=1")
SEEDS = "sweep.over={seed: [0, 1, 2]}"
LUCK = {"0": 0.00, "1": 0.03, "2": -0.06, "3": 0.01, "4": 0.02}


class Job:
    """A process that trains nothing: its value follows from its overrides, as does its exit status."""

    started: list[str] = []
    codes: dict[str, int] = {}
    value: Callable[[dict[str, str]], float]
    dies_after = math.inf

    def __init__(self, command: list[str], **_options: object) -> None:
        self.folder = Path(command[command.index("--job") + 1])
        self.stop_at = command[command.index("--stop-at") + 1] if "--stop-at" in command else None
        if len(self.started) >= self.dies_after:
            raise KeyboardInterrupt
        self.started.append(self.folder.name)

    def poll(self) -> int:
        code = next((code for text, code in self.codes.items() if text in self.folder.name), 0)
        if code == 0:
            typed = dict(text.partition("=")[::2] for text in find_job(self.folder)[0].overrides)
            result = {"status": "paused" if self.stop_at else "finished", "epochs": int(self.stop_at or 20), "steps": 8}
            objective = {"name": "val/accuracy", "value": type(self).value(typed)}
            (self.folder / "result.json").write_text(json.dumps({**result, "objective": objective}))
        return code


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> type[Job]:
    def value(typed: dict[str, str]) -> float:
        return float(typed["optim.lr"]) + LUCK[typed["seed"]] * (1 + float(typed["optim.lr"]))

    made = type("Job", (Job,), {"started": [], "codes": {}, "value": staticmethod(value)})
    monkeypatch.setattr(module, "Child", made)
    monkeypatch.setattr(module.LocalEngine, "_forked", lambda self, *job: module._fresh(*job))
    return made


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def facts(project: Path) -> list[tuple[str, str, str]]:
    return [(row["job"], row["status"], row["best"][:6]) for row in rows(project / "s")]


def test_a_job_is_the_mean_of_its_replicates_with_its_interval(cli: Cli, job: type[Job], project: Path) -> None:
    done = cli(*SWEEP, "optim.lr=0.5,0.2", SEEDS)
    assert done.code == 0, done.err
    names = [f"optim.lr={lr},seed={seed}" for lr in (0.5, 0.2) for seed in range(3)]
    assert job.started == names
    for row, lr in zip(rows(project / "s"), (0.5, 0.2)):
        values = [lr + LUCK[seed] * (1 + lr) for seed in "012"]
        low, high = stats.t.interval(0.95, 2, sum(values) / 3, stats.sem(values))
        assert (row["job"], row["optim.lr"], row["replicates"]) == (f"optim.lr={lr}", str(lr), "3")
        assert float(row["best"]) == pytest.approx((low + high) / 2, abs=1e-12)
        assert float(row["half_width"]) == pytest.approx((high - low) / 2, abs=1e-12)
        assert f"{(low + high) / 2:.4f} ± {(high - low) / 2:.4f} (n=3)" in done.out
    assert "seed" not in rows(project / "s")[0]
    status = cli("sweep", "status", "s").out
    assert "mean ± 95 %" in status
    assert "2 of 2 jobs finished, best val/accuracy 0.4850 ± 0.1708 (n=3) (optim.lr=0.5)" in status
    told = json.loads(cli("sweep", "status", "s", "--json").out)
    assert (len(told["jobs"]), [mean[2] for mean in told["means"].values()]) == (6, [3, 3])
    more = cli(*SWEEP, "optim.lr=0.5,0.2", "sweep.over={seed: [0, 1, 2, 3]}")
    assert (more.code, job.started[6:]) == (0, ["optim.lr=0.5,seed=3", "optim.lr=0.2,seed=3"]), more.err
    assert [row["replicates"] for row in rows(project / "s")] == ["4", "4"]


def test_folds_have_rows_in_common_and_a_job_alone_has_a_name(cli: Cli, job: type[Job], project: Path) -> None:
    job.value = staticmethod(lambda typed: 0.5 + LUCK[typed["data.split.fold"]] + LUCK[typed["seed"]])  # type: ignore[assignment]
    over = "sweep.over={seed: [0, 1], data.split.fold: [0, 1, 2]}"
    done = cli(*SWEEP, "data.split.by=fold", "data.split.folds=5", "data.split.val=0.2", over)
    assert done.code == 0, done.err
    assert job.started[:2] == ["run,seed=0,data.split.fold=0", "run,seed=0,data.split.fold=1"]
    (row,) = rows(project / "s")
    values = [0.5 + LUCK[fold] + LUCK[seed] for seed in "01" for fold in "012"]
    error = stats.tstd(values) * math.sqrt(1 / 6 + 0.2 / 0.6)  # Nadeau and Bengio: validation over training rows
    assert (row["job"], row["replicates"]) == ("run", "6")
    assert float(row["half_width"]) == pytest.approx(stats.t.ppf(0.975, 5) * error)


def test_a_failed_replicate_leaves_no_mean_and_is_tried_again(cli: Cli, job: type[Job], project: Path) -> None:
    job.codes["lr=0.5,seed=1"] = 3
    failed = cli(*SWEEP, "optim.lr=0.5,0.2", SEEDS)
    assert (failed.code, len(job.started), "1 of 6 jobs failed" in failed.err) == (3, 6, True)
    assert facts(project) == [("optim.lr=0.5", "incomplete", ""), ("optim.lr=0.2", "done", "0.1880")]
    assert "2 of 3 replicates" in cli("sweep", "status", "s").out
    job.codes.clear()
    assert cli(*SWEEP, "optim.lr=0.5,0.2", SEEDS).code == 0
    assert job.started[6:] == ["optim.lr=0.5,seed=1"]
    assert facts(project)[0] == ("optim.lr=0.5", "done", "0.4850")


@pytest.mark.thorough
@pytest.mark.parametrize("race", [("sweep.race=3",), ()])
def test_a_killed_sweep_ends_as_one_that_was_not(
    cli: Cli, job: type[Job], project: Path, race: tuple[str, ...]
) -> None:
    command = ("optim.lr=0.5,0.1", "sweep.over={seed: [0, 1, 2, 3]}", *race)
    assert cli(*SWEEP, *command, "hydra.sweep.dir=whole").code == 0
    whole = [*job.started]
    job.started.clear()
    for dies_after in (5, math.inf):
        job.dies_after = dies_after
        cli(*SWEEP, *command)
    assert job.started == whole
    assert rows(project / "s") == rows(project / "whole")
    assert [row["status"] for row in rows(project / "s")] == ["done", "raced out" if race else "done"]
    if race:
        assert [name for name in whole if "0.1" in name] == [f"optim.lr=0.1,seed={seed}" for seed in range(3)]
        assert (rows(project / "s")[1]["best"], "3 of 4 replicates" in cli("sweep", "status", "s").out) == ("", True)
        assert cli("sweep", "resume", "s").code == 0
        assert job.started == whole


def test_halving_lets_the_best_mean_go_on(cli: Cli, job: type[Job], project: Path) -> None:
    job.value = staticmethod(lambda typed: [[0.9, 0.1], [0.6, 0.7]][typed["optim.lr"] == "0.2"][int(typed["seed"])])  # type: ignore[assignment]
    over = "sweep.over={seed: [0, 1]}"
    done = cli(*SWEEP, "optim.lr=0.1,0.2", over, "sweep.halving.rungs=[1]")
    assert done.code == 0, done.err
    assert job.started[4:] == ["optim.lr=0.2,seed=0", "optim.lr=0.2,seed=1"]
    assert facts(project) == [("optim.lr=0.1", "paused", "0.5"), ("optim.lr=0.2", "done", "0.6499")]


@pytest.mark.thorough
@pytest.mark.parametrize(("option", "count"), [("sweep.race=3", 4), ("hydra.sweeper.pruner=wilcoxon", 5)])
def test_optuna_is_told_the_mean_once(cli: Cli, job: type[Job], project: Path, option: str, count: int) -> None:
    optuna = pytest.importorskip("optuna")
    study = ("hydra/sweeper=optuna", "hydra.sweeper.sampler=grid", "hydra.sweeper.n_trials=3", option)
    command = (*study, "optim.lr=0.5,0.1,0.2", f"sweep.over={{seed: {[*range(count)]}}}")
    job.dies_after = 3
    cli(*SWEEP, *command)
    job.dies_after = math.inf
    done = cli(*SWEEP, *command)
    assert done.code == 0, done.err
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(project / "s/optuna.journal"))
    )
    trials: list[Any] = optuna.load_study(study_name="wine_mlp", storage=storage).trials
    told = {trial.params["optim.lr"]: (trial.state.name, trial.value) for trial in trials}
    jobs = {row["optim.lr"]: row for row in rows(project / "s")}
    assert len(trials) == len(jobs) == 3
    assert jobs["0.5"]["status"] == "done"
    for lr, (state, value) in told.items():
        mean = sum(float(lr) + LUCK[seed] * (1 + float(lr)) for seed in "01234"[:count]) / count
        assert state == ("COMPLETE" if jobs[lr]["status"] == "done" else "PRUNED")
        assert state == "PRUNED" or value == pytest.approx(mean) == float(jobs[lr]["best"])
    begun = {outcome.name for outcome in read_journal(project / "s").told if outcome.status == "finished"}
    assert sorted(job.started) == sorted(begun)


def test_wrong_replicates_start_nothing(cli: Cli, project: Path) -> None:
    for typed, message in {
        "sweep.over={sede: [0, 1]}": "sweep.over.sede: not a key that repeats a run",
        "sweep.over={optim.lr: [1, 2]}": "sweep.over.optim.lr: not a key that repeats a run",
        "sweep.over={seed: []}": "sweep.over.seed: each replicate has a value of its own",
        "sweep.over={seed: [1, 1]}": "sweep.over.seed: each replicate has a value of its own",
        "sweep.over={seed: 3}": "sweep.over.seed: wrong type",
        "sweep.over={seed: [a]}": "sweep.over.seed[0]: wrong type",
        "sweep.over={data.split.fold: [0, 1]}": "sweep.over.data.split.fold: without folds, all of these are the same",
        "sweep.over={seed: [0, 1]} seed=3": "seed: replicates have values of their own",
        "sweep.over={seed: [0, 1]} seed=3,4": "seed: replicates have values of their own",
        "sweep.over={seed: [0, 1]} sweep.race=1": "sweep.race: out of range",
        "sweep.over={seed: [0, 1, 2]} sweep.race=3": "sweep.race: a race ends before the replicates do",
        "seed=0 sweep.race=3": "sweep.race: a race ends before the replicates do",
    }.items():
        text, _, more = typed.replace("} ", "}|").replace("0 s", "0|s").partition("|")
        wrong = cli("train", "-m", "data=wine", "optim.lr=0.1", text, *more.split())
        assert (wrong.code, message in wrong.err, "Traceback" in wrong.err) == (2, True, False), wrong.err
    assert not (project / "outputs").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("own", ["job${hydra:job.num}", "lr${optim.lr}"])
def test_folders_of_ones_own_name_whole_jobs(cli: Cli, job: type[Job], project: Path, own: str) -> None:
    assert cli(*SWEEP, "optim.lr=0.1,0.01", SEEDS, f"hydra.sweep.subdir='{own}'").code == 0
    assert len(job.started) == 6
    assert {one["status"] for one in json.loads(cli("sweep", "status", "s", "--json").out)["jobs"]} == {"finished"}
    assert (project / "s" / "results.txt").read_text().count("(n=3)") == 2
