"""Real runs that outlive the terminal they were started from."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.common import run_files
from lightkit.detached.detach import _Handshake
from lightkit.detached.liveness import Standing, look, wait_until_free
from lightkit.runs.lock import locked
from tests.conftest import Outcome
from tests.detached.terminal import Terminal
from tests.faults.harness import TRAIN, alive, assert_same_end, at, children, result
from tests.waiting import until

Start = Callable[..., Terminal]
Run = Callable[..., Outcome]
OWN = TRAIN[2:]
"""The run in a folder of its own in `outputs/`."""
SLOW = """
import time
from pathlib import Path
from faulty import Samples

class Slow(Samples):
    def __init__(self) -> None:
        super().__init__()
        Path("reading").touch()
        while not Path("go").exists():
            time.sleep(0.01)
"""
"""A data set that takes long to read."""


def run_of(project: Path) -> Path:
    """The folder of the only run."""
    (found,) = project.glob("outputs/runs/*/*")
    return found


def reach(project: Path, what: str = "reached") -> None:
    until((project / what).exists, "the run to come to its hold")


def ended(folder: Path) -> Standing:
    """How a run has ended, once it has."""
    until(lambda: wait_until_free(folder, timeout=0), "the run to end")
    return look(folder)


def facts(pid: int) -> list[str]:
    """State, parent, group, session, terminal, … of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_a_run_outlives_its_terminal_and_ends_as_one_that_stayed(terminal: Start, project: Path, whole: Path) -> None:
    shell = terminal("train", "-d", "name=mine", *OWN, at(9, "hold"))
    assert shell.wait() == 0, shell.shown
    folder = run_of(project)
    reach(project)
    found = look(folder)
    assert (found.state, found.detached) == ("running", True)
    assert found.pid is not None
    assert f"process {found.pid}" in shell.shown
    for line in ("lightkit ps", "lightkit logs -f mine", "lightkit attach mine", "lightkit stop mine"):
        assert f"\n  {line} " in shell.shown
    assert "lightkit resume -d mine" in shell.shown
    session, tty = facts(found.pid)[3:5]
    assert session != str(shell.running.pid)
    assert session != str(found.pid), "the leader of a session could get a terminal again"
    assert tty == "0"
    shell.close()
    os.kill(found.pid, signal.SIGHUP)  # as some shells send on top
    (project / "go").touch()
    assert ended(folder).state == "finished"
    assert_same_end(whole, folder)
    printed = (folder / "output.log").read_text()
    assert re.search(r"^  3/3  21/21 +\S+", printed, re.MULTILINE)
    assert "\x1b" not in printed


def test_a_run_that_is_not_detached_ends_with_its_terminal(terminal: Start, project: Path) -> None:
    """So the terminals of these tests are as good as real ones."""
    shell = terminal("train", *OWN, at(9, "hold"))
    reach(project)
    shell.close()
    (project / "go").touch()
    assert shell.wait() == 128 + signal.SIGHUP
    assert look(run_of(project)).state == "interrupted"


