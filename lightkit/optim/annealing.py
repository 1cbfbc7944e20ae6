"""Schedules that change the rate along a smooth curve."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.optim.schedulers import Interval, Schedule, check_interval, check_share


class Anneal(Schedule):
    """Base of the schedules that fall from 1 to a floor over the run; a subclass overrides `curve`.

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of linear warm-up.
        warmup_epochs: The same in epochs; give one of the two.
        floor: Factor at the end of the run, 0 to 1, relative to each group's own rate.
        interval: Whether the factor falls at every `step`, or once per `epoch`. The warm-up always rises at every step.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        floor: float = 0.0,
        interval: Interval = "step",
        total_steps: int,
        steps_per_epoch: int,
        warmup_steps: int = 0,
        warmup_epochs: float = 0.0,
    ) -> None:
        self.floor, self.interval = check_share(floor, "floor"), check_interval(interval)
        super().__init__(
            optimizer,
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            warmup_steps=warmup_steps,
            warmup_epochs=warmup_epochs,
        )

    def decay(self, step: int) -> float:
        """The curve between 1 and the floor."""
        return self.floor + (1.0 - self.floor) * self.curve(self.progress(step))

    def progress(self, step: int) -> float:
        """Share of the run after the warm-up that lies behind this step, 0 to 1."""
        if self.interval == "epoch":
            step -= step % self.steps_per_epoch
        return min(max(step - self.warmup, 0) / (self.total_steps - self.warmup), 1.0)

    def curve(self, progress: float) -> float:
        """A value from 1 (progress 0) to 0 (progress 1)."""
        raise NotImplementedError


class Linear(Anneal):
    """Falls in a straight line; the arguments are those of `Anneal`."""

    def curve(self, progress: float) -> float:
        """A straight line from 1 to 0."""
        return 1.0 - progress


class Cosine(Anneal):
    """Falls along half a cosine, with optional restarts (SGDR, https://arxiv.org/abs/1608.03983).

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of linear warm-up.
        warmup_epochs: The same in epochs; give one of the two.
        floor: Factor at the end of each cycle, 0 to 1, relative to each group's own rate.
        interval: Whether the factor falls at every `step`, or once per `epoch`.
        cycles: Number of times the rate falls; at the end of each but the last it jumps up again.
        cycle_scale: Factor on the height of each cycle relative to the one before, above 0 to 1.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        cycles: int = 1,
        cycle_scale: float = 1.0,
        interval: Interval = "step",
        floor: float = 0.0,
        total_steps: int,
        steps_per_epoch: int,
        warmup_steps: int = 0,
        warmup_epochs: float = 0.0,
    ) -> None:
        if cycles < 1:
            raise UserError("there is at least one cycle", key="scheduler.cycles", received=cycles)
        self.cycles, self.cycle_scale = cycles, check_share(cycle_scale, "cycle_scale", low=1e-9)
        super().__init__(
            optimizer,
            floor=floor,
            interval=interval,
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            warmup_steps=warmup_steps,
            warmup_epochs=warmup_epochs,
        )

    def curve(self, progress: float) -> float:
        """Half a cosine per cycle."""
        cycle = min(int(progress * self.cycles), self.cycles - 1)
        height = self.cycle_scale**cycle
        return height * _half_cosine(progress * self.cycles - cycle)


class OneCycle(Schedule):
    """Rises along half a cosine to each group's own rate, then falls to almost nothing (https://arxiv.org/abs/1708.07120).

    Args:
        optimizer: See `Schedule`; its groups' rates are the peaks.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        peak: Share of the run at which the peak is reached, above 0 to below 1.
        start: Factor at the first step, above 0 to 1.
        floor: Factor at the end of the run, 0 to 1.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        total_steps: int,
        steps_per_epoch: int,
        peak: float = 0.3,
        start: float = 0.04,
        floor: float = 1e-5,
    ) -> None:
        if not 0.0 < peak < 1.0:
            raise UserError(
                "the peak lies inside the run", key="scheduler.peak", expected="0 < peak < 1", received=peak
            )
        self.peak, self.lowest = peak, check_share(start, "start", low=1e-9)
        self.floor = check_share(floor, "floor")
        super().__init__(optimizer, total_steps=total_steps, steps_per_epoch=steps_per_epoch)

    def decay(self, step: int) -> float:
        """Half a cosine up, half a cosine down."""
        top = self.peak * self.total_steps
        if step < top:
            return 1.0 - (1.0 - self.lowest) * _half_cosine(step / top)
        return self.floor + (1.0 - self.floor) * _half_cosine(min((step - top) / (self.total_steps - top), 1.0))


def _half_cosine(progress: float) -> float:
    """From 1 (progress 0) to 0 (progress 1)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))
