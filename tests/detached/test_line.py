"""Runs that wait for others: in queues, after runs, through kills and reboots."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightkit.detached import detach, line
from lightkit.detached.detach import Detached
from lightkit.detached.liveness import look, wait_until_free
from tests.conftest import Outcome
from tests.detached.made import make_run, make_sweep
from tests.detached.terminal import Terminal
from tests.faults.harness import TRAIN, assert_same_end, at
from tests.waiting import until
from tests.warm import Warm

Start = Callable[..., Terminal]
Run = Callable[..., Outcome]
OWN = (*TRAIN[2:], "checkpoint.every_steps=1")


def run_of(project: Path, name: str) -> Path:
    (found,) = project.glob(f"outputs/*/*/*-{name}")
    return found


def waits(cli: Run) -> dict[str, str]:
    """What is told of each run that waits."""
    return {entry["name"]: entry["waits"] for entry in json.loads(cli("ps", "--json").out) if entry["waits"]}


def finish(*folders: Path) -> None:
    for folder in folders:
        until(partial(has_finished, folder), f"{folder} to finish")


def has_finished(folder: Path) -> bool:
    return look(folder).state == "finished" and wait_until_free(folder, 0)


def kill(folder: Path) -> int:
    """Kill the process that works or waits in a folder; returns its number."""
    pid = look(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def in_order(*folders: Path) -> bool:
    """Whether each run began when the one before had ended."""
    ends = [(folder / "result.json").stat().st_mtime_ns for folder in folders]
    begins = [(folder / "rows.npz").stat().st_mtime_ns for folder in folders]
    return all(end <= begin for end, begin in zip(ends, begins[1:]))


def test_one_at_a_time_in_the_order_given_whoever_is_killed_or_stopped(
    terminal: Start, cli: Run, project: Path
) -> None:
    first = terminal("train", "--queue", "gpu 0", "name=one", *OWN, at(9, "hold"))
    assert first.wait() == 0, first.shown
    assert "one goes on without this terminal" in first.shown
    until((project / "reached").exists, "the run to come to its hold")
    for number, name in enumerate(("two", "three", "four"), 1):
        shell = terminal("train", "-d", "--queue=gpu 0", f"name={name}", *OWN)
        assert shell.wait() == 0, shell.shown
        assert f"{name} waits (place {number} in queue gpu 0, after " in shell.shown
        assert f"lightkit stop {name}" in shell.shown
    assert terminal("train", "--after", "two", "--after", "four", "name=last", *OWN).wait() == 0
    assert waits(cli) == {
        "two": "place 1 in queue gpu 0, after one (running)",
        "three": "place 2 in queue gpu 0, after two (waiting)",
        "four": "place 3 in queue gpu 0, after three (waiting)",
        "last": "after two (waiting), after four (waiting)",
    }
    assert "\nthree waiting: place 2 in queue gpu 0, after two (waiting)\n" in cli("ps").out
    assert "-two waiting: place 1 in queue gpu 0, after one (running)\n" in cli("logs", "two").err
    folders = [run_of(project, name) for name in ("one", "two", "three", "four", "last")]
    before = kill(folders[1])
    until(lambda: look(folders[1]).pid not in (None, before), "the next one to start it again")
    stopped = cli("stop", "three")
    assert stopped.out.endswith("-three is out of the line; it had not begun\n"), stopped
    assert not folders.pop(2).exists()
    watching = terminal("attach", "last")
    until(lambda: "last waiting: after two (waiting), after four (waiting)" in watching.shown, "what it waits for")
    (project / "go").touch()
    finish(*folders)
    assert in_order(*folders)
    assert watching.wait() == 0, watching.shown
    assert line.places() == []
    assert waits(cli) == {}


def test_what_waits_for_a_run_begins_when_that_has_finished_not_when_it_has_failed(
    terminal: Start, cli: Run, project: Path
) -> None:
    failing = "++trainer.callbacks.then={_target_: faulty.At, step: 10, what: memory}"
    assert terminal("train", "-d", "name=one", *OWN, at(9, "hold"), failing).wait() == 0
    assert terminal("train", "--after", "one", "--queue", "a", "name=two", *OWN).wait() == 0
    assert terminal("train", "--queue", "a", "name=three", *OWN).wait() == 0  # which waits for no other run
    one, two, three = (run_of(project, name) for name in ("one", "two", "three"))
    finish(three)
    (project / "go").touch()
    until(lambda: look(one).state == "failed", "the run to fail")
    until(lambda: waits(cli) == {"two": "place 1 in queue a, after one (failed)"}, "what is told of the other")
    (project / "fine").touch()
    assert terminal("resume", "-d", "one").wait() == 0
    finish(one, two)
    assert in_order(one, two)


def test_no_run_waits_for_itself(terminal: Start, cli: Run, project: Path) -> None:
    assert cli("train", "name=base", *OWN).code == 0
    assert terminal("train", "-d", "name=one", *OWN, at(9, "hold")).wait() == 0
    assert terminal("train", "--after", "base", "--after", "one", "name=two", *OWN).wait() == 0
    for other in ("base", "two"):
        shell = terminal("resume", "base", "trainer.epochs=50", "--after", other)
        assert (shell.wait(), "would wait for itself" in shell.shown) == (2, True), shell.shown
    assert list(waits(cli)) == ["two"]
    (project / "go").touch()
    finish(run_of(project, "one"), run_of(project, "two"))


def test_after_a_reboot_what_ran_goes_on_and_what_waited_begins_once(
    terminal: Start,
    cli: Run,
    project: Path,
    whole: Path,
    warm: Warm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(programs(tmp_path)), prepend=os.pathsep)
    shells = [terminal("train", "--queue", "a", "name=one", *OWN, at(9, "hold"))]
    shells += [terminal("train", "--queue", "a", "name=two", *OWN)] if shells[0].wait() == 0 else []
    shells += [terminal("train", "-m", "--queue", "a", "name=three", *OWN, "seed=1,2")] if shells[1].wait() == 0 else []
    assert shells[2].wait() == 0, shells[2].shown
    assert not any("reboot" in shell.shown for shell in shells), "systemd cares for it"
    until((project / "reached").exists, "the run to come to its hold")
    folders = [run_of(project, name) for name in ("one", "two", "three")]
    for folder in folders[::-1]:
        kill(folder)
        assert wait_until_free(folder)
    told = waits(cli)
    assert [*told] == ["two", "three"]
    assert all(
        text.endswith("its process is gone; to start it:  lightkit ps --start-waiting") for text in told.values()
    )
    for lock in (folders[0] / ".job", folders[0] / ".lock"):
        text = lock.read_text()
        lock.write_text(text.replace(json.loads(text.splitlines()[1])["boot"], "of-another-day"))
    assert look(folders[0]).state == "lost"
    (project / "fine").touch()
    enabled = (tmp_path / "asked").read_text().splitlines()[-1]
    assert enabled.startswith("--user enable /")
    (command,) = [text for text in Path(enabled.split()[-1]).read_text().splitlines() if text.startswith("ExecStart=")]
    words = shlex.split(command.removeprefix("ExecStart=-"))
    assert words[-2:] == ["ps", "--start-waiting"]
    assert words[-5:-2] == [sys.executable, "-m", "lightkit"]
    again = [*words[:-5], str(warm.client(tmp_path / "again", "-m", "lightkit")), *words[-2:]]
    starters = [subprocess.Popen(again, cwd="/", stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [starter.wait() for starter in starters] == [0, 0]
    finish(*folders)
    assert in_order(folders[0], folders[1])
    assert_same_end(whole, folders[0])
    assert (folders[1] / "run.log").read_text().count("runlog: run     ") == 1
    assert {job.name: look(job).state for job in folders[2].glob("seed=*")} == {
        "seed=1": "finished",
        "seed=2": "finished",
    }
    assert line.places() == []


def programs(place: Path) -> Path:
    """Stand-ins for those of systemd, of a user who lingers; what is asked of `systemctl` is in `asked`."""
    texts = {"systemctl": f'echo "$*" >> {place}/asked', "loginctl": "echo Linger=yes; echo KillUserProcesses=no"}
    (place / "programs").mkdir()
    for name, text in texts.items():
        (place / "programs" / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / "programs" / name).chmod(0o755)
    return place / "programs"


@pytest.fixture
def lined(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started from now on joins the line, and its process is gone."""

    def detached(_folder: Path, work: Callable[[], int], **_options: Any) -> Detached:
        assert work() == 0
        return Detached(7, None)

    monkeypatch.setattr(detach, "detach", detached)
    monkeypatch.setattr(line, "in_turn", lambda *_: 0)
    monkeypatch.setenv("PATH", "")  # no systemd


