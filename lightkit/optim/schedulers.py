"""The learning rate over time.

The rate of a parameter group is its own rate times a factor, and the factor is a function of the step alone. So the
ratio of two groups never changes, a resumed run continues on the same curve, and a run may be made longer when it is
resumed. Only a group with a warm-up of its own (`warmup_steps`, counted from its `first_step`) is lower at first, by a
factor that is a function of the step too.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from typing import Any, Literal

from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.stepping import set_rate
from lightkit.common.text import counted

Interval = Literal["step", "epoch"]

FALLS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "sqrt": lambda done: 1.0 - math.sqrt(done),
}
"""Curves from 1 (nothing of the fall is done) to 0 (all of it is)."""
_SETTINGS = ("rules", "warmup_steps", "warmup_key", "first_step")
"""What groups carry beside the settings of the optimizer; see `parameter_groups`."""


class Schedule:
    """Base of all schedules, and the plain case: a constant rate after an optional linear warm-up.

    Step n of training (counted from 0) uses `initial_lr * factor(n)`. A group with `warmup_steps` w and `first_step` f
    has this times (n - f + 1) / (w + 1) until that is 1, and nothing before step f. A subclass overrides `decay`, and
    sets what it needs for it before it calls this constructor, which already sets the rates of step 0.

    Args:
        optimizer: Its groups' `lr` at this moment become their own rates, kept in each group as `initial_lr`.
        total_steps: Optimizer steps of the whole run.
        steps_per_epoch: Optimizer steps of an epoch.
        warmup_steps: Optimizer steps of linear warm-up.
        warmup_epochs: The same in epochs; give one of the two.

    Raises:
        UserError: A size is negative, both warm-ups are given, or a warm-up does not fit into the run.
    """

    monitored = False
    """Whether `epoch_end` needs the validated value."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        total_steps: int,
        steps_per_epoch: int,
        warmup_steps: int = 0,
        warmup_epochs: float = 0.0,
    ) -> None:
        if total_steps < 1 or steps_per_epoch < 1:
            raise UserError(
                "there is no step to train for",
                argument="total_steps",
                expected="at least one optimizer step and one step per epoch",
                received={"total_steps": total_steps, "steps_per_epoch": steps_per_epoch},
            )
        self.optimizer, self.total_steps, self.steps_per_epoch = optimizer, total_steps, steps_per_epoch
        self.warmup = _warmup(warmup_steps, warmup_epochs, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
        self.count, self._applied = 0, math.nan
        self.rate_scale = 1.0
        self.beside: dict[int, tuple[Schedule, int]] = {}
        self.own_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.own_settings = [{key: group[key] for key in _SETTINGS if key in group} for group in optimizer.param_groups]
        own = "warmup_steps" in optimizer.defaults  # then it warms up each group by itself, as schedule-free ones do
        self.warmups = [
            (group.get("first_step", 0), 0 if own else group.get("warmup_steps", 0)) for group in optimizer.param_groups
        ]
        for group, (first, steps) in zip(optimizer.param_groups, self.warmups):
            if steps and first + steps >= total_steps:
                most = max(total_steps - first - 1, 0)
                raise UserError(
                    f"the warm-up of group {group.get('name', '?')} ends after the run",
                    key=group.get("warmup_key"),
                    expected=f"at most {counted(most, 'step')}: it trains from step {first} of {total_steps}",
                    received=steps,
                    fix="a shorter warm-up, or a longer run",
                )
        self._last_warm = max((first + steps for first, steps in self.warmups if steps), default=-1)
        self.refresh()

    def refresh(self) -> None:
        """Write the rates of the current step into the optimizer, and each group's settings of this run."""
        self.keep_settings()
        for group, rate in zip(self.optimizer.param_groups, self.own_rates):
            group["initial_lr"] = rate
        self._apply(self.factor(self.count))

    def keep_settings(self) -> None:
        """Put this run's settings back into the groups, which a loaded optimizer has from where it was saved."""
        for group, own in zip(self.optimizer.param_groups, self.own_settings):
            for key in _SETTINGS:
                group.pop(key, None)
            group.update(own)

    def step(self) -> None:
        """Move to the next step; call it after every optimizer step."""
        self.count += 1
        factor = self.factor(self.count)
        if factor != self._applied or self.count <= self._last_warm or self.beside:
            self._apply(factor)

    def leave(self, make: Callable[[Any], Schedule], part: str) -> None:
        """Leave the groups of one of several optimizers to a schedule of its own, which is a function of the step.

        Args:
            make: Makes it for an optimizer.
            part: Name of that optimizer.
        """
        numbers = [number for number, group in enumerate(self.optimizer.param_groups) if group["part"] == part]
        for number in numbers:
            set_rate(self.optimizer.param_groups[number], self.own_rates[number])
        own = make(self.optimizer.parts[part])  # type: ignore[attr-defined]
        self.beside |= {number: (own, at) for at, number in enumerate(numbers)}
        self.refresh()

    def rates(self, step: int) -> list[float]:
        """Return each group's rate in this step, from what is known now; change nothing."""
        return self._rates(step, self.factor(step))

    def rescale(self, scale: float) -> None:
        """Multiply all rates with `scale` from now on, besides what the schedule does to them."""
        self.rate_scale = scale
        self.refresh()

    def epoch_end(self, value: float | None) -> None:
        """Take the monitored value of a validation; only `Plateau` and some of PyTorch's schedules use it."""

    def factor(self, step: int) -> float:
        """Return the factor on every group's own rate in this step."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        return self.decay(step)

    def decay(self, step: int) -> float:
        """Return the factor after the warm-up."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands, as plain types."""
        return {"count": self.count, "rate_scale": self.rate_scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, with the rates and lengths of this schedule, not with the stored ones.

        Load the optimizer first: its saved groups bring their old rates along.
        """
        self.count, self.rate_scale = state["count"], state.get("rate_scale", 1.0)
        self.refresh()

    def _rates(self, step: int, factor: float) -> list[float]:
        rates = [rate * factor * self.rate_scale for rate in self.own_rates]
        if step <= self._last_warm:
            done = [min(max(step - first + 1, 0) / (steps + 1), 1.0) if steps else 1.0 for first, steps in self.warmups]
            rates = [rate * share for rate, share in zip(rates, done)]
        for number, (own, at) in self.beside.items():
            own.total_steps = self.total_steps  # a resumed run may be made longer
            rates[number] = own.rates(step)[at] * self.rate_scale
        return rates

    def _apply(self, factor: float) -> None:
        self._applied = factor
        for group, now in zip(self.optimizer.param_groups, self._rates(self.count, factor)):
            set_rate(group, now)


class Constant(Schedule):
    """The same rate to the last step, after an optional warm-up; the arguments are those of `Schedule`."""


def check_share(value: float, name: str, *, low: float = 0.0) -> float:
    """Return a value that is a number from `low` to 1.

    Raises:
        UserError: It is not.
    """
    if not low <= value <= 1.0:
        raise UserError("not a share", argument=name, expected="a number from 0 to 1", received=value)
    return value


def check_interval(value: Interval) -> Interval:
    """Return an interval that is `step` or `epoch`.

    Raises:
        UserError: It is not.
    """
    if value not in typing.get_args(Interval):
        raise UserError("unknown interval", argument="interval", received=value, choices=typing.get_args(Interval))
    return value


def _warmup(steps: int, epochs: float, *, total_steps: int, steps_per_epoch: int) -> int:
    """Return the steps of warm-up from the one of the two settings that is given."""
    if steps < 0 or epochs < 0:
        received = {"warmup_steps": steps, "warmup_epochs": epochs}
        raise UserError("a warm-up cannot be negative", argument="", received=received)
    if steps and epochs:
        fix = "set one of scheduler.warmup_steps and scheduler.warmup_epochs to 0"
        raise UserError("the warm-up is given twice", argument="", fix=fix, family="contradiction")
    warmup = steps or round(epochs * steps_per_epoch)
    if warmup >= total_steps:
        raise UserError(
            "the warm-up is as long as the run or longer",
            argument="warmup_steps" if steps else "warmup_epochs",
            expected=f"fewer than the {total_steps} steps of the run ({total_steps / steps_per_epoch:g} epochs)",
            received=counted(steps, "step") if steps else f"{epochs:g} epochs ({counted(warmup, 'step')})",
            fix=f"scheduler.{'warmup_steps' if steps else 'warmup_epochs'}=0, a shorter warm-up, or a longer run",
        )
    return warmup
