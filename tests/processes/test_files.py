from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from lightkit.processes import files as module
from lightkit.processes.files import Lines, replacing, sync_file, write_whole


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


def write_half(path):
    path.write_text("half")
    raise OSError("full")


def test_what_fails_leaves_the_old_file_alone(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(OSError, match="full"), replacing(tmp_path / "x") as unfinished:
        write_half(unfinished)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


def test_what_is_whole_is_forced_to_the_disk_before_it_gets_its_name(tmp_path, synced):
    write_whole(tmp_path / "x", "text")
    assert synced == []
    write_whole(tmp_path / "x", b"bytes", forced=True)
    assert synced == ["file", "folder"]
    assert (tmp_path / "x").read_bytes() == b"bytes"


def test_nothing_is_written_through_a_left_over_or_a_link(tmp_path):
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "x.new").symlink_to(tmp_path / "victim")
    write_whole(tmp_path / "x", "text", scratch="x.new")
    assert (tmp_path / "victim").read_text() == "untouched"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim", "x"]


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    ("last", "expected"), [(None, "abcd"), (0, ""), (1, "d"), (3, "bcd"), (4, "abcd"), (9, "abcd")]
)
def test_the_last_lines(
    tmp_path: Path, last: int | None, expected: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 3)
    (tmp_path / "log").write_text("a\nb\nc\nd" + end)
    assert Lines(tmp_path / "log", last).new(torn=True) == list(expected)


def test_lines_that_come(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = Lines(path)
    assert lines.new() == []
    path.write_text("one\ntw")
    assert lines.new() == ["one"]
    with path.open("a") as file:
        file.write("o\r\n\nthr")
    assert lines.new() == ["two", ""]
    assert lines.new(torn=True) == ["thr"]
    assert lines.new(torn=True) == []


def test_a_file_that_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    path.write_text("one\ntwo\n")
    lines = Lines(path, last=0)
    path.write_text("1\n")
    assert lines.new() == ["1"]
    other.write_text("a longer one\n")
    other.replace(path)
    assert lines.new() == ["a longer one"]
