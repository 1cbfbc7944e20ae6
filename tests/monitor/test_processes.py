from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lightkit.monitor.gpus import GpuProcess, describe

HOLD = "import sys; held = open(sys.argv[1]); print('open', flush=True); input()"


def test_a_process_with_user_and_command() -> None:
    found = describe(os.getpid(), 512.0)
    assert (found.pid, found.memory_mib, found.run) == (os.getpid(), 512.0, None)
    assert found.user == psutil.Process().username()
    assert found.command == " ".join(psutil.Process().cmdline())


def test_one_that_has_ended_is_known_by_its_number() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert describe(child.pid, None) == GpuProcess(child.pid)


def test_the_run_it_works_on(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.touch()
    command = [sys.executable, "-c", HOLD, str(lock)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        assert describe(holder.pid).run is None  # any program may have such a file
        (tmp_path / "config.yaml").touch()
        assert describe(holder.pid).run == tmp_path
    finally:
        holder.communicate(b"\n")


def test_a_rank_belongs_to_the_run_of_its_parent(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with (tmp_path / ".lock").open("w"):
        child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
        assert child.stdout is not None
        try:
            child.stdout.readline()
            assert describe(child.pid).run == tmp_path
        finally:
            child.communicate(b"\n")


def test_what_belongs_to_others_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: object) -> None:
        raise psutil.AccessDenied(1)

    for name in ("cmdline", "username", "open_files"):
        monkeypatch.setattr(psutil.Process, name, denied)
    assert describe(os.getpid()) == GpuProcess(os.getpid())
