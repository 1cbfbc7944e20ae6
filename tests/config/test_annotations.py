from __future__ import annotations

import ast
from typing import Annotated, Any, Literal, Optional, Union

import pytest

from lightkit.config.annotations import Built, choices_of, fits, in_words, item_type, read_annotation, type_hint
from lightkit.config.schema.base import Target
from lightkit.config.schema.running import EmaConfig


@pytest.mark.parametrize(
    ("value", "kind", "good"),
    [
        (1, int, True),
        (1.0, int, False),
        (True, int, False),
        ("1", int, False),
        (1, float, True),
        (1.5, float, True),
        (False, float, False),
        ("1e-3", float, False),
        (True, bool, True),
        (1, bool, False),
        (0, bool, False),
        ("a", str, True),
        (1, str, False),
        (None, str, False),
        (None, Optional[str], True),
        (None, int | None, True),
        (2, Union[str, int], True),
        ([], Union[str, int], False),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (True, Literal[1], False),
        (None, Literal["a", None], True),
        ([1, 2], list[int], True),
        ([1, "a"], list[int], False),
        ("ab", list[str], False),
        ([1, "a"], list, True),
        ([1, 2], Annotated[list[int], 2], True),
        ([1], Annotated[list[int], 2], False),
        ([1, "a"], Annotated[list[int], 2], False),
        (1, Annotated[list[int], 2], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, dict[str, int], False),
        ([], dict, False),
        ({"_target_": "x"}, Target, True),
        ("x", Target, False),
        ({}, EmaConfig, True),
        (3, Built, False),
        (3, Union[float, Built], True),
        (object(), Any, True),
    ],
)
def test_fits(value: object, kind: Any, good: bool) -> None:
    assert fits(value, kind) is good


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Optional[int], "a whole number or null"),
        (list[float], "a list (a number each)"),
        (list, "a list"),
        (dict[str, int], "a mapping of names to values"),
        (Literal["a", "b"], "one of a, b"),
        (Target, "a mapping with `_target_`"),
        (EmaConfig, "a mapping"),
        (bool, "true or false"),
    ],
)
def test_in_words(kind: Any, words: str) -> None:
    assert in_words(kind) == words


def test_choices_of_a_literal_inside_a_union() -> None:
    assert choices_of(Optional[Literal["a", "b"]]) == ["a", "b"]
    assert choices_of(int) == []


@pytest.mark.parametrize(
    ("value", "kind", "hint"),
    [
        ("0.1", float, "write 0.1 without quotes"),
        ("yes", bool, "write true or false without quotes"),
        (2.0, int, "write 2"),
        (3, list[int], "write [3]"),
        ("fast", float, None),
    ],
)
def test_hints(value: object, kind: Any, hint: str | None) -> None:
    assert type_hint(value, kind) == hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tuple[float, float]", "a list of 2 (a number each)"),
        ("Tuple[int, str]", "a list of 2"),
        ("tuple[int, ...]", "a list (a whole number each)"),
        ("tuple[int]", "a list (a whole number each)"),
        ("list[int]", "a list (a whole number each)"),
        ("Optional[tuple[int, int, int]]", "a list of 3 (a whole number each) or null"),
    ],
)
def test_tuples_have_a_length(text: str, words: str) -> None:
    assert in_words(read_annotation(ast.parse(text, mode="eval").body)) == words


def test_items_of_lists() -> None:
    assert item_type(Optional[Annotated[list[float], 2]]) is float
    assert item_type(list[int]) is int
    assert item_type(list) is item_type(str) is Any
