"""Schedules that change the rate along a curve, at fixed epochs, or when a validated value no longer improves."""

from __future__ import annotations

import bisect
import math
import typing
from collections.abc import Sequence
from typing import Any, Literal

from torch.optim import Optimizer

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.common.ranking import improves
from lightkit.optim.schedulers import FALLS, Interval, Schedule, check_interval, check_share

Shape = Literal["cosine", "linear"]


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

    def __init__(self, optimizer: Optimizer, *, floor: float = 0.0, interval: Interval = "step", **run: Any) -> None:
        self.floor, self.interval = check_share(floor, "floor"), check_interval(interval)
        super().__init__(optimizer, **run)

    def decay(self, step: int) -> float:
        """Return the curve between 1 and the floor."""
        return self.floor + (1.0 - self.floor) * self.curve(self.progress(step))

    def progress(self, step: int) -> float:
        """Return the share of the run after the warm-up that lies behind this step, 0 to 1."""
        if self.interval == "epoch":
            step -= step % self.steps_per_epoch
        return min(max(step - self.warmup, 0) / (self.total_steps - self.warmup), 1.0)

    def curve(self, progress: float) -> float:
        """Return a value from 1 (progress 0) to 0 (progress 1)."""
        raise NotImplementedError


class Linear(Anneal):
    """Falls in a straight line; the arguments are those of `Anneal`."""

    def curve(self, progress: float) -> float:
        """Follow a straight line from 1 to 0."""
        return FALLS["linear"](progress)


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

    def __init__(self, optimizer: Optimizer, *, cycles: int = 1, cycle_scale: float = 1.0, **run: Any) -> None:
        if cycles < 1:
            raise UserError("there is at least one cycle", argument="cycles", received=cycles)
        self.cycles, self.cycle_scale = cycles, check_share(cycle_scale, "cycle_scale", low=1e-9)
        super().__init__(optimizer, **run)

    def curve(self, progress: float) -> float:
        """Follow half a cosine per cycle."""
        cycle = min(int(progress * self.cycles), self.cycles - 1)
        height = self.cycle_scale**cycle
        return height * FALLS["cosine"](progress * self.cycles - cycle)


class OneCycle(Schedule):
    """Rises to each group's own rate, then falls to almost nothing (https://arxiv.org/abs/1708.07120).

    The rates are those of `torch.optim.lr_scheduler.OneCycleLR` at every step: `max_lr` is the rate of the group,
    `pct_start` is `peak`, `1 / div_factor` is `start`, and `1 / (div_factor * final_div_factor)` is `floor`. Momentum
    stays as the optimizer has it, as with `cycle_momentum=False`. A run that is made longer when it is resumed goes on
    where the curve of the new length has its step.

    Args:
        optimizer: See `Schedule`; its groups' rates are the peaks.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        peak: Share of the run at which the peak is reached, above 0 to below 1; at most 0.5 with three phases.
        start: Factor at the first step, above 0 to 1.
        floor: Factor at the last step, 0 to 1.
        anneal: Shape of rise and fall, `cosine` or `linear`.
        three_phase: Fall to `start` first, in as many steps as the rise, and in the rest of the run to the floor.

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
        floor: float = 4e-6,
        anneal: Shape = "cosine",
        three_phase: bool = False,
    ) -> None:
        if not 0.0 < peak < 1.0 or (three_phase and peak > 0.5):
            expected = "0 < peak <= 0.5 with three phases" if three_phase else "0 < peak < 1"
            raise UserError("the peak lies inside the run", argument="peak", expected=expected, received=peak)
        check_choice("anneal", anneal, typing.get_args(Shape), "no such shape")
        self.peak, self.lowest = peak, check_share(start, "start", low=1e-9)
        self.floor, self.three_phase = check_share(floor, "floor"), three_phase
        self.shape = FALLS[anneal]
        super().__init__(optimizer, total_steps=total_steps, steps_per_epoch=steps_per_epoch)

    def decay(self, step: int) -> float:
        """Return the factor on the curve between the two phase ends around this step."""
        begin, before = 0.0, self.lowest
        # Last step of each phase, which may lie between two steps, and the factor there.
        ends = [(self.peak * self.total_steps - 1, 1.0), (self.total_steps - 1.0, self.floor)]
        if self.three_phase:
            ends.insert(1, (2 * self.peak * self.total_steps - 2, self.lowest))
        for end, after in ends:
            if step <= end:
                break
            begin, before = end, after
        else:
            return self.floor  # behind the last step
        done = (step - begin) / (end - begin) if end > begin else 1.0
        return after + (before - after) * self.shape(done)


class Triangular(Schedule):
    """A rate that rises from `low` to `high` in the first half of the run and falls back to `low` in the second.

    One cycle of a fast geometric ensemble (https://arxiv.org/abs/1802.10026).

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        high: Factor at the middle of the run, relative to each group's own rate.
        low: Factor at its begin and end.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self, optimizer: Optimizer, *, total_steps: int, steps_per_epoch: int, high: float = 1.0, low: float = 0.01
    ) -> None:
        check_range("low", low, above=0, what="not a factor on the rate")
        check_range("high", high, low=low, what="the rate falls before it rises")
        self.high, self.low = high, low
        super().__init__(optimizer, total_steps=total_steps, steps_per_epoch=steps_per_epoch)

    def decay(self, step: int) -> float:
        """See `Schedule.decay`."""
        progress = min(step / max(self.total_steps - 1, 1), 1.0)
        return self.low + (self.high - self.low) * (1.0 - abs(2.0 * progress - 1.0))


