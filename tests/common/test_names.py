from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.common.names import folder_below, name_problem, split_named

GOOD = ["seed=0", "a b", "größe=1", "実験", "x=['a','b']", "-a", "a.", "1e-05", "n" * 240]
BAD = [
    *("", ".", "..", ".lock", "a/b", "/", "/tmp", "a/", "..\\a", "C:", "C:a", " a", "a ", "\u00a0a"),
    *("a\0", "a\n", "a\tb", "a\x1b[2J", "a\u2028b", "a\u202eb", "a\u200bb", "\u0085", "\ud800"),
    *("．．", "‥", "a／b", "a＼b", "℀", "n" * 241, "実" * 81, None, 5, ["a"], {"a": 1}, True),
]


@pytest.mark.parametrize("name", GOOD)
def test_names_that_folders_have(name: str, tmp_path: Path) -> None:
    assert name_problem(name) is None
    assert folder_below(tmp_path, name, key="x", expected="y") == tmp_path / name


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_names_that_lead_elsewhere_or_are_none(name: object, tmp_path: Path) -> None:
    assert name_problem(name)
    with pytest.raises(UserError) as caught:
        folder_below(tmp_path, name, key="sweep.jsonl", expected="the name of a job")
    assert caught.value.key == "sweep.jsonl"
    assert caught.value.expected == "the name of a job"


@pytest.mark.parametrize("name", ["a/b", "a/b/c"])
def test_names_in_each_other(name: str, tmp_path: Path) -> None:
    assert folder_below(tmp_path, name, key="x", expected="y", nested=True) == tmp_path / name
    for bad in (f"{name}/", f"/{name}", f"{name}/../../..", f"{name}//c", f"../{name}"):
        with pytest.raises(UserError):
            folder_below(tmp_path, bad, key="x", expected="y", nested=True)


def test_names_that_are_taken_also_in_other_letters(tmp_path: Path) -> None:
    for name in ("sweep.jsonl", "Sweep.JSONL", "sweep.jsonl/a"):
        with pytest.raises(UserError, match="lightkit's own"):
            folder_below(tmp_path, name, key="x", expected="y", taken=["sweep.jsonl"], nested=True)


def test_links_and_files(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    home = tmp_path / "home"
    home.mkdir()
    (home / "link").symlink_to(tmp_path / "elsewhere")
    (home / "dangling").symlink_to(tmp_path / "none")
    (home / "file").touch()
    for name, said in (("link", "a link"), ("link/a", "a link"), ("dangling", "a link"), ("file", "no folder")):
        with pytest.raises(UserError, match=said):
            folder_below(home, name, key="x", expected="y", nested=True)


def test_a_split_is_known_by_several_names() -> None:
    typed = ("Valid", " dev ", "TRAINING", "x", 1)
    assert [split_named(name) for name in typed] == ["val", "val", "train", None, None]