def test_the_command_that_starts_it_again_says_the_same_later(cli: Run, lined: None, project: Path) -> None:
    assert cli("train", "data=wine", "name=base", "trainer.steps=2", "device=cpu", "logger=quiet").code == 0
    base, grid = run_of(project, "base"), make_sweep(project, "seed=0")
    starting = ("train", "--queue", "a", "name=other", "--from")
    for typed, expected in [
        ((*starting, "last"), ["--from", str(base), r"hydra.run.dir='PLACE'", "resume=auto"]),
        (
            ("train", "-m", "data=wine", "seed=0,1", "--queue=a"),
            ["--queue=a", "hydra.sweep.dir='PLACE'", "resume=auto"],
        ),
        (("resume", "--queue", "a", "base", "trainer.epochs=50"), [str(base), "trainer.epochs=50"]),
        (("sweep", "resume", "grid", "--after", "base"), ["resume", str(grid), "--after", "base"]),
    ]:
        done = cli(*typed)
        assert done.code == 0, done.err
        assert "note: after a reboot, this starts what waits:  lightkit ps --start-waiting" in done.err
        place = line.places()[-1]
        assert place.command[-len(expected) :] == [text.replace("PLACE", str(place.folder)) for text in expected]
        assert (place.cwd, place.after) == (str(project), [base] if "--after" in typed else [])
        assert "LIGHTKIT_IN_LINE=1" in place.command