def test_a_killed_run_died_a_rebooted_machines_is_lost_and_goes_on_as_if_nothing_was(
    terminal: Start, cli: Run, project: Path, whole: Path
) -> None:
    shell = terminal("train", "-d", *OWN, at(9, "hold"), "checkpoint.every_steps=1")
    assert shell.wait() == 0, shell.shown
    folder = run_of(project)
    reach(project)
    pid = look(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    found = ended(folder)
    assert (found.state, found.pid) == ("died", None)
    assert 7 <= (found.step or 0) <= 9
    assert "no run has ended with its machine" in cli("resume", "-d", "--all-lost").out

    for name in (".lock", ".job"):
        text = (folder / name).read_text()
        boot = json.loads(text.splitlines()[1])["boot"]
        (folder / name).write_text(text.replace(boot, "of-another-day"))
    assert look(folder).state == "lost"
    (project / "fine").touch()
    shell = terminal("resume", "-d", "--all-lost")
    assert shell.wait() == 0, shell.shown
    assert " goes on without this terminal: process " in shell.shown
    shell.close()
    assert ended(folder).state == "finished"
    assert_same_end(whole, folder)


def test_what_is_mistyped_never_detaches(cli: Run, project: Path) -> None:
    for args in (["optim.lrr=1"], ["data=nowhere"], ["-m", "seed=0,x"], ["sweep.slots=2"], ["--from", "nowhere"]):
        found = cli("train", "-d", *args)
        assert found.code == 2, args
        assert found.err.startswith("error: "), args
    assert cli("resume", "-d", "last").code == 2
    assert cli("resume", "-d").code == 2
    assert cli("resume", "--all-lost").code == 2
    assert cli("sweep", "status", "last", "-d").code == 2
    assert not (project / "outputs").exists()


def test_what_is_wrong_in_the_other_process_is_told_here(terminal: Start, project: Path) -> None:
    shell = terminal("train", "-d", *OWN, "model._target_=faulty.Net", "model.number=x")
    missing = terminal("train", "-d", "data=csv", "data.dataset.path=none.csv", "data.dataset.target=x")
    assert missing.wait() == 2
    assert "error: data.dataset.path: there is no such file" in missing.shown
    assert "more: lightkit explain LK201" in missing.shown
    assert "goes on" not in missing.shown
    assert shell.wait() == 2
    assert not (project / "outputs").exists(), "nothing is left of it"


def test_a_process_that_is_killed_before_it_begins_is_told_of(terminal: Start, project: Path) -> None:
    (project / "slow.py").write_text(SLOW)
    shell = terminal("train", "-d", *OWN, "data.dataset._target_=slow.Slow")
    reach(project, "reading")
    pid = look(run_of(project)).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert shell.wait() == 1
    assert f"error: the process has ended before it had begun (process {pid})" in shell.shown
    assert not (project / "outputs").exists()


def test_ctrl_c_before_it_has_begun_ends_it(terminal: Start, project: Path) -> None:
    (project / "slow.py").write_text(SLOW)
    shell = terminal("train", "-d", *OWN, "data.dataset._target_=slow.Slow")
    reach(project, "reading")
    pid = look(run_of(project)).pid
    assert pid is not None
    shell.type(b"\x03")
    assert shell.wait() == 130
    until(lambda: not alive(pid), "the process to end")
    assert not (project / "outputs").exists()


def test_a_terminal_that_is_closed_before_it_has_begun_ends_nothing(terminal: Start, project: Path) -> None:
    (project / "slow.py").write_text(SLOW)
    shell = terminal("train", "-d", *OWN, "data.dataset._target_=slow.Slow")
    reach(project, "reading")
    folder = run_of(project)
    assert look(folder).state == "starting"
    shell.close()
    assert shell.wait() == 128 + signal.SIGHUP
    assert look(folder).state == "starting"
    (project / "go").touch()
    assert ended(folder).state == "finished"


def test_a_folder_in_which_somebody_works_is_left_alone(cli: Run, process: Run, project: Path) -> None:
    assert process("train", "hydra.run.dir=run", "data=wine", "trainer.steps=2").code == 0
    for name in (".lock", ".job"):
        with locked(project / "run", name):
            found = cli("resume", "-d", "run", "trainer.steps=3")
        assert found.code == 75
        assert f"process {os.getpid()} on " in found.err
    assert result(project / "run")["steps"] == 2


def test_loader_processes_that_are_left_over_do_not_keep_the_lock(terminal: Start, project: Path) -> None:
    shell = terminal("train", "-d", *OWN, at(9, "hold"), "data.num_workers=1")
    assert shell.wait() == 0, shell.shown
    reach(project)
    folder = run_of(project)
    pid = look(folder).pid
    assert pid is not None
    workers = children(pid)
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)  # it does not notice that its parent is gone
    os.kill(pid, signal.SIGKILL)
    try:
        assert ended(folder).state == "died"
        assert all(map(alive, workers))
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)


def test_a_crash_in_compiled_code_leaves_its_place(terminal: Start, project: Path) -> None:
    shell = terminal("train", "-d", *OWN, at(9, ":SEGV"), "hydra.run.dir=not/yet", "resume=auto")
    assert shell.wait() in (0, 1)
    found = ended(project / "not" / "yet")
    assert (found.state, found.error) == ("died", "Fatal Python error: Segmentation fault")
    assert "faulty.py" in (found.folder / "output.log").read_text()


@pytest.mark.thorough
def test_several_processes_of_a_run_outlive_the_terminal_together(terminal: Start, project: Path) -> None:
    shell = terminal("train", "-d", *OWN, "device.parallel=ddp", "device.nproc=2", "data.drop_last=true", at(9, "hold"))
    assert shell.wait() == 0, shell.shown
    shell.close()
    reach(project)
    folder = run_of(project)
    found = look(folder)
    assert found.state == "running"
    assert str(found.pid) in shell.shown, "the one that has started the others"
    (project / "go").touch()
    assert ended(folder).state == "finished"


def test_a_sweep_outlives_its_terminal(terminal: Start, project: Path) -> None:
    told = 'on_end=[sh, -c, "env | grep ^LIGHTKIT_ > told"]'
    shell = terminal("train", "-m", "-d", *OWN, "seed=0,1", "sweep.slots=1", at(3, "hold"), told)
    assert shell.wait() == 0, shell.shown
    shell.close()
    reach(project)
    (folder,) = project.glob("outputs/sweeps/*/*")
    assert "lightkit sweep resume -d custom_custom" in shell.shown
    found = look(folder)
    assert (found.state, found.detached) == ("running", True)
    assert not (project / "told").exists(), "jobs are no sweep"
    (project / "go").touch()
    assert ended(folder).state == "finished"
    told = (project / "told").read_text()
    assert f"LIGHTKIT_RUN={folder}\n" in told
    assert "LIGHTKIT_STATUS=finished\n" in told
    assert {job.name: look(job).state for job in folder.glob("seed=*")} == {"seed=0": "finished", "seed=1": "finished"}


def test_a_run_that_waits_for_a_gpu_has_begun(tmp_path: Path) -> None:
    """Who has detached it gets the terminal back; the wait may take hours."""
    (tmp_path / run_files.JOB_LOCK).touch()
    hands = _Handshake(tmp_path, receive=-1, middle=-1)
    hands._text = b"pid 1\n"
    assert not hands._has_begun()
    (tmp_path / run_files.WAITING).touch()
    assert hands._has_begun()
