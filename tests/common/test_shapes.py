from __future__ import annotations

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
    read_row,
)

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


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"step": "1"}', '{"step": true}', '{"step": 1, "epoch": [1]}'])
def test_what_is_no_row(line: str) -> None:
    with pytest.raises(UnreadableError):
        read_row(line)