class Step(Schedule):
    """Multiplies the rate with `gamma` at each milestone.

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of linear warm-up.
        warmup_epochs: The same in epochs; give one of the two.
        milestones: Epochs (also fractions such as 2.5) after which the rate falls, rising.
        every_epochs: Let the rate fall after every this many epochs instead; give one of the two.
        gamma: Factor at each milestone, above 0 to 1.
        floor: Lowest factor, 0 to 1, relative to each group's own rate.

    Raises:
        UserError: An argument is out of its range, or not exactly one of `milestones` and `every_epochs` is given.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        milestones: Sequence[float] = (),
        every_epochs: float | None = None,
        gamma: float = 0.1,
        floor: float = 0.0,
        steps_per_epoch: int,
        **run: Any,
    ) -> None:
        if bool(milestones) == bool(every_epochs):
            expected = "either milestones (such as [30, 60]) or every_epochs"
            given = {"milestones": list(milestones), "every_epochs": every_epochs}
            raise UserError("when the rate falls is not clear", argument="", expected=expected, received=given)
        if any(later <= earlier for earlier, later in zip([0.0, *milestones], milestones)):
            expected, listed = "rising epochs above 0", list(milestones)
            raise UserError("milestones out of order", argument="milestones", expected=expected, received=listed)
        if every_epochs is not None and every_epochs <= 0:
            expected = "above 0"
            raise UserError("not a number of epochs", argument="every_epochs", expected=expected, received=every_epochs)
        self.floor, self.gamma = check_share(floor, "floor"), check_share(gamma, "gamma", low=1e-9)
        self.milestones = [round(epoch * steps_per_epoch) for epoch in milestones]
        self.every = max(1, round(every_epochs * steps_per_epoch)) if every_epochs else None
        super().__init__(optimizer, steps_per_epoch=steps_per_epoch, **run)

    def decay(self, step: int) -> float:
        """Return `gamma` to the power of the milestones passed."""
        passed = step // self.every if self.every else bisect.bisect_right(self.milestones, step)
        return max(self.gamma**passed, self.floor)


class Plateau(Schedule):
    """Multiplies the rate with `factor` when the monitored value has not improved for some validations.

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of linear warm-up.
        warmup_epochs: The same in epochs; give one of the two.
        mode: Whether a smaller (`min`) or a larger (`max`) value is better.
        factor: Factor each time, above 0 to below 1.
        patience: Validations without improvement before the rate falls.
        threshold: Smallest change that counts as an improvement, in units of the monitored value.
        cooldown: Validations after a fall that are not counted.
        floor: Lowest factor, 0 to 1, relative to each group's own rate.

    Raises:
        UserError: An argument is out of its range.
    """

    monitored = True

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        mode: Literal["min", "max"],
        factor: float = 0.1,
        patience: int = 5,
        threshold: float = 0.0,
        cooldown: int = 0,
        floor: float = 0.0,
        **run: Any,
    ) -> None:
        check_choice("mode", mode, ("min", "max"), "unknown mode")
        if not 0.0 < factor < 1.0:
            expected = "0 < factor < 1"
            raise UserError("not a factor that lowers", argument="factor", expected=expected, received=factor)
        for name, value in (("patience", patience), ("threshold", threshold), ("cooldown", cooldown)):
            if value < 0 or math.isnan(value):
                raise UserError("cannot be negative", argument=name, received=value)
        self.mode, self.fall, self.patience, self.threshold = mode, factor, patience, threshold
        self.cooldown, self.floor = cooldown, check_share(floor, "floor")
        self.scale, self.best, self.waited, self.cooling = 1.0, None, 0, 0
        super().__init__(optimizer, **run)

    best: float | None

    def decay(self, step: int) -> float:
        """Return the factor reached so far."""
        return self.scale

    def epoch_end(self, value: float | None) -> None:
        """Take a validated value; the new rate holds from the next optimizer step.

        Raises:
            UserError: There is no value to watch.
        """
        if value is None:
            fix = "name a validation metric in metrics.monitor, or choose another scheduler"
            raise UserError("plateau needs a validated value", key="scheduler", fix=fix)
        if improves(value, self.best, mode=self.mode, min_delta=self.threshold):
            self.best, self.waited = value, 0
        else:
            self.waited += self.cooling == 0
        self.cooling = max(self.cooling - 1, 0)
        if self.waited > self.patience:
            self.scale, self.waited, self.cooling = max(self.scale * self.fall, self.floor), 0, self.cooldown
            self.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands, as plain types."""
        own = {"scale": self.scale, "best": self.best, "waited": self.waited, "cooling": self.cooling}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; see `Schedule.load_state_dict`."""
        self.scale, self.best = state["scale"], state["best"]
        self.waited, self.cooling = state["waited"], state["cooling"]
        super().load_state_dict(state)
