"""The search for the largest size, on models of memory whose answer is known."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from lightkit.diagnostics.memory import Probe, Search, parts, steps_up_to


def searched(search: Search, fixed: float, slope: float, *, total: float | None = None) -> list[int]:
    """Let a search run; returns the sizes it tried."""
    tried = list[int]()
    while (size := search.next()) is not None:
        assert size not in tried
        tried.append(size)
        needs = int(fixed + slope * size)
        search.add(Probe(size, None if total is not None and needs > total else needs, int(fixed)))
    return tried


@pytest.mark.parametrize("bold", [True, False])
def test_the_answer_is_the_largest_that_fits(bold: bool) -> None:
    draw = random.Random(0)
    for _ in range(500):
        fixed, slope, limit = draw.randint(1, 1000), draw.randint(1, 50), draw.randint(1, 60_000)
        most = draw.randint(1, 2000)
        sizes = parts(most) if draw.random() < 0.5 else steps_up_to(most)
        search = Search(sizes, limit, bold=bold)
        tried = searched(search, fixed, slope, total=1.1 * limit)
        wanted = max((size for size in sizes if fixed + slope * size <= limit), default=None)
        assert (search.best and search.best.size) == wanted, (fixed, slope, limit, most)
        assert len(tried) < 12


def test_what_will_not_fit_is_never_tried_where_that_does_harm() -> None:
    draw = random.Random(1)
    for _ in range(500):
        fixed, slope = draw.randint(1, 1000), draw.randint(1, 50)
        limit, most = fixed + slope * draw.randint(2, 3000), draw.randint(1, 5000)
        tried = searched(Search(parts(most), limit), fixed, slope)
        assert all(fixed + slope * size <= limit for size in tried if size > 2)


def test_a_whole_batch_that_fits_takes_few_trials() -> None:
    assert searched(Search(parts(64), 10_000), 100, 1) == [2, 8, 64]
    assert searched(Search(parts(512), 10_000), 100, 1) == [2, 8, 64, 512]
    assert searched(Search(parts(1), 10_000), 100, 1) == [1]


def test_memory_that_does_not_grow_between_two_sizes_tells_nothing() -> None:
    search = Search(parts(512), 1000, probes=[Probe(2, 500, 400), Probe(8, 501, 400)])
    assert search.predicted(64) > 1000
    assert search.next() == 32


def test_a_batch_that_cannot_be_split_is_not_tried_unmeasured() -> None:
    search = Search(parts(127), 300)
    assert searched(search, 100, 3) == [2, 8, 1]
    assert search.best == Probe(1, 103, 100)


def test_a_single_sample_that_is_an_error_leaves_nothing() -> None:
    search = Search(parts(127), 300, probes=[Probe(2, 106, 100), Probe(8, 124, 100), Probe(1, None)])
    assert search.next() is None
    assert search.best is None


def test_a_new_process_goes_on_from_what_is_known() -> None:
    known = [Probe(2, 102, 100), Probe(8, 108, 100), Probe(64, None)]
    search = Search(parts(64), 1000, bold=True, probes=known)
    assert searched(search, 100, 1, total=125) == [32, 16]
    assert search.best == Probe(16, 116, 100)
    assert search.too_large is not None
    assert search.too_large.size == 32


def test_even_parts() -> None:
    assert parts(12) == [1, 2, 3, 4, 6, 12]
    assert parts(12, least=3) == [3, 4, 6, 12]


def test_sizes_are_multiples_of_8_and_an_eighth_apart() -> None:
    sizes = steps_up_to(5000)
    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert all(size % 8 == 0 for size in sizes[3:])
    assert all(larger <= max(size + 8, 1.125 * size) for size, larger in pairwise(sizes[3:]))
    assert steps_up_to(30, least=4) == [4, 8, 16, 24]
