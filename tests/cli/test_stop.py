from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lightkit.detached.following import ask_to_end
from lightkit.detached.liveness import look
from lightkit.runs import lock
from lightkit.runs.lock import boot_id, locked
from lightkit.sweep.controller import Controller
from lightkit.sweep.job import Grid
from lightkit.sweep.journal import Journal, read_journal
from tests.conftest import Cli, Outcome
from tests.detached.made import going_on, make_run, make_sweep
from tests.sweep.test_controller import OPTIONS, Hanging, Seen, planned
from tests.waiting import until

PLACE = "outputs/runs/2026-01-31/12-00-00-a"


def test_stopping_waits_until_a_run_has_saved(cli: Cli, project: Path) -> None:
    folder = make_run(project)
    with going_on(folder, seconds=0.3) as process:
        done = cli("stop", "a")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"asked process {process.pid} to save and to end",
        f"{PLACE} interrupted at step 7; go on with:  lightkit resume {PLACE}",
    ]
    assert not (folder / ".stop").exists()
    assert cli("stop", "a").out == f"nothing to stop: {PLACE} interrupted at step 7\n"


def test_somebody_asked_before(cli: Cli, project: Path) -> None:
    folder = make_run(project)
    with going_on(folder, seconds=3.0) as process:
        ask_to_end(look(folder))
        done = cli("stop", "a")
    assert done.out.splitlines()[0] == f"process {process.pid} was asked before; waiting for it"
    assert '"count": 1' in (folder / "result.json").read_text()


def test_ctrl_c_ends_the_waiting_alone(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_folder: Path, _seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lightkit.cli.logs.wait_until_free", interrupt)
    with going_on(make_run(project), seconds=60.0):
        done = cli("stop", "a")
    assert done.code == 130
    assert "what was asked to end still saves and ends; to wait for it:  lightkit wait a\n" in done.err


def test_killing(cli: Cli, project: Path) -> None:
    folders = [make_run(project), make_run(project, "b")]
    with going_on(folders[0]) as one, going_on(folders[1]) as other:
        done = cli("stop", "--now", "a", "b")
    assert [line.partition(";")[0] for line in done.out.splitlines()] == [
        f"killed process {one.pid}",
        f"killed process {other.pid}",
        f"{PLACE} died at step 8",
        f"{PLACE[:-1]}b died at step 8",
    ]


def claim(folder: Path, name: str, victim: subprocess.Popen[str]) -> None:
    """Write into the file of a lock that another process holds it, with all that is true of that one."""
    facts = {"pid": victim.pid, "host": socket.gethostname(), "boot": boot_id(), "born": lock._born(victim.pid)}
    (folder / name).write_text(f"process {victim.pid} on {socket.gethostname()}\n{json.dumps(facts)}\n")


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="only Linux tells who holds a lock")
@pytest.mark.parametrize(("kind", "words"), [("run", []), ("job", ["--now"]), ("sweep", ["--now"])])
def test_the_process_that_holds_the_lock_is_stopped_and_not_the_one_that_is_written_there(
    cli: Cli, project: Path, kind: str, words: list[str]
) -> None:
    sweep = make_sweep(project, "seed=0") if kind != "run" else None
    folder = make_run(project) if sweep is None else sweep / "seed=0" if kind == "job" else sweep
    with going_on(make_run(project, "other"), seconds=60.0) as victim, going_on(folder) as holder:
        claim(folder, ".lock", victim)
        claim(folder, ".job", victim)
        if kind == "run":
            assert {row["pid"] for row in json.loads(cli("ps", "--json").out)} == {victim.pid, holder.pid}
        done = cli("stop", *words, str(folder))
        assert done.code == 0, done.err
        assert f"process {holder.pid}" in done.out
        assert holder.wait() is not None
        assert victim.poll() is None
        victim.kill()


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="only Linux tells who holds a lock")
@pytest.mark.parametrize(
    ("how", "words"), [("nobody", []), ("link", ["--now"]), ("second name", ["--now"]), ("shared", ["--now"])]
)
def test_a_lock_that_is_of_something_else_ends_no_process(cli: Cli, project: Path, how: str, words: list[str]) -> None:
    other, folder = make_run(project, "other"), make_run(project)
    with going_on(other, seconds=60.0) as victim, ExitStack() as stack:
        if how == "link":
            (folder / ".lock").symlink_to(other / ".lock")
        elif how == "second name":
            os.link(other / ".lock", folder / ".lock")
        else:
            claim(folder, ".lock", victim)
        if how == "shared":  # somebody looks at it for ever
            file = stack.enter_context((folder / ".lock").open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH)
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        done = cli("stop", *words, "a")
        assert ("nothing to stop" in done.out) or "it is not known which process runs there" in done.err
        assert victim.poll() is None
        victim.kill()


