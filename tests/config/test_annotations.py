from __future__ import annotations

import ast
from typing import Annotated, Any, Literal, Optional, Union

from lightkit.config.annotations import Built, becomes_tuple, fits, in_words, is_called, item_type, read_annotation
from lightkit.config.schema.base import Target
from lightkit.config.schema.running import EmaConfig

PAIR = Annotated[list[int], 2]
FITS: list[tuple[Any, list[object], list[object]]] = [
    (int, [1], [1.0, True, "1"]),
    (float, [1, 1.5], [False, "1e-3"]),
    (bool, [True], [1, 0]),
    (str, ["a"], [1, None]),
    (Optional[str], [None], [1]),
    (int | None, [None], [1.5]),
    (Union[str, int], [2], [[]]),
    (Literal["a", "b"], ["a"], ["c"]),
    (Literal[1], [1], [True]),
    (Literal["a", None], [None], ["b"]),
    (list[int], [[1, 2]], [[1, "a"]]),
    (list[str], [["a"]], ["ab"]),
    (list, [[1, "a"]], [{}]),
    (PAIR, [[1, 2]], [[1], [1, "a"], 1]),
    (dict[str, int], [{"a": 1}], [{"a": "b"}]),
    (dict, [{}], [[]]),
    (Target, [{"_target_": "x"}], ["x"]),
    (EmaConfig, [{}], [3]),
    (Union[float, Built], [3], ["a"]),
    (Built, [], [3]),
    (Any, [object()], []),
]


def test_fits() -> None:
    for kind, good, bad in FITS:
        assert [fits(value, kind) for value in (*good, *bad)] == [True] * len(good) + [False] * len(bad), kind


def test_in_words() -> None:
    for kind, words in (
        *((Optional[int], "a whole number or null"), (list[float], "a list (a number each)"), (list, "a list")),
        *(
            (dict[str, int], "a mapping of names to values"),
            (Literal["a", "b"], "one of a, b"),
            (bool, "true or false"),
        ),
        *((Target, "a mapping with `_target_`"), (EmaConfig, "a mapping")),
    ):
        assert in_words(kind) == words
    for text, words in (
        ("tuple[float, float]", "a list of 2 (a number each)"),
        ("Tuple[int, str]", "a list of 2"),
        ("tuple[int, ...]", "a list (a whole number each)"),
        ("tuple[int]", "a list (a whole number each)"),
        ("Optional[tuple[int, int, int]]", "a list of 3 (a whole number each) or null"),
    ):
        assert in_words(read_annotation(ast.parse(text, mode="eval").body)) == words


def test_items_of_lists() -> None:
    assert item_type(Optional[Annotated[list[float], 2]]) is float
    assert item_type(list[int]) is int
    assert item_type(list) is item_type(str) is Any


def kind(text: str) -> Any:
    return read_annotation(ast.parse(text, mode="eval").body)


def test_a_list_becomes_a_tuple_only_where_a_text_may_stand_in_its_place() -> None:
    kinds = ("str | tuple[str, ...]", "Union[str, tuple[int, int]]", "str | list[str]", "tuple[str, ...]", "str")
    assert [becomes_tuple(["a", "b"], kind(text)) for text in kinds] == [True, True, False, False, False]
    assert not becomes_tuple("a", kind(kinds[0]))


def test_a_path_is_that_of_a_function_only_where_no_text_is_taken() -> None:
    kinds = ("Callable", "Optional[Callable[..., Any]]", "Union[str, Callable]", "str", "Any")
    assert [is_called("a.b", kind(text)) for text in kinds] == [True, True, False, False, False]
    assert not any(
        is_called(value, kind("Callable")) for value in ("relu", "a b.c", "a..b", ".b", None, {"_target_": "a.b"})
    )
    assert in_words(kind("Callable")) == "the dotted path of a function, or a `_target_`"
