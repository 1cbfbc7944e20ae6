"""From which step on a schedule keeps rates at 0, told from its rates at some steps of each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightkit.finetune.audit.plan import PhaseTable

_PROBES = 16

Rates = Mapping[int, Sequence[float]]
"""Optimizer step → rate of each group."""


def between(steps: Sequence[tuple[int, ...]], total_steps: int) -> set[int]:
    """Optimizer steps spread evenly over each phase: a schedule with cycles may be at 0 whenever an epoch begins.

    Args:
        steps: For each phase its first step, then others.
        total_steps: Optimizer steps of the run.
    """
    begins = [moments[0] for moments in steps]
    ends = [*begins[1:], total_steps]
    return {begin + (end - begin) * part // _PROBES for begin, end in zip(begins, ends) for part in range(_PROBES)}


def stops(rates: Rates, moments: Sequence[int], end: float) -> dict[int, int]:
    """Place of each group whose rate falls to 0 for the rest of a phase → the first of its steps with no other after.

    Args:
        rates: What is known of the run.
        moments: The steps of the phase to choose from.
        end: First step after it.
    """
    known = [step for step in rates if moments[0] <= step < end]
    found = {}
    for index in range(len(rates[known[0]]) if known else 0):
        last = max((step for step in known if rates[step][index] != 0.0), default=-1)
        idle = [step for step in moments if step > last]
        if idle:
            found[index] = idle[0]
    return found


def never_moving(table: PhaseTable) -> list[str]:
    """Groups that the schedule keeps still in all of a phase, one line each."""
    always = "its learning rate is 0 in every step, by the schedule; if that is meant, freeze it: finetune.freeze"
    return [f"group {row.group}: {always}" for row in table.rows if row.rate and row.stops == table.steps[0]]


def stopping(table: PhaseTable) -> list[str]:
    """Groups that the schedule keeps still from a later epoch of a phase on, one line each."""
    found = [row for row in table.rows if row.rate and row.stops is not None and row.stops > table.steps[0]]
    return [f"group {row.group}: its learning rate is 0 from step {row.stops} on, by the schedule" for row in found]