def test_what_somebody_else_wrote_into_the_line_counts_for_nothing(
    cli: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = make_run(project, "base", status="interrupted"), project / "elsewhere"
    home.mkdir()
    monkeypatch.setenv("LIGHTKIT_PROJECT", str(project))
    with monkeypatch.context() as patch:
        patch.chdir(home)
        line.join(folder, "a", [], ["--version"])
    home.rmdir()
    (place,) = line.places()
    (folder / ".waiting").write_text("place 1")
    text = place.path.read_text()
    for changed in (text.replace("--version", "--verbose"), "{}", "[", '{"place": 1, "mark": {}}', "\udcff"):
        place.path.write_text(changed, errors="surrogateescape")
        assert line.places() == []
        line.start_waiting(resume=True)
        assert json.loads(cli("ps", "--json").out)[0]["waits"] == ""
    place.path.write_text(text)
    assert line.places() == [place]
    line.start_waiting()  # its working directory is gone, which may be for a while
    assert line.places() == [place]
    assert cli("stop", "base").out.count("\n") == 1
    assert (line.places(), look(folder).state) == ([], "interrupted")


def test_what_is_mistyped_never_joins_the_line(cli: Run, project: Path) -> None:
    for args in (
        ["optim.lrr=1", "--queue", "a"],
        ["--after", "nowhere"],
        ["--queue", ""],
        ["--queue", "a", "sweep.slots=2"],
    ):
        done = cli("train", *args)
        assert (done.code, done.err[:7]) == (2, "error: "), (args, done.err)
    assert not (project / "outputs").exists()
    assert cli("train", "--queue", "a", "data=wine", "--cfg", "job").code == 0
    assert not (project / "outputs").exists()


def test_queues_whose_names_look_alike_have_locks_of_their_own(project: Path) -> None:
    assert len({line._lock_of(name) for name in ("a/b", "a-b", "a b", "!!!", "run", "???")}) == 6
