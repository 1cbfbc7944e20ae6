"""How much a metric depends on the rows that it was measured on: intervals by samples of the rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightkit.ensemble.oof import MemberPredictions

_DRAWS, _MOST = 200, 10_000_000
"""Samples of rows that an interval is made of, and rows in all of them at most."""
Meter = Callable[[MemberPredictions, "Tensor | None"], dict[str, float]]
"""Measures rows, or those at some places of them: values by name."""


def over_repeats(meter: Meter, repeats: Sequence[MemberPredictions], places: Tensor | None = None) -> dict[str, float]:
    """Return the values of predictions of the same rows, or of those at some places, the mean over the repeats."""
    found = [meter(rows, places) for rows in repeats]
    return {name: statistics.fmean(own[name] for own in found) for name in found[0]}


def row_intervals(meter: Meter, repeats: Sequence[MemberPredictions], *, seed: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each metric, by the percentiles of samples of the rows (Efron 1979).

    Args:
        meter: Measures rows.
        repeats: The rows, as each repeat predicts them.
        seed: Seed of the draws.

    Returns:
        The intervals by name; none where there are too many rows to be measured so often.
    """
    count, found = len(repeats[0]), dict[str, list[float]]()
    if count < 2 or count * len(repeats) * _DRAWS > _MOST:
        return {}
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_DRAWS):
        drawn = torch.randint(count, (count,), generator=generator)
        for name, value in over_repeats(meter, repeats, drawn).items():
            found.setdefault(name, []).append(value)
    ends = {name: torch.tensor(values, dtype=torch.float64).quantile(_ENDS).tolist() for name, values in found.items()}
    return {name: (low, high) for name, (low, high) in ends.items() if math.isfinite(low) and math.isfinite(high)}


_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)
