"""Schedules that lower the rate at once: at fixed epochs, or when a validated value no longer improves."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any, Literal

from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.ranking import improves
from lightkit.optim.schedulers import Schedule, check_share


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
        total_steps: int,
        steps_per_epoch: int,
        warmup_steps: int = 0,
        warmup_epochs: float = 0.0,
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
        super().__init__(
            optimizer,
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            warmup_steps=warmup_steps,
            warmup_epochs=warmup_epochs,
        )

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
        total_steps: int,
        steps_per_epoch: int,
        warmup_steps: int = 0,
        warmup_epochs: float = 0.0,
    ) -> None:
        if mode not in ("min", "max"):
            raise UserError("unknown mode", argument="mode", received=mode, choices=("min", "max"))
        if not 0.0 < factor < 1.0:
            expected = "0 < factor < 1"
            raise UserError("not a factor that lowers", argument="factor", expected=expected, received=factor)
        for name, value in (("patience", patience), ("threshold", threshold), ("cooldown", cooldown)):
            if value < 0 or math.isnan(value):
                raise UserError("cannot be negative", argument=name, received=value)
        self.mode, self.fall, self.patience, self.threshold = mode, factor, patience, threshold
        self.cooldown, self.floor = cooldown, check_share(floor, "floor")
        self.scale, self.best, self.waited, self.cooling = 1.0, None, 0, 0
        super().__init__(
            optimizer,
            steps_per_epoch=steps_per_epoch,
            total_steps=total_steps,
            warmup_epochs=warmup_epochs,
            warmup_steps=warmup_steps,
        )

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
