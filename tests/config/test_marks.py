"""Marks are made with a key that lies outside of all runs."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
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


def as_link(key: Path) -> None:
    key.rename(key.with_name("other"))
    key.symlink_to("other")


def as_pipe(key: Path) -> None:
    key.unlink()
    os.mkfifo(key, 0o600)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "is a link": (as_link, "is a link", "rm"),
    "is a pipe": (as_pipe, "is damaged", "rm"),
    "is a folder": (lambda key: (key.unlink(), key.mkdir(0o700)), "no key", "XDG_STATE_HOME"),
    "is empty": (lambda key: key.write_bytes(b""), "is damaged", "rm"),
    "is short": (lambda key: key.write_bytes(bytes(31)), "is damaged", "rm"),
    "is long": (lambda key: key.write_bytes(bytes(33)), "is damaged", "rm"),
    "others may read it": (lambda key: key.chmod(0o644), "others may read or write", "rm"),
    "others may write it": (lambda key: key.chmod(0o620), "others may read or write", "rm"),
    "the group may write beside it": (lambda key: key.parent.chmod(0o770), "others may write to", "chmod 700"),
    "all may write beside it": (lambda key: key.parent.chmod(0o1777), "others may write to", "chmod 700"),
}


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
@pytest.mark.parametrize("how", DAMAGES)
def test_a_key_counts_where_nobody_else_can_have_read_or_written_it(project: Path, key: Path, how: str) -> None:
    mark(project, TEXT)
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    damage, what, fix = DAMAGES[how]
    damage(key)
    assert not is_marked(project, TEXT)
    assert not mark(project, TEXT)
    problem = marks.key_problem()
    assert problem is not None
    assert what in problem.what
    assert problem.fix.startswith(fix)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["key", "folder of the key", "folder of the run"])
def test_what_another_user_owns_makes_no_mark(project: Path, key: Path, what: str) -> None:
    mark(project, TEXT)
    assert is_marked(project, TEXT)
    os.chown({"key": key, "folder of the key": key.parent, "folder of the run": project}[what], 12345, -1)
    assert not is_marked(project, TEXT)
    assert not is_marked(project / "not-there-yet", TEXT) or what != "folder of the run"


def test_a_second_name_of_the_key_changes_nothing(project: Path, key: Path, tmp_path: Path) -> None:
    mark(project, TEXT)
    os.link(key, tmp_path / "backup")
    assert is_marked(project, TEXT)


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
    found: set[object] = set()
    threads = [threading.Thread(target=lambda: found.add(marks._find_key(make=True))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(key.read_bytes(), None)}
    assert [*key.parent.iterdir()] == [key]


def test_without_a_place_for_a_key_nothing_is_marked(project: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key.parent.parent.touch()
    assert not mark(project, TEXT)
    assert not (project / FILE).exists()
    assert not (project / "outputs").exists()
    problem = marks.key_problem()
    assert problem is not None
    assert "XDG_STATE_HOME=FOLDER" in problem.fix
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
