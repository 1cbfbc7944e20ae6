from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli.stop import find_sweep_job
from lightkit.runs.lock import locked
from lightkit.sweep.controller import Controller
from lightkit.sweep.journal import Journal, read_journal
from lightkit.sweep.search import Grid
from tests.conftest import Outcome
from tests.sweep.test_controller import OPTIONS, Hanging, Seen, planned
from tests.waiting import until

Cli = Callable[..., Outcome]


@pytest.fixture
def sweep(project: Path) -> Path:
    folder = project / "outputs" / "sweeps" / "2026-01-31" / "12-00-00-grid"
    folder.mkdir(parents=True)
    planned(folder)
    return folder


@pytest.fixture
def running(sweep: Path) -> Iterator[Any]:
    """Runs two of the three jobs of the sweep, which end when they are told to; one of them hangs."""
    engine, done = Hanging("b"), threading.Event()

    def run() -> None:
        with locked(sweep), Journal(sweep) as journal:
            record = read_journal(sweep)
            Controller(record, journal, Grid(record.jobs.values()), engine, options=OPTIONS, display=Seen()).run()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: len(engine.running) == 2, "two jobs")
    yield engine
    (sweep / ".stop").touch()
    engine.told |= engine.hangs
    thread.join()


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("name", ["grid", "last", "outputs/sweeps/2026-01-31/12-00-00-grid"])
def test_one_job_ends_and_the_sweep_goes_on(cli: Cli, sweep: Path, name: str) -> None:
    done = cli("stop", f"{name}/a")
    assert (done.code, done.err) == (0, "")
    short = "outputs/sweeps/2026-01-31/12-00-00-grid"
    assert done.out.splitlines() == [
        "asked for a to save and to end",
        f"{short}/a stopped",
        f"the other jobs of the sweep go on; to end them, too:  lightkit stop {short}",
        f"to go on with this job once the sweep has ended:  lightkit sweep resume {short} --stopped",
    ]
    until(lambda: "c" in read_journal(sweep).started, "the next job")
    assert cli("stop", f"{name}/a").out == "nothing to stop: a is stopped\n"
    status = cli("sweep", "status", "last")
    assert "1 stopped" in status.out
    assert "stopped by `lightkit stop`, and not started again: a" in status.err


@pytest.mark.usefixtures("running")
def test_a_job_that_hangs_is_named_and_killed(cli: Cli, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.cli.logs.PATIENCE_SECONDS", 0.0)
    stopping = threading.Thread(target=lambda: said.append(cli("stop", "grid/b")))
    said = list[Outcome]()
    stopping.start()
    until(lambda: (sweep / "b" / ".stop").exists(), "the request")
    (sweep / "b" / ".stop").write_text("now\n")  # as another terminal does by --now
    stopping.join()
    assert "to kill it, and lose what is not saved:  lightkit stop --now outputs/" in said[0].err
    assert "/b stopped" in said[0].out


@pytest.mark.usefixtures("running")
def test_killing(cli: Cli, sweep: Path) -> None:
    done = cli("stop", "--now", "grid/b")
    assert done.out.splitlines()[0] == "asked for b to be killed"
    assert read_journal(sweep).ended["b"].status == "stopped"


def test_jobs_that_do_not_run(cli: Cli, sweep: Path, project: Path) -> None:
    with locked(sweep):
        assert cli("stop", "grid/c").out == "nothing to stop: c is waiting\n"
    assert "no such run" in cli("stop", "grid/z").err
    assert find_sweep_job("grid/z", project) is None
    assert find_sweep_job("grid", project) is None


def test_jobs_that_train_at_once_end_together(cli: Cli, sweep: Path) -> None:
    with Journal(sweep) as journal:
        journal.head(at_once=True)
        journal.started("a", None)
    with locked(sweep):
        done = cli("stop", "grid/a")
    assert (done.code, "this job trains at once with others" in done.err) == (1, True)
    assert not (sweep / "a").exists()
