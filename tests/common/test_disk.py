from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from lightkit.common.disk import sync_file


@pytest.fixture
def synced(monkeypatch):
    """What was forced to the disk, in order."""
    seen, real = [], os.fsync

    def fsync(handle):
        seen.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        return real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def test_a_file_is_forced_to_the_disk_with_its_name(tmp_path, synced):
    (tmp_path / "x").write_text("x")
    sync_file(tmp_path / "x")
    assert synced == ["file", "folder"]


def test_a_file_that_is_not_there_is_nothing_to_lose(tmp_path, synced):
    sync_file(tmp_path / "none" / "x")
    assert synced == []


@pytest.mark.parametrize(("code", "told"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_only_folders_may_have_no_such_call(tmp_path, monkeypatch, code, told):
    def fail(handle):
        if Path(f"/proc/self/fd/{handle}").is_dir():
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "x").write_text("x")
    if told:
        with pytest.raises(OSError, match="Input/output error"):
            sync_file(tmp_path / "x")
    else:
        sync_file(tmp_path / "x")
