"""What is promised of every detached run and of every look, many times over; `-s` shows the figures."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lightkit.detached.liveness import look, wait_until_free
from tests.detached.terminal import Terminal
from tests.waiting import until

RUNS, LOOKS = 50, 200
CHEAP = ("data=wine", "trainer.steps=12", "logger.tensorboard.enabled=false", "metrics.figures=[]")
ACT = """
import json, sys
from pathlib import Path
from lightkit.runs.lock import locked
folder = Path(sys.argv[1])
def told():
    print("done", flush=True)
    return sys.stdin.readline().strip()
with locked(folder, ".job", detached=True):
    word = told()
    with locked(folder):
        (folder / "result.json").unlink(missing_ok=True)
        word = told() if word == "run" else word
        if word not in ("run", ""):
            (folder / "result.json").write_text(json.dumps({"status": word}))
print("over", flush=True)
"""
"""A process that does to a folder what a run does, a word at a time; without one it ends as by an error in lightkit."""

LOOK = """
import sys
from pathlib import Path
from lightkit.detached.liveness import look
while True:
    look(Path(sys.argv[1]))
"""


@pytest.mark.thorough
def test_every_detached_run_outlives_its_terminal(terminal: Callable[..., Terminal], project: Path) -> None:
    """Half of the terminals are closed before the run has begun, half of them after that."""
    states = Counter[str]()
    for number in range(RUNS):
        shell = terminal("train", "-d", *CHEAP, f"hydra.run.dir=run{number}")
        folder = project / f"run{number}"
        if number % 2:
            until((folder / ".job").exists, "the process to leave its terminal")
        else:
            assert shell.wait() == 0, shell.shown
        shell.close()
        shell.running.wait()
        until(lambda folder=folder: wait_until_free(folder, timeout=0), "the run to end")
        states[look(folder).state] += 1
    sys.stdout.write(f"\n{states['finished']} of {RUNS} runs outlived their terminals\n")
    assert states == {"finished": RUNS}


@pytest.mark.thorough
def test_every_look_finds_the_state(tmp_path: Path) -> None:
    """A folder goes through the lives of runs at random; each look must find what was done to it."""
    draw, right, seconds = random.Random(0), 0, 0.0
    state = "starting"

    def check() -> None:
        nonlocal right, seconds
        began = time.perf_counter()
        found = look(tmp_path).state
        seconds += time.perf_counter() - began
        assert found == state
        right += 1

    check()
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    while right < LOOKS:
        command = [sys.executable, "-c", ACT, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for word in ("begin", "run", draw.choice(["finished", "paused", "interrupted", "failed", "", "kill"])):
                if word == "kill":
                    process.kill()
                    process.wait()
                    state = "died"
                elif word != "begin":
                    process.stdin.write(f"{word}\n")
                    process.stdin.flush()
                if word != "kill":
                    process.stdout.readline()
                    state = {"begin": "starting", "run": "running", "": "died"}.get(word, word)
                check()
                with suppress(OSError):
                    os.kill(process.pid, 0)  # what follows is the same whether the process is there or not
        if state == "died" and draw.random() < 0.5:
            for name in (".lock", ".job"):
                first, second, *rest = (tmp_path / name).read_text().splitlines()
                facts = json.dumps(json.loads(second) | {"boot": "of another day", "pid": os.getpid()})
                written = (tmp_path / name).stat().st_mtime_ns
                (tmp_path / name).write_text("\n".join([first, facts, *rest]) + "\n")
                os.utime(tmp_path / name, ns=(written, written))
            state = "lost"
            check()
    sys.stdout.write(f"\n{right} of {right} looks found the state, {1000 * seconds / right:.2f} ms each\n")


@pytest.mark.thorough
def test_looking_all_the_time_disturbs_nothing(terminal: Callable[..., Terminal], project: Path) -> None:
    """Several processes look without a pause while runs begin and end: none is refused, and no state goes back."""
    order = ("starting", "running", "finished")
    for number in range(5):
        folder = project / f"run{number}"
        folder.mkdir()
        lookers = [subprocess.Popen([sys.executable, "-c", LOOK, str(folder)]) for _ in range(2)]
        try:
            shell, seen = terminal("train", "-d", *CHEAP, f"hydra.run.dir=run{number}"), ["starting"]
            while seen[-1] != "finished" and (shell.running.code or 0) == 0:
                state = look(folder).state
                seen += [state] if state != seen[-1] else []
            assert shell.wait() == 0, shell.shown
            assert seen == [state for state in order if state in seen]
        finally:
            for one in lookers:
                one.send_signal(signal.SIGKILL)
                one.wait()
