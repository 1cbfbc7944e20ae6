from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import lightkit.cli.sweep as sweep_table
from lightkit.cli.replicates import keep_best
from lightkit.cli.sweep import SweepDisplay, headline, job_labels
from lightkit.runs.lock import locked
from lightkit.sweep.job import Job, JobOutcome
from lightkit.sweep.journal import Journal, Record, read_journal
from lightkit.sweep.state import JobState
from tests.conftest import Outcome as Done

Cli = Callable[..., Done]
STAND_IN = Path(__file__).parents[1] / "sweep" / "engines" / "stand_in"
CONFIG = "metrics: {monitor: val/accuracy, mode: max}\ntrainer: {epochs: 4}\n"


@pytest.fixture
def sweep(project: Path) -> Path:
    """A sweep of three jobs: one has finished, one has failed, one was never started."""
    folder = project / "outputs" / "sweeps" / "2026-01-31" / "12-00-00-wine_mlp"
    folder.mkdir(parents=True)
    with Journal(folder) as journal:
        journal.head(command={}, options={"retries": 0, "on_error": "continue"})
        journal.plan([Job(f"seed={seed}", folder / f"seed={seed}", (f"seed={seed}",), CONFIG) for seed in range(3)])
        for seed, outcome in enumerate(
            [JobOutcome("seed=0", "finished"), JobOutcome("seed=1", "failed", code=3, reason="the loss is not finite")]
        ):
            journal.started(outcome.name, None)
            journal.ended(outcome, told=True)
            place = folder / outcome.name
            place.mkdir()
            result = {"status": outcome.status, "reason": outcome.reason, "epochs": 4 - seed, "steps": 40}
            objective = {"name": "val/accuracy", "value": 0.9 - seed / 2}
            (place / "result.json").write_text(json.dumps({**result, "objective": objective}))
    return folder


def test_status(cli: Cli, sweep: Path) -> None:
    done = cli("sweep", "status", "last")
    for name in ("wine_mlp", "outputs/sweeps/2026-01-31/12-00-00-wine_mlp"):
        assert cli("sweep", "status", name) == done
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["job", "status", "epoch", "step", "best", "left", "where"]
    assert lines[1] == ["seed=0", "finished", "4", "40", "0.9000"]
    assert lines[2][:5] == ["seed=1", "failed", "3", "40", "0.4000"]
    assert lines[3] == ["seed=2", "waiting"]
    assert "the loss is not finite" in done.out
    assert "1 of 3 jobs finished, 1 waiting, 1 failed, best val/accuracy 0.9000 (seed=0)" in done.out
    assert f"nobody runs it; go on with:  lightkit sweep resume {sweep}" in done.out


