"""Schedules that need not know how long the run will be: most of their curve does not depend on it."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch.optim import Optimizer

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.optim.schedulers import FALLS, Schedule, check_share


class WarmupStableDecay(Schedule):
    """Holds the rate after the warm-up, and lets it fall in the last part of the run alone.

    MiniCPM (Hu et al. 2024, https://arxiv.org/abs/2404.06395); `sqrt` is the shape that Hägele et al. 2024
    (https://arxiv.org/abs/2405.18392) found best. A run that is stopped before the decay goes on with another length as
    if it had had that from the beginning.

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of linear warm-up.
        warmup_epochs: The same in epochs; give one of the two.
        decay_share: Share of the run's steps in which the rate falls, above 0 to 1.
        shape: Curve of the fall: `sqrt` (1 - √progress), `linear` or `cosine`.
        floor: Factor at the end of the run, 0 to 1, relative to each group's own rate.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        decay_share: float = 0.1,
        shape: Literal["sqrt", "linear", "cosine"] = "sqrt",
        floor: float = 0.0,
        **run: Any,
    ) -> None:
        check_choice("shape", shape, FALLS, "no such shape")
        self.decay_share, self.shape = check_share(decay_share, "decay_share", low=1e-9), FALLS[shape]
        self.floor = check_share(floor, "floor")
        super().__init__(optimizer, **run)

    def decay(self, step: int) -> float:
        """Return 1 until the decay begins, then its curve."""
        first = max(self.total_steps - max(1, round(self.decay_share * self.total_steps)), self.warmup)
        done = min(max(step - first, 0) / (self.total_steps - first), 1.0)
        return self.floor + (1.0 - self.floor) * self.shape(done)


class InverseSquareRoot(Schedule):
    """Falls with the inverse square root of the step, without an end (https://arxiv.org/abs/1706.03762).

    With the warm-up as its time scale this is the curve of the paper: `min(step^-0.5, step * warmup^-1.5)`, times what
    makes it 1 at its peak.

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of linear warm-up.
        warmup_epochs: The same in epochs; give one of the two.
        timescale: Optimizer steps after the warm-up in which the factor falls from 1 to 0.707, above 0; None takes
            the length of the warm-up, or 10,000 without one.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(self, optimizer: Optimizer, *, timescale: int | None = None, **run: Any) -> None:
        if timescale is not None:
            check_range("timescale", timescale, low=1)
        self.timescale = timescale
        super().__init__(optimizer, **run)

    def decay(self, step: int) -> float:
        """Return the factor after the warm-up."""
        scale = self.timescale or self.warmup or 10_000
        return math.sqrt(scale / (scale + step - self.warmup))
