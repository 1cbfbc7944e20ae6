"""A real run that is watched, stopped and gone on with from other terminals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from lightkit.checkpoint.store import CheckpointStore
from lightkit.detached.liveness import look
from tests.conftest import Outcome
from tests.detached.terminal import Terminal
from tests.detached.test_detach import OWN, reach, run_of
from tests.faults.harness import assert_same_end, at, result
from tests.waiting import until

Start = Callable[..., Terminal]
Run = Callable[..., Outcome]


def test_from_ps_to_the_end(terminal: Start, cli: Run, project: Path, whole: Path) -> None:
    shell = terminal("train", "-d", "name=mine", *OWN, at(9, "hold"))
    assert shell.wait() == 0, shell.shown
    shell.close()
    reach(project)
    folder = run_of(project)
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
