"""How large a batch may be: which size to try next, from what the ones before have needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MARGIN = 0.1
"""Share of the free memory that is left alone: for fragments, libraries, and batches that need more than others."""
_SCOUTS = (2, 8)
"""Sizes to begin with, whether or not they can be chosen; a single sample is an error for batch norm in training."""
_FIRST_JUMP, _JUMP = 4, 8
"""How many times larger the next size may be, after one measurement and after several."""
_FLAT = 0.02
"""Growth between two sizes, as a share of the memory, below which it says nothing about the next."""


@dataclass(frozen=True)
class Probe:
    """What a size needed."""

    size: int
    """Samples."""
    peak: int | None
    """The most bytes that were in use at once; None where memory ran out."""
    fixed: int = 0
    """Bytes of those that do not depend on the size: weights, gradients, the state of the optimizer."""


class Search:
    """Finds the largest size that fits, with as few trials as can be, and without trying what will not fit.

    Memory grows linearly with the size of a batch. So two sizes tell what a third needs; one size tells at most what.

    Args:
        sizes: The sizes to choose from.
        limit: Bytes that may be used.
        bold: Try one size that seems too large before taking the answer for granted; where running out of memory
            does no harm.
        probes: What is known already.
    """

    def __init__(self, sizes: Iterable[int], limit: int, *, bold: bool = False, probes: Sequence[Probe] = ()) -> None:
        self.sizes, self.limit, self.bold, self.probes = frozenset(sizes), limit, bold, list(probes)
        self._tried = sorted({*self.sizes, *(size for size in _SCOUTS if size < max(self.sizes))})

    def add(self, probe: Probe) -> None:
        """Take in what a size needed."""
        self.probes.append(probe)

    @property
    def best(self) -> Probe | None:
        """The largest size that fits; None where none does so far."""
        return max((p for p in self._measured() if p.size in self.sizes), key=lambda probe: probe.size, default=None)

    @property
    def too_large(self) -> Probe | None:
        """The smallest size that does not fit."""
        return min((p for p in self.probes if not self._fits(p)), key=lambda probe: probe.size, default=None)

    def next(self) -> int | None:
        """Return the size to try next; None where the answer is known."""
        larger = self._larger()
        if larger is not None:
            return larger
        most = max((probe.size for probe in self._measured()), default=0)
        chosen = max((size for size in self.sizes if size <= most), default=None)
        # One that a larger size speaks for is tried too: 1 may be an error.
        return None if chosen in {probe.size for probe in self.probes} else chosen

    def _larger(self) -> int | None:
        """Return a size above those that fit, with which to go on; None where there is none."""
        measured, above = self._measured(), self.too_large
        below = measured[-1].size if measured else 0
        left = [size for size in self._tried if below < size and (above is None or size < above.size)]
        if not any(size in self.sizes for size in left):
            return None
        if not measured:
            return left[0] if above is not None else next((size for size in left if size in _SCOUTS), left[-1])
        near = [size for size in left if size <= below * (_JUMP if len(measured) > 1 else _FIRST_JUMP)] or left[:1]
        fitting = [size for size in near if self.predicted(size) <= self.limit]
        return fitting[-1] if fitting else left[0] if self.bold else None

    def predicted(self, size: int) -> float:
        """Estimate the bytes that a size larger than those that fit will need."""
        *_, last = measured = self._measured()
        slope = max(0, (last.peak or 0) - last.fixed) / last.size
        if len(measured) > 1:
            grown = (last.peak or 0) - (measured[-2].peak or 0)
            if grown > _FLAT * (last.peak or 0):
                slope = grown / (last.size - measured[-2].size)
        return (last.peak or 0) + slope * (size - last.size)

    def _measured(self) -> list[Probe]:
        return sorted((probe for probe in self.probes if self._fits(probe)), key=lambda probe: probe.size)

    def _fits(self, probe: Probe) -> bool:
        return probe.peak is not None and probe.peak <= self.limit


def parts(effective: int, *, least: int = 1) -> list[int]:
    """Return the sizes that a batch can be split into evenly.

    Args:
        effective: Samples of an optimizer step.
        least: The smallest size.
    """
    return [size for size in range(least, effective + 1) if effective % size == 0]


def steps_up_to(most: int, *, least: int = 1) -> list[int]:
    """Return the sizes to choose from up to a limit: 1, 2, 4, then multiples of 8, an eighth apart at most from 64 on.

    Args:
        most: The largest size.
        least: The smallest size.
    """
    found, size = [1, 2, 4], 8
    while size <= most:
        found.append(size)
        size += max(8, 1 << (size.bit_length() - 4))
    return [size for size in found if least <= size <= most]
