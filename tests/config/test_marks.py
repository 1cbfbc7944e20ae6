"""Marks are made with a key that lies outside of all runs."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from lightkit.common.run_files import MARK as FILE
from lightkit.config import marks
from lightkit.config.marks import is_marked, mark

TEXT = "data: 1\nmodel: 2\n"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> Path:
    """Where the user's key will be."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "lightkit" / "key"


def test_a_mark_is_for_one_text(project: Path, key: Path) -> None:
    assert not is_marked(project, TEXT)
    assert not key.exists()
    mark(project, TEXT)
    mark(project, TEXT)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len((project / FILE).read_text().splitlines()) == 1
    assert is_marked(project, TEXT)
    assert is_marked(project, f"# A comment.\n{TEXT}")
    for other in ("data: 1\nmodel: 3\n", "data: 1\x0bmodel: 2\n", f"{TEXT}# A comment.\nextra: 1\n", ""):
        assert not is_marked(project, other)


def test_earlier_texts_stay_marked_up_to_a_number(project: Path, key: Path) -> None:
    for count in range(marks._MOST_MARKS + 1):
        mark(project, f"seed: {count}")
    assert not is_marked(project, "seed: 0")
    assert is_marked(project, "seed: 1")
    assert is_marked(project, f"seed: {marks._MOST_MARKS}")


def test_a_mark_does_not_outlive_its_key(project: Path, key: Path) -> None:
    mark(project, TEXT)
    key.write_bytes(bytes(32))
    assert not is_marked(project, TEXT)


def test_a_mark_is_for_one_project(project: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark(project, TEXT)
    other = tmp_path / "other"
    (other / "conf").mkdir(parents=True)
    monkeypatch.chdir(other)
    assert is_marked(project, TEXT)  # where it was made
    (project / FILE).rename(other / FILE)
    assert not is_marked(other, TEXT)
    (other / FILE).rename(project / FILE)
    project.rename(tmp_path / "renamed")
    monkeypatch.chdir(tmp_path / "renamed")
    assert is_marked(tmp_path / "renamed", TEXT)


def test_processes_that_begin_together_share_one_key(project: Path, key: Path) -> None:
    found: set[bytes | None] = set()
    threads = [threading.Thread(target=lambda: found.add(marks._key_of_user(make=True))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {key.read_bytes()}


def test_without_a_place_for_a_key_nothing_is_marked(project: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key.parent.parent.touch()
    (project / "outputs").touch()
    mark(project, TEXT)
    assert not (project / FILE).exists()
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.delenv("HOME")
    assert not is_marked(project, TEXT)


def test_odd_files_are_no_marks(project: Path, key: Path) -> None:
    mark(project, TEXT)
    text = (project / FILE).read_text()
    for odd in (text.replace('"mac": "', '"mac": "é'), text.replace('"inode": ', '"inode": {}, "a": '), "[]", "\0"):
        (project / FILE).write_text(odd)
        assert not is_marked(project, TEXT)
    (project / FILE).unlink()
    os.mkfifo(project / FILE)
    assert not is_marked(project, TEXT)
