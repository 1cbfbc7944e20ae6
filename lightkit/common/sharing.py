"""How a batch is shared by the processes that train together."""

from __future__ import annotations


def own_part(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """The samples of a batch that one of several processes computes.

    The parts are neighbours in the order of the ranks and differ by one sample at most; where there are fewer samples
    than processes, the last ones have none.

    Args:
        size: Samples in the batch.
        rank: Number of the process, from 0.
        ranks: Number of processes.

    Returns:
        Position of the first sample in the batch, and the number of samples.
    """
    base, rest = divmod(size, ranks)
    return rank * base + min(rank, rest), base + (rank < rest)
