"""The last lines of a file that grows, and those that come."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.processes import lines as module
from lightkit.processes.lines import Lines


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
