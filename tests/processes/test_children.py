"""Processes that are started, told and ended, and programs that are asked one question."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightkit.processes.children import NOTHING, PIPE, Child, Hung, lightkit_command, output_of, run
from tests.conftest import ROOT
from tests.faults.harness import alive
from tests.waiting import PATIENCE_SECONDS, until


def test_a_process_searches_where_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("json", "argparse", "lightkit"):  # all of them would come before those that are meant
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working directory')\n")
    done = subprocess.run(
        lightkit_command("--version"), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert lightkit_command("eval", "last") == [sys.executable, "-m", "lightkit", "eval", "last"]


def test_a_child_is_told_lines_and_keeps_what_it_says() -> None:
    child = Child(["sh", "-c", 'read line; echo "$line" >&2; exit 3'], stdin=PIPE, output=NOTHING, keeps=True)
    child.tell("one line")
    assert child.wait() == 3
    child.tell("nobody reads this")
    child.end()
    child.end()
    assert child.said == "one line"


def test_the_end_of_a_child_is_that_of_all_that_it_has_started(tmp_path: Path) -> None:
    child = Child(["sh", "-c", f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait"])
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the grandchild"))
    with pytest.raises(Hung):
        child.wait(0.01)
    child.end()
    assert child.returncode == -9
    until(lambda: not alive(pid), "its end")


def test_a_program_is_asked(tmp_path: Path) -> None:
    done = run(["sh", "-c", "pwd; printf '\\377' >&2; cat; exit 4"], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (4, f"{tmp_path}\n", "\ufffd")
    assert output_of(["sh", "-c", "echo yes"]) == "yes\n"


@pytest.mark.parametrize("command", [["false"], [os.devnull], ["sleep", "600"]])
def test_a_program_that_is_missing_fails_or_hangs_has_no_answer(command: list[str]) -> None:
    began = time.monotonic()
    assert output_of(command, timeout=0.1) is None
    assert time.monotonic() - began < PATIENCE_SECONDS
