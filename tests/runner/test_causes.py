"""What differs between two runs, and the least of it that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest

from lightkit.runner.causes import smallest

ITEMS = "abcdefgh"


def sorted_name(cause: set[str]) -> str:
    """The order of a set is another in each process."""
    return "".join(sorted(cause))


@pytest.mark.parametrize(
    "cause", [{*cause} for size in (1, 2, 8) for cause in combinations(ITEMS, size)], ids=sorted_name
)
def test_the_smallest_part_is_found_in_few_questions(cause: set[str]) -> None:
    asked = list[Sequence[str]]()

    def is_enough(items: Sequence[str]) -> bool:
        asked.append(items)
        return cause <= {*items}

    assert {*smallest(ITEMS, is_enough)} == cause
    assert len(asked) <= {1: 6, 2: 12, 8: 14}[len(cause)]


def test_what_cannot_be_told_counts_as_not_enough() -> None:
    def is_enough(items: Sequence[str]) -> bool:
        fails = ("a" in items) != ("h" in items)  # these go together only
        return not fails and "d" in items

    found = smallest(ITEMS, is_enough)
    assert is_enough(found)
    assert smallest(["x"], lambda _: False) == ["x"]  # known to be enough
