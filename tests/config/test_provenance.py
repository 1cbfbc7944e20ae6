"""Runs are signed with a key that lies outside of all runs, and what others wrote grants nothing."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from lightkit.common.errors import UserError
from lightkit.common.run_files import SIGNATURES as FILE
from lightkit.config import policy, provenance
from lightkit.config.describe import describe_key
from lightkit.config.fields import valid_keys
from lightkit.config.origins import dotted
from lightkit.config.policy import changed_around, reset_user_only, user_only_keys
from lightkit.config.provenance import is_ours, sign_run
from lightkit.config.schema.base import USER_ONLY

TEXT = "data: 1\nmodel: 2\n"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> Path:
    """Where the user's key will be."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "lightkit" / "key"


def test_a_signature_is_for_one_text(project: Path, key: Path) -> None:
    assert not is_ours(project, TEXT)
    assert not key.exists()
    sign_run(project, TEXT)
    sign_run(project, TEXT)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len((project / FILE).read_text().splitlines()) == 1
    assert is_ours(project, TEXT)
    assert is_ours(project, f"# A comment.\n{TEXT}")
    for other in ("data: 1\nmodel: 3\n", "data: 1\x0bmodel: 2\n", f"{TEXT}# A comment.\nextra: 1\n", ""):
        assert not is_ours(project, other)


def test_earlier_texts_stay_signed_up_to_a_number(project: Path, key: Path) -> None:
    for count in range(provenance._MOST_SIGNATURES + 1):
        sign_run(project, f"seed: {count}")
    assert not is_ours(project, "seed: 0")
    assert is_ours(project, "seed: 1")
    assert is_ours(project, f"seed: {provenance._MOST_SIGNATURES}")


def test_a_signature_does_not_outlive_its_key(project: Path, key: Path) -> None:
    sign_run(project, TEXT)
    key.write_bytes(bytes(32))
    assert not is_ours(project, TEXT)


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
    sign_run(project, TEXT)
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    damage, what, fix = DAMAGES[how]
    damage(key)
    assert not is_ours(project, TEXT)
    assert not sign_run(project, TEXT)
    problem = provenance.key_problem()
    assert problem is not None
    assert what in problem.what
    assert problem.fix.startswith(fix)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["key", "folder of the key", "folder of the run"])
def test_what_another_user_owns_makes_no_signature(project: Path, key: Path, what: str) -> None:
    sign_run(project, TEXT)
    assert is_ours(project, TEXT)
    os.chown({"key": key, "folder of the key": key.parent, "folder of the run": project}[what], 12345, -1)
    assert not is_ours(project, TEXT)
    assert not is_ours(project / "not-there-yet", TEXT) or what != "folder of the run"


def test_a_signature_is_for_one_project(
    project: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_run(project, TEXT)
    other = tmp_path / "other"
    (other / "conf").mkdir(parents=True)
    monkeypatch.chdir(other)
    assert is_ours(project, TEXT)  # where it was made
    (project / FILE).rename(other / FILE)
    assert not is_ours(other, TEXT)
    (other / FILE).rename(project / FILE)
    project.rename(tmp_path / "renamed")
    monkeypatch.chdir(tmp_path / "renamed")
    assert is_ours(tmp_path / "renamed", TEXT)


def test_processes_that_begin_together_share_one_key(project: Path, key: Path) -> None:
    found: set[object] = set()
    threads = [threading.Thread(target=lambda: found.add(provenance._find_key(make=True))) for _ in range(8)]
    for step in ("start", "join"):
        for thread in threads:
            getattr(thread, step)()
    assert found == {(key.read_bytes(), None)}
    assert [*key.parent.iterdir()] == [key]


def test_without_a_place_for_a_key_nothing_is_ours(project: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key.parent.parent.touch()
    assert not sign_run(project, TEXT)
    assert not (project / FILE).exists()
    assert not (project / "outputs").exists()
    problem = provenance.key_problem()
    assert problem is not None
    assert "XDG_STATE_HOME=FOLDER" in problem.fix
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.delenv("HOME")
    assert not is_ours(project, TEXT)


def test_odd_files_are_no_signatures(project: Path, key: Path) -> None:
    sign_run(project, TEXT)
    text = (project / FILE).read_text()
    for odd in (text.replace('"mac": "', '"mac": "é'), text.replace('"inode": ', '"inode": {}, "a": '), "[]", "\0"):
        (project / FILE).write_text(odd)
        assert not is_ours(project, TEXT)
    (project / FILE).unlink()
    os.mkfifo(project / FILE)
    assert not is_ours(project, TEXT)


SOUNDS_LIKE = re.compile(
    r"runs the code|only for files whose origin|that a `_target_` may name|a command (to run|that runs)", re.I
)


def test_every_key_that_sounds_like_trust_is_marked() -> None:
    marked = {dotted(key) for key in user_only_keys()}
    assert marked == {"trust", "finetune.weights.trust", "on_end", "resume.trust"}
    for key in valid_keys():
        rows = [row for row in describe_key(key) if row.key == key]
        sounds = re.search(r"trust|unsafe|pickled", key) or any(SOUNDS_LIKE.search(row.meaning) for row in rows)
        assert bool(sounds) == (key in marked), key


@dataclasses.dataclass
class Inner:
    opens: bool = dataclasses.field(default=False, metadata=USER_ONLY)


@dataclasses.dataclass
class Outer:
    one: Optional[Inner] = None
    many: list[Inner] = dataclasses.field(default_factory=list)
    named: dict[str, Inner] = dataclasses.field(default_factory=dict)


@pytest.fixture
def schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another schema, with such keys in all places where a later one may be."""
    monkeypatch.setattr(policy, "Config", Outer)


def test_a_user_only_key_is_found_wherever_it_stands(schema: None) -> None:
    assert user_only_keys() == (("one", "opens"), ("many", "*", "opens"), ("named", "*", "opens"))
    tree: Any = {"one": {"opens": True}, "many": [{"opens": True}, {}], "named": {"a": {"opens": "${b}"}, "b": None}}
    reset_user_only(tree)
    assert tree == {
        "one": {"opens": False},
        "many": [{"opens": False}, {}],
        "named": {"a": {"opens": False}, "b": None},
    }
    for way in ({"one": "${x}"}, {"many": "${x}"}, {"many": ["${x}"]}, {"named": {"a": "${x}"}}):
        with pytest.raises(UserError, match="refers to another place"):
            reset_user_only(way)
    reset_user_only({"one": 3, "many": {"a": 3}, "named": [None]})


def test_what_is_changed_around_a_key(schema: None) -> None:
    assert changed_around(["one.other=3", "+many[0].x=1"]) == [("one", "opens"), ("many", "*", "opens")]
    assert changed_around(["~named"]) == [("named", "*", "opens")]
    assert changed_around(["else=3"]) == []