def test_sweeps(cli: Cli, project: Path) -> None:
    sweep = make_sweep(project, "seed=0", "seed=1")
    assert "nobody runs" in cli("stop", "grid").out
    with going_on(sweep / "seed=1") as process:
        done = cli("stop", "--now", "grid")
        assert process.wait() == -9
    assert f"killed process {process.pid}" in done.out
    assert cli("stop", "--now", "grid").out.startswith("nothing to stop: outputs/")
    with going_on(sweep) as its_own, going_on(sweep / "seed=1") as job:
        said = cli("stop", "--now", "grid").out.splitlines()
        assert (its_own.wait(), job.wait()) == (-9, -9)
    assert said[:2] == [f"killed process {its_own.pid}", f"killed process {job.pid}"]
    assert "/seed=1 died" in said[2]
    assert said[3] == "outputs/sweeps/2026-01-31/13-00-00-grid finished"  # as its journal says of the jobs


def test_waiting_for_several_ends_with_the_first_that_went_wrong(cli: Cli, project: Path) -> None:
    make_run(project, "a", status="finished", steps=24)
    make_run(project, "b", status="failed", exit_status=3, reason="the loss is nan")
    make_run(project, "c", status="failed", exit_status=4)
    assert cli("wait", "a").code == 0
    done = cli("wait", "a", "b", "c")
    assert done.code == 3
    assert f"{PLACE} finished after 24 steps\n" in done.err
    assert "12-00-00-b failed at step 8: the loss is nan\n" in done.err


def test_waiting_goes_on_while_a_run_is_resumed_at_once(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(project)
    monkeypatch.setattr("lightkit.cli.logs._RESUMED_SECONDS", 0.01)
    waits = list[Path]()
    with going_on(folder) as process:

        def free(place: Path) -> bool:
            waits.append(place)
            if waits[1:]:  # it has gone on, and ends now
                process.terminate()
                process.wait()
            return True

        monkeypatch.setattr("lightkit.cli.logs.wait_until_free", free)
        done = cli("wait", "a")
    assert (done.code, done.out, done.err) == (143, "", f"{PLACE} interrupted at step 7\n")
    assert waits == [folder, folder]


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
@pytest.mark.parametrize("name", ["grid", pytest.param("last", marks=pytest.mark.thorough)])
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
    stopping = threading.Thread(target=lambda: done.append(cli("stop", "grid/b")))
    done = list[Outcome]()
    stopping.start()
    until(lambda: (sweep / "b" / ".stop").exists(), "the request")
    (sweep / "b" / ".stop").write_text("now\n")  # as another terminal does by --now
    stopping.join()
    assert "to kill it, and lose what is not saved:  lightkit stop --now outputs/" in done[0].err
    assert "/b stopped" in done[0].out
    assert read_journal(sweep).ended["b"].status == "stopped"


def test_jobs_that_do_not_run_alone(cli: Cli, sweep: Path) -> None:
    with locked(sweep):
        assert cli("stop", "grid/c").out == "nothing to stop: c is waiting\n"
    assert "no such run" in cli("stop", "grid/z").err
    with Journal(sweep) as journal:
        journal.head(at_once=True)
        journal.started("a", None)
    with locked(sweep):
        done = cli("stop", "grid/a")
    assert (done.code, "this job trains at once with others" in done.err) == (1, True)
    assert not (sweep / "a").exists()
