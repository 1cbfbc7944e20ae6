"""Real runs that outlive the terminal they were started from."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
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


def test_from_a_terminal_that_is_closed_to_the_end(terminal: Start, cli: Run, project: Path, whole: Path) -> None:
    """A run that is left, watched, stopped and gone on with from other terminals ends as one that stayed in its own."""
    shell = terminal("train", "-d", "name=mine", *OWN, at(9, "hold"))
    assert shell.wait() == 0, shell.shown
    folder = run_of(project)
    reach(project)
    standing = look(folder)
    assert (standing.state, standing.detached) == ("running", True)
    assert standing.pid is not None
    assert f"process {standing.pid}" in shell.shown
    for line in ("lightkit ps", "lightkit logs -f mine", "lightkit attach mine", "lightkit stop mine"):
        assert f"\n  {line} " in shell.shown
    assert "lightkit resume -d mine" in shell.shown
    session, tty = facts(standing.pid)[3:5]
    assert session != str(shell.running.pid)
    assert session != str(standing.pid), "the leader of a session could get a terminal again"
    assert tty == "0"
    shell.close()
    os.kill(standing.pid, signal.SIGHUP)  # as some shells send on top
    (entry,) = json.loads(cli("ps", "--json").out)
    assert (entry["name"], entry["state"], entry["total_steps"]) == ("mine", "running", 21)
    assert entry["step"] >= 1
    assert re.match(r"\[epoch 1/3, step | *1/3 ", cli("logs", "mine", "-n", "1").out)

    watching = terminal("attach", "mine", TERM="xterm")
    until(lambda: "/21" in watching.shown, "the bar")
    watching.type(b"\x03")
    assert watching.wait() == 0
    assert "detached, and it goes on; back to it:  lightkit attach mine" in watching.shown
    assert look(folder).state == "running"

    stopping = terminal("stop", "mine")
    until(lambda: "to save and to end" in stopping.shown, "the request")
    again = terminal("stop", "mine")
    until(lambda: "was asked before" in again.shown, "the second request")
    (project / "go").touch()
    assert (stopping.wait(), again.wait()) == (0, 0)
    step = result(folder)["steps"]
    assert f"interrupted at step {step}; go on with:  lightkit resume -d outputs/runs/" in stopping.shown
    assert CheckpointStore(folder / "checkpoints").entries()[-1].step == step
    assert 9 <= step <= 10
    assert result(folder)["exit_status"] == cli("wait", "mine").code == 143
    assert not (folder / ".progress.json").exists()

    (project / "fine").touch()
    assert terminal("resume", "-d", "mine").wait() == 0
    attached = terminal("attach", "mine", TERM="xterm")
    assert cli("wait", "mine").code == 0
    assert attached.wait() == 0, attached.shown
    assert_same_end(whole, folder)
    printed = (folder / "output.log").read_text()
    assert re.search(r"^  3/3  21/21 +\S+", printed, re.MULTILINE)
    assert "\x1b" not in printed


@pytest.mark.thorough(first=0)
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
    standing = ended(folder)
    assert (standing.state, standing.pid) == ("died", None)
    assert 7 <= (standing.step or 0) <= 9
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
        done = cli("train", "-d", *args)
        assert done.code == 2, args
        assert done.err.startswith("error: "), args
    assert cli("resume", "-d", "last").code == 2
    assert cli("resume", "-d").code == 2
    assert cli("resume", "--all-lost").code == 2
    assert cli("sweep", "status", "last", "-d").code == 2
    assert not (project / "outputs").exists()


def test_what_is_wrong_in_the_other_process_is_told_here(terminal: Start, project: Path) -> None:
    shell = terminal("train", "-d", "data=csv", "data.dataset.path=none.csv", "data.dataset.target=x")
    assert shell.wait() == 2
    assert "error: data.dataset.path: there is no such file" in shell.shown
    assert "more: lightkit explain LK201" in shell.shown
    assert "goes on" not in shell.shown
    assert not (project / "outputs").exists(), "nothing is left of it"


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["killed", "Ctrl-C", "hung up", "waits for a GPU"])
def test_before_it_has_begun(terminal: Start, project: Path, how: str) -> None:
    (project / "slow.py").write_text(SLOW)
    shell = terminal("train", "-d", *OWN, "data.dataset._target_=slow.Slow")
    reach(project, "reading")
    folder = run_of(project)
    standing = look(folder)
    assert standing.state == "starting"
    assert standing.pid is not None
    if how in ("hung up", "waits for a GPU"):  # which may take hours
        shell.close() if how == "hung up" else (folder / run_files.WAITING).touch()
        assert shell.wait() == (128 + signal.SIGHUP if how == "hung up" else 0)
        assert look(folder).state == "starting"
        (project / "go").touch()
        assert ended(folder).state == "finished"
        return
    if how == "killed":
        os.kill(standing.pid, signal.SIGKILL)
        assert shell.wait() == 1
        assert f"error: the process has ended before it had begun (process {standing.pid})" in shell.shown
    else:
        shell.type(b"\x03")
        assert shell.wait() == 130
        until(lambda: not alive(standing.pid or 0), "the process to end")
    assert not (project / "outputs").exists()


def test_a_folder_in_which_somebody_works_is_left_alone(cli: Run, process: Run, project: Path) -> None:
    assert process("train", "hydra.run.dir=run", "data=wine", "trainer.steps=2").code == 0
    for name in (".lock", ".job"):
        with locked(project / "run", name):
            refused = cli("resume", "-d", "run", "trainer.steps=3")
        assert refused.code == 75
        assert f"process {os.getpid()} on " in refused.err
    assert result(project / "run")["steps"] == 2


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_crash_in_compiled_code_leaves_its_place(terminal: Start, project: Path) -> None:
    shell = terminal("train", "-d", *OWN, at(9, ":SEGV"), "hydra.run.dir=not/yet", "resume=auto")
    assert shell.wait() in (0, 1)
    standing = ended(project / "not" / "yet")
    assert (standing.state, standing.error) == ("died", "Fatal Python error: Segmentation fault")
    assert "faulty.py" in (standing.folder / "output.log").read_text()


@pytest.mark.thorough
def test_several_processes_of_a_run_outlive_the_terminal_together(terminal: Start, project: Path) -> None:
    shell = terminal("train", "-d", *OWN, "device.parallel=ddp", "device.nproc=2", "data.drop_last=true", at(9, "hold"))
    assert shell.wait() == 0, shell.shown
    shell.close()
    reach(project)
    folder = run_of(project)
    standing = look(folder)
    assert standing.state == "running"
    assert str(standing.pid) in shell.shown, "the one that has started the others"
    (project / "go").touch()
    assert ended(folder).state == "finished"


def test_a_sweep_outlives_its_terminal(terminal: Start, project: Path) -> None:
    on_end = 'on_end=[sh, -c, "env | grep ^LIGHTKIT_ > told"]'
    shell = terminal("train", "-m", "-d", *OWN, "seed=0,1", "sweep.slots=1", at(3, "hold"), on_end)
    assert shell.wait() == 0, shell.shown
    shell.close()
    reach(project)
    (folder,) = project.glob("outputs/sweeps/*/*")
    assert "lightkit sweep resume -d custom_custom" in shell.shown
    standing = look(folder)
    assert (standing.state, standing.detached) == ("running", True)
    assert not (project / "told").exists(), "jobs are no sweep"
    (project / "go").touch()
    assert ended(folder).state == "finished"
    told = (project / "told").read_text()
    assert f"LIGHTKIT_RUN={folder}\n" in told
    assert "LIGHTKIT_STATUS=finished\n" in told
    assert {job.name: look(job).state for job in folder.glob("seed=*")} == {"seed=0": "finished", "seed=1": "finished"}


@pytest.mark.thorough
def test_a_command_at_the_end_that_never_ends_is_ended_by_ctrl_c_alone(terminal: Start, project: Path) -> None:
    shell = terminal(*TRAIN, "on_end=[sh, -c, 'sleep 1; touch called; sleep 1000']")
    reach(project, "called")
    shell.type(b"\x03")
    assert shell.wait() == 0, "that of the run"
    assert "on_end: " in shell.shown
    assert result(project / "run")["status"] == "finished"
