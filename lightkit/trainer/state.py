"""The only counters of a run, and what is due at which of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from lightkit.common.ledger import Ledger
from lightkit.common.lengths import Length
from lightkit.common.ranking import improves


@dataclass
class State:
    """Where training stands, always at the boundary of an optimizer step."""

    epoch: int = 0
    """Epochs finished; also the number of the one under way."""
    samples_done: int = 0
    """Training samples of the epoch under way that went into an optimizer step."""
    step: int = 0
    """Optimizer steps taken."""
    validated_step: int = -1
    """Step of the last validation; -1 before the first."""
    best_value: float | None = None
    """Best value of the monitored metric so far."""
    best_step: int | None = None
    """Step of `best_value`."""
    best: dict[str, float] = field(default_factory=dict)
    """All values of the split that `best_value` was measured on, at that step."""
    closed_step: int = -1
    """Step after which an epoch, or the run, was last brought to its end; -1 before the first."""
    rows: int = 0
    """Lines of values logged so far."""
    logged: Ledger = field(default_factory=Ledger)
    """What tells whether these lines are still in their file; of a checkpoint that has none it is empty."""
    skipped: int = 0
    """Optimizer steps left out because the loss was not finite."""
    scaler_skipped: int = 0
    """Optimizer steps that the loss scale of fp16 left out because gradients overflowed, as of the last save: they are
    counted on the device, which is waited for then."""
    rollbacks: int = 0
    """Times the run went back to an earlier step because the loss was not finite."""
    last: dict[str, float] = field(default_factory=dict)
    """Newest value of every logged epoch metric."""
    owed: dict[str, Any] = field(default_factory=dict)
    """What the log of this step is made of, where an error came before what is due after the step was done."""
    stop_reason: str | None = None
    """Why training ended before its last step; None while it has not."""

    def keep_best(self, value: float, values: Mapping[str, float], *, mode: str) -> bool:
        """Keep the values of this step where the monitored one is the best so far.

        Of equal values the later is the better: on a small split accuracy soon reaches a value it then only repeats,
        and the model goes on learning.

        Args:
            value: The monitored value.
            values: All values of its split.
            mode: Whether `min` or `max` of it is better.
        """
        better = value == self.best_value or improves(value, self.best_value, mode=mode)
        if better:
            self.best_value, self.best_step, self.best = value, self.step, dict(values)
        return better

    def state_dict(self) -> dict[str, Any]:
        """Plain values of all counters; the dictionaries are copies."""
        # Not `asdict`: it goes through every value of them, and each save would wait for that.
        plain = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}
        return {**plain, "logged": self.logged.hex()}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Take over saved counters; unknown names are ignored, so that older files load."""
        for entry in fields(self):
            if entry.name in values and entry.name != "logged":
                setattr(self, entry.name, values[entry.name])
        self.logged = Ledger(values.get("logged", ""))


@dataclass(frozen=True)
class Timetable:
    """The lengths and intervals of a run, all counted in optimizer steps.

    Args:
        epoch_samples: Training samples per epoch.
        batch_size: Samples per batch.
        epochs: Passes over the training split; ignored when `steps` is given.
        steps: Optimizer steps to take in all.
        accumulate: Batches per optimizer step.
        validate_every: Epochs or steps between two validations.
        validate_unit: What `validate_every` counts, `epoch` or `step`.
        save_epochs: Epochs between two checkpoints; None saves at the end only.
        save_steps: Steps between two checkpoints in an epoch.
        save_minutes: Minutes after which a checkpoint in an epoch is due; None for none.
        log_steps: Steps between two logged training values.
        extra_steps: Steps the run has taken more than its epochs would at this batch size; fewer where negative.
        stop_at: Where this part of the run ends, to go on later; None takes it to its end. Nothing else depends on it.
    """

    epoch_samples: int
    batch_size: int
    epochs: int | None = 10
    steps: int | None = None
    accumulate: int = 1
    validate_every: int = 1
    validate_unit: str = "epoch"
    save_epochs: int | None = 1
    save_steps: int | None = None
    save_minutes: float | None = None
    log_steps: int = 50
    extra_steps: int = 0
    stop_at: Length | None = None

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a whole epoch, the last partial window included."""
        return math.ceil(self.epoch_samples / (self.batch_size * self.accumulate))

    @cached_property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * self.steps_per_epoch + self.extra_steps

    @property
    def total_epochs(self) -> int:
        """Epochs of the whole run, a last partial one counted as one."""
        return math.ceil((self.total_steps - self.extra_steps) / self.steps_per_epoch)

    def continued(self, *, step: int, epoch: int, samples_done: int) -> Timetable:
        """Go on from where a run stands that may have come there with another batch size: epochs stay whole.

        Args:
            step: Optimizer steps taken.
            epoch: Epochs finished.
            samples_done: Samples done in the one under way.
        """
        left = max(0, self.epoch_samples - samples_done)
        usual = (epoch + 1) * self.steps_per_epoch - math.ceil(left / (self.batch_size * self.accumulate))
        return replace(self, extra_steps=step - usual)

    def pauses_at(self, *, step: int, epoch: int) -> bool:
        """Tell whether this part of the run is over after so many steps and finished epochs."""
        stop = self.stop_at
        return stop is not None and (step if stop.unit == "step" else epoch) >= stop.count

    @property
    def pauses(self) -> bool:
        """Tell whether this part of the run is over no later than the whole run."""
        return self.pauses_at(step=self.total_steps, epoch=self.total_epochs)

    def validates_after_step(self, step: int) -> bool:
        """Tell whether a validation is due at this step because steps are counted."""
        return self.validate_unit == "step" and step % self.validate_every == 0

    def validates_after_epoch(self, epoch: int) -> bool:
        """Tell whether a validation is due after this many finished epochs."""
        return self.validate_unit == "epoch" and epoch % self.validate_every == 0

    def saves_after_step(self, step: int) -> bool:
        """Tell whether a checkpoint is due at this step."""
        return self.save_steps is not None and step % self.save_steps == 0

    def saves_after_epoch(self, epoch: int) -> bool:
        """Tell whether a checkpoint is due after this many finished epochs."""
        return self.save_epochs is not None and epoch % self.save_epochs == 0

    def window(self, samples_done: int) -> int:
        """Count the samples of the optimizer step that starts after `samples_done` samples of the epoch."""
        return min(self.accumulate * self.batch_size, self.epoch_samples - samples_done)
