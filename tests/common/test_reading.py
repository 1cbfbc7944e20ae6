from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.reading import (
    FLAG,
    NUMBER,
    OBJECTS,
    STATUS,
    TEXT,
    TEXTS,
    WHOLE,
    UnreadableError,
    fitting,
    parse_json,
    parse_mapping,
    parse_yaml,
    read_file,
    read_row,
    read_tail,
    read_text,
)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "a folder, not a file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "a link to nothing"),
        (lambda path: path.symlink_to(path), "too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.write_bytes(b"a\xff"), "not UTF-8: byte 1"),
        (lambda path: path.write_bytes(b"a" * 11), "11 bytes, which is more than any run writes"),
    ],
)
def test_what_is_no_file_is_told_and_never_waited_for(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises(UnreadableError, match=said):
        read_text(tmp_path / "file", 10)


@pytest.mark.parametrize("name", ["missing", "missing/below", "a\0b"])
def test_a_file_that_is_not_there_is_no_damage(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / name)
    assert read_tail(tmp_path / name, 10) == ""


def test_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789\xff")
    assert read_tail(tmp_path / "file", 3) == "89\ufffd"


NO_JSON = {
    "": "empty",
    "\0\0\n": "only zeros, as after a power cut",
    '{\n"a": }': "not JSON: .* at line 2, column 6",
    "[" * 100_000: "nested too deeply",
    "[" * 150 + "]" * 150: "nested too deeply",
    "9" * 5000: "a number that is too large",
}
NO_YAML = {
    "a: [": "not YAML: .* at line ",
    "a: &a [x]\nb: [*a, *a]": "a reference of YAML",
    "<<: &a {b: 1}\nc: *a": "a reference of YAML",
    "- " * 100_000: "nested too deeply",
    "[" * 900 + "]" * 900: "nested too deeply",
    "a: !!timestamp x": "not YAML: ",
    "a: !!int ''": "not YAML: ",
    "2026-01-31: 1": "a key that is no text",
    "a: 2026-13-45": "not YAML: month must be in 1..12",
    f"a: {'9' * 1000}": "a number that is too large",
    "a: \x01": "not YAML: ",
}


@pytest.mark.parametrize(("parse", "wrong"), [(parse_json, NO_JSON), (parse_yaml, NO_YAML)])
def test_what_is_no_json_and_no_yaml_of_a_run(parse: Callable[[str], object], wrong: dict[str, str]) -> None:
    for text, said in wrong.items():
        with pytest.raises(UnreadableError, match=said):
            parse(text)


def test_half_a_character_is_replaced() -> None:
    assert parse_json(b'{"a\\ud800": ["\\udfff", "\\ud83d\\ude00"]}') == {"a?": ["?", "\U0001f600"]}


def test_what_is_no_configuration() -> None:
    for text in ("- 1", "1: 2", "text"):
        assert parse_yaml(text) is not None
        with pytest.raises(UnreadableError, match="holds no configuration"):
            parse_mapping(text)
    assert parse_mapping("") == {}


SHAPE = {"a": TEXT, "b": {"*": NUMBER}, "c": TEXTS, "d": WHOLE, "e": FLAG, "f": OBJECTS, "g": STATUS}


def test_what_fits_stays_as_it_is() -> None:
    whole = {"a": "x", "b": {"y": 1.5, "z": None}, "c": ["x"], "d": -1, "e": True, "f": [{}], "g": "paused", "h": [[1]]}
    damage = list[str]()
    assert fitting(whole, SHAPE, damage) == whole
    assert not damage


@pytest.mark.parametrize(
    ("key", "value", "kept", "said"),
    [
        ("a", ["x"], {}, "`a` is not a text"),
        ("b", [1], {}, "`b` is not an object"),
        ("b", {"y": "1", "z": 2}, {"b": {"z": 2}}, "`b.y` is not a number"),
        ("b", {"y": True}, {"b": {}}, "`b.y` is not a number"),
        ("c", ["x", 1], {}, "`c` is not a list of texts"),
        ("d", 1.0, {}, "`d` is not a whole number"),
        ("d", 2**70, {}, "`d` is not a whole number"),
        ("e", 1, {}, "`e` is not true or false"),
        ("f", [{}, 1], {}, "`f` is not a list of objects"),
        ("g", "running", {}, "`g` is not one of finished, paused, pruned, interrupted, failed"),
        ("g", [], {}, "`g` is not one of finished, paused, pruned, interrupted, failed"),
    ],
)
def test_what_does_not_fit_is_left_out_and_told(key: str, value: Any, kept: dict[str, Any], said: str) -> None:
    damage = list[str]()
    assert fitting({key: value}, SHAPE, damage) == kept
    assert damage == [said]


def test_what_is_no_finite_number_is_null() -> None:
    assert fitting({"b": {"y": float("nan"), "z": float("inf")}}, SHAPE, []) == {"b": {"y": None, "z": None}}


def test_a_row_keeps_its_numbers() -> None:
    line = b'{"step": 1, "epoch": 0, "a/b": 0.5, "c": null, "d": "x", "e": 1e999, "f": [1], "g": true}'
    assert read_row(line) == {"step": 1, "epoch": 0, "a/b": 0.5, "c": None}


def test_what_is_no_row() -> None:
    for line in ("", "[]", "{}", '{"step": "1"}', '{"step": true}', '{"step": 1, "epoch": [1]}'):
        with pytest.raises(UnreadableError):
            read_row(line)
