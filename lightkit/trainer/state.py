"""The only counters of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lightkit.common.ledger import Ledger
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