@pytest.fixture
def queue(sweep: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands in for Slurm has the sweep's jobs: one waits, one has just begun, one has left the queue."""
    state = tmp_path_factory.mktemp("slurm")
    monkeypatch.setenv("FAKE_SLURM", str(state))
    monkeypatch.setenv("PATH", f"{STAND_IN}:{os.environ['PATH']}")
    monkeypatch.setattr("lightkit.sweep.queue._ASKED", {})
    with Journal(sweep) as journal:
        journal.head(options={"engine": "slurm", "slots": 1})
        for seed in range(3):
            journal.started(f"seed={seed}", None)
    (sweep / "slurm").mkdir()
    names = [f"seed={seed}" for seed in range(3)]
    (sweep / "slurm" / "000.json").write_text(json.dumps({"id": "101", "names": names}))
    (state / "101").mkdir()
    (state / "101" / "command").write_text(f"{sweep.resolve() / 'slurm' / '000.sh'}\n")
    for task, word in enumerate(("PENDING", "RUNNING", "CANCELLED")):
        (state / "101" / f"state.{task}").write_text(f"{word}\n")
    for seed in range(3):
        (sweep / f"seed={seed}").mkdir(exist_ok=True)
        (sweep / f"seed={seed}" / "result.json").write_text('{"status": "interrupted", "steps": 4}')
    return sweep


def test_jobs_in_a_queue_are_not_interrupted(cli: Cli, queue: Path) -> None:
    done = cli("sweep", "status", "last")
    assert done.code == 0, done.err
    assert [line.split()[1] for line in done.out.splitlines()[1:4]] == ["queued", "starting", "interrupted"]
    assert "0 of 3 jobs finished, 1 starting, 1 queued, 1 interrupted" in done.out
    assert f"nobody watches it; to do so:  lightkit sweep resume {queue}" in done.out
    assert json.loads(cli("ps", "--json").out)[0]["state"] == "running"


def test_a_sweep_of_somebody_else_asks_no_queue(cli: Cli, queue: Path) -> None:
    text = (queue / "sweep.jsonl").read_text().replace('"slots": 1', '"slots": 2')  # signed otherwise
    (queue / "sweep.jsonl").write_text(text)
    done = cli("sweep", "status", "last")
    assert [line.split()[1] for line in done.out.splitlines()[1:4]] == ["interrupted"] * 3


def test_status_as_json(cli: Cli, sweep: Path) -> None:
    with locked(sweep), locked(sweep / "seed=1", ".job"):
        found = json.loads(cli("sweep", "status", "last", "--json").out)
    assert found["folder"] == str(sweep)
    assert found["run_by"].startswith(f"process {os.getpid()} ")
    assert [job["status"] for job in found["jobs"]] == ["finished", "running", "waiting"]
    assert found["jobs"][1]["place"].startswith(f"process {os.getpid()} ")


MISSING = object()


@pytest.mark.parametrize(
    ("config", "halving"),
    [(MISSING, False), (None, True), (["a"], False), ("5", True), ("][", False), ("&a [*a]", True)],
)
def test_a_planned_job_without_a_whole_configuration_is_told(
    cli: Cli, project: Path, config: object, halving: bool
) -> None:
    folder = project / "theirs"
    folder.mkdir()
    options = {"retries": 0, "on_error": "continue", "engine": "local", "slots": 1, "gpus_per_job": 0, "warm": False}
    options |= {"halving": {"rungs": [1]}} if halving else {}
    planned = {"event": "planned", "name": "a", "overrides": []} | ({} if config is MISSING else {"config": config})
    lines = [{"event": "sweep", "format": 1, "command": {}, "options": options}, planned]
    (folder / "sweep.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shown = cli("sweep", "status", "theirs")
    assert shown.code == 0
    assert ("sweep.jsonl: line 2: `config` is" in shown.err) == (not isinstance(config, str))
    job = cli("train", "--job", "theirs/a")
    assert job.code == 2, job.err
    assert "Traceback" not in job.err
    if halving or not isinstance(config, str):
        resumed = cli("sweep", "resume", "theirs")
        assert resumed.code == 2, resumed.err
        assert "Traceback" not in resumed.err


def test_the_time_left_goes_by_what_is_done_while_one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(sweep_table.time, "monotonic", lambda: clock[0])
    states = {name: JobState(Job(name, Path(name), (), ""), "waiting") for name in "abcd"}
    states["a"] = replace(states["a"], status="finished")
    states["b"] = replace(states["b"], status="running", share=0.5)
    display = SweepDisplay(Record(Path()))
    display.refresh(states)
    assert "left" not in display.shown(states, 9)[0]
    clock[0] += 10  # a quarter of a job
    states["b"] = replace(states["b"], share=0.75)
    assert "1 of 4 jobs finished, 1 running, 2 waiting, 1:30 left" in display.shown(states, 9)[0]
    states = {name: replace(state, status="finished") for name, state in states.items()}
    assert "left" not in display.shown(states, 9)[0]


def a_state(name: str, status: str, best: float | None, *overrides: str) -> JobState:
    return JobState(Job(name, Path(name), overrides, ""), status, metric="val/accuracy", best=best)


def test_names_of_a_sweep_that_has_grown_by_a_key_tell_it_too() -> None:
    old = [a_state(f"seed={n}", "finished", 0.5 + n, "data=wine", "optim.lr=0.1", f"seed={n}") for n in range(2)]
    new = [
        a_state(f"optim.lr=0.2,seed={n}", "finished", 0.5, "data=wine", "optim.lr=0.2", f"seed={n}") for n in range(2)
    ]
    labels = job_labels([*old, *new])
    assert list(labels.values()) == [
        "seed=0  (optim.lr=0.1)",
        "seed=1  (optim.lr=0.1)",
        "optim.lr=0.2,seed=0",
        "optim.lr=0.2,seed=1",
    ]
    assert list(job_labels(old).values()) == ["seed=0", "seed=1"]
    assert headline([a_state("a", "failed", 2.0)], "max") == "0 of 1 job finished, 1 failed"
    failed = a_state("optim.lr=0.3,seed=0", "failed", 9.0, "data=wine", "optim.lr=0.3", "seed=0")  # not the best
    assert headline([*old, *new, failed], "max").endswith("best val/accuracy 1.5000 (seed=1  (optim.lr=0.1))")


@pytest.fixture
def grid(project: Path) -> Record:
    """A sweep of jobs with two replicates each, all with checkpoints."""
    folder = project / "outputs" / "sweeps" / "2026-01-31" / "12-00-00-grid"
    folder.mkdir(parents=True)
    with Journal(folder) as journal:
        journal.head(command={}, options=OVER)
        names = [f"lr={lr},seed={seed}" for lr in range(6) for seed in (0, 1)]
        journal.plan([Job(name, folder / name, tuple(name.split(",")), CONFIG) for name in names])
        for name in names:
            journal.started(name, None)
            journal.ended(JobOutcome(name, "finished"), told=True)
            (folder / name / "checkpoints").mkdir(parents=True)
            (folder / name / "config.yaml").write_text(CONFIG)
            (folder / name / "checkpoints" / "step-1.pt").write_bytes(bytes(2000))
    return read_journal(folder)


OVER = {"over": {"seed": [0, 1]}, "keep_checkpoints": 2}


def test_only_the_best_jobs_keep_their_checkpoints(grid: Record, project: Path) -> None:
    base = next(iter(grid.jobs.values())).folder.with_name("lr=4,seed=0")
    tuned = project / "outputs" / "runs" / "tuned"
    tuned.mkdir(parents=True)
    (tuned / "config.yaml").write_text(f"finetune: {{weights: {{path: '{base}'}}}}\n")
    statuses = ("finished", "finished", "incomplete", "raced out", "finished", "finished")
    values = (0.9, math.nan, None, None, 0.5, 0.8)
    states = [
        JobState(Job(f"lr={lr}", grid.folder / f"lr={lr}", (), CONFIG), status, best=value)
        for lr, (status, value) in enumerate(zip(statuses, values))
    ]
    told = keep_best(grid, states, OVER)
    assert told == "sweep.keep_checkpoints=2: 9.8 KiB are free again; others build on 1 job, whose checkpoints stay"
    left = sorted(file.parents[1].name for file in grid.folder.rglob("*.pt"))
    assert left == [f"lr={lr},seed={seed}" for lr in (0, 2, 4, 5) for seed in (0, 1) if (lr, seed) != (4, 1)]
    assert "0 B are free again" in keep_best(grid, states, OVER), "and once more does no harm"


def test_checkpoints_of_jobs_from_elsewhere_stay(grid: Record) -> None:
    path = grid.folder / "sweep.jsonl"
    path.write_text(path.read_text().replace("trainer: {epochs: 4}", "trainer: {epochs: 5}"))
    record = read_journal(grid.folder)
    states = [JobState(Job(f"lr={lr}", grid.folder, (), CONFIG), "finished", best=float(lr)) for lr in range(6)]
    assert "0 B are free again" in keep_best(record, states, OVER)


def test_a_sweep_ends_with_the_checkpoints_of_its_best_job(cli: Cli, project: Path) -> None:
    quick = ("data=wine", "model.hidden=[4]", "trainer.epochs=1", "logger.console.style=quiet", "metrics.figures=[]")
    words = ("train", "-m", *quick, "seed=0,1,2", "hydra/launcher=vectorized", "hydra.sweep.dir=sweep")
    done = cli(*words, "sweep.keep_checkpoints=-1")
    assert (done.code, "sweep.keep_checkpoints" in done.err, (project / "sweep").exists()) == (2, True, False)
    done = cli(*words, "sweep.keep_checkpoints=1")
    assert (done.code, "sweep.keep_checkpoints=1: " in done.out) == (0, True)
    assert len({*(project / "sweep").glob("*/checkpoints")}) == 1
    assert all(
        json.loads(file.read_text())["status"] == "finished" for file in (project / "sweep").glob("*/result.json")
    )
    assert cli("sweep", "resume", "sweep", "sweep.keep_checkpoints=0").code == 0
    assert not {*(project / "sweep").glob("*/checkpoints")}
