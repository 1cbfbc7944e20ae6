"""What a plan says of each group of parameters in each phase, and where live objects differ from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lightkit.finetune.audit.formatting import format_names, format_rate


@dataclass(frozen=True)
class GroupRow:
    """One group of the optimizer, or what has none, in one phase."""

    group: str
    """Name of the group; `never trained` for what has none."""
    names: tuple[str, ...] = field(repr=False)
    """Names of its parameters."""
    parameters: int
    """Number of elements in them."""
    frozen: bool
    """Whether they are frozen."""
    rate: float | None
    """The group's own learning rate, before any schedule; None without a group."""
    rates: tuple[float, ...] | None
    """Learning rate at each of the phase's `steps`; None where there is none, or it depends on values not known yet."""
    weight_decay: float | None
    """Weight decay; None without a group."""
    norm: str | None
    """Mode of its norm layers with running statistics: any of `train`, `stats` (statistics go on, weights are frozen)
    and `frozen`, joined by `+`; empty where there are none, None where it is not known."""
    rules: tuple[str, ...]
    """Configuration keys that put the parameters here."""
    state_bytes: int | None = None
    """What the optimizer keeps for them once they train; None where it is not known."""
    zero_from: int | None = None
    """The first of the phase's `steps` from which on the schedule keeps the rate at 0 until it ends; None for none."""

    @property
    def tensors(self) -> int:
        """Number of parameters as tensors."""
        return len(self.names)

    def differences(self, live: GroupRow, *, decay: bool) -> list[str]:
        """List where the row of live objects is not as planned here, but for the rates over time.

        Args:
            live: The row of the live objects.
            decay: Compare weight decays.
        """
        lines = []
        missing = [name for name in self.names if name not in set(live.names)]
        extra = [name for name in live.names if name not in set(self.names)]
        if missing:
            lines.append(f"without {format_names(missing)}")
        if extra:
            lines.append(f"also with {format_names(extra)}")
        compared = ["frozen", "parameters", "rate", *(["weight_decay"] if decay else [])]
        compared += [] if self.rate is None else ["rules"]
        for name in compared:
            expected, value = getattr(self, name), getattr(live, name)
            if expected != value:
                lines.append(f"{name.replace('_', ' ')} {value}, planned {expected}")
        if live.norm is not None and self.norm != live.norm:
            lines.append(f"norm layers {live.norm or 'none'}, planned {self.norm or 'none'}")
        return lines


@dataclass(frozen=True)
class PhaseTable:
    """The rows of one phase."""

    phase: str
    """When it begins: `epoch 3`."""
    steps: tuple[int, ...]
    """The optimizer steps whose rates are known: the first of the phase, then the first of each epoch in it."""
    rows: tuple[GroupRow, ...]
    """The groups in the order of the optimizer, then what has none."""
    state_bytes: int | None = None
    """What the optimizer keeps from this phase on, for everything that has trained until then."""

    @property
    def trainable(self) -> int:
        """Number of elements that train."""
        return sum(row.parameters for row in self.rows if not row.frozen)

    @property
    def parameters(self) -> int:
        """Number of elements in all."""
        return sum(row.parameters for row in self.rows)

    def knows_rates(self, step: int) -> bool:
        """Tell whether the rates of an optimizer step are known."""
        return step in self.steps and not any(row.rates is None for row in self.rows if row.rate is not None)

    def groups_without_rate(self) -> list[str]:
        """List the groups that the schedule keeps still in all of the phase, one line each."""
        always = "its learning rate is 0 in every step, by the schedule; if that is meant, freeze it: finetune.freeze"
        return [f"group {row.group}: {always}" for row in self.rows if row.rate and row.zero_from == self.steps[0]]

    def groups_that_stop(self) -> list[str]:
        """List the groups that the schedule keeps still from a later epoch of the phase on, one line each."""
        return [
            f"group {row.group}: its learning rate is 0 from step {row.zero_from} on, by the schedule"
            for row in self.rows
            if row.rate and row.zero_from is not None and row.zero_from > self.steps[0]
        ]

    def differences(self, live: PhaseTable, *, rate_scale: float | None = 1.0, decay: bool = True) -> list[str]:
        """List where live objects are not as planned here; see `live_table`.

        Args:
            live: The table of the live objects.
            rate_scale: What all rates are multiplied with besides the schedule; None leaves them out.
            decay: Compare weight decays.

        Returns:
            One line each, with the names.
        """
        planned, found = ({row.group: row for row in table.rows} for table in (self, live))
        lines = [f"group {name} is not in the plan" for name in found if name not in planned]
        lines += [f"group {name} of the plan is not there" for name in planned if name not in found]
        for name, row in planned.items():
            if name in found:
                differing = row.differences(found[name], decay=decay)
                expected: dict[int, float] = {}
                if row.rates is not None and rate_scale is not None:
                    expected = {step: rate * rate_scale for step, rate in zip(self.steps, row.rates)}
                differing += [
                    f"learning rate {format_rate(rate)} at step {step}, planned {format_rate(expected[step])}"
                    for step, rate in zip(live.steps, found[name].rates or ())
                    if step in expected and not math.isclose(rate, expected[step], rel_tol=1e-6)
                ]
                lines += [f"group {name}: {line}" for line in differing]
        return lines
