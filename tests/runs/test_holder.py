"""Who holds a lock; through the lock itself it is in test_lock, and through `lightkit stop` in tests/cli/test_stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.runs import lock
from lightkit.runs.lock import holder_of, locked, open_lock

pytestmark = pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="only Linux tells")


def test_a_file_system_that_numbers_files_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the kernel does not name the file then: the process that is told must have it open and locked."""
    monkeypatch.setattr(lock, "_listed", lambda _: [])
    with locked(tmp_path), open_lock(tmp_path / ".lock") as file:
        assert holder_of(file, os.getpid(), is_locked=True) == os.getpid()
        with subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=file,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert holder_of(file, other.pid, is_locked=True) is None  # it is open there, and no more
        assert holder_of(file, 1, is_locked=True) is None
        assert holder_of(file, None, is_locked=True) is None


def test_a_file_system_without_locks(tmp_path: Path) -> None:
    with locked(tmp_path), open_lock(tmp_path / ".lock") as file:
        assert holder_of(file, os.getpid(), is_locked=False) == os.getpid()
        assert holder_of(file, os.getppid(), is_locked=False) is None


def test_other_systems_believe_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PROC", tmp_path / "no-proc")
    with locked(tmp_path), open_lock(tmp_path / ".lock") as file:
        assert holder_of(file, 4711, is_locked=True) == 4711
