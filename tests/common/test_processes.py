from __future__ import annotations

import pytest

from lightkit.common.strategies import own_part
from lightkit.processes.children import usable_cpus


@pytest.mark.parametrize(("size", "ranks"), [(8, 2), (7, 2), (7, 3), (2, 3), (1, 4), (5, 5)])
def test_parts_are_neighbours_and_cover_the_batch(size: int, ranks: int) -> None:
    parts = [own_part(size, rank, ranks) for rank in range(ranks)]
    covered = [position for first, count in parts for position in range(first, first + count)]
    assert covered == list(range(size))
    counts = [count for _, count in parts]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


def test_there_is_a_processor_to_use() -> None:
    assert usable_cpus() >= 1
