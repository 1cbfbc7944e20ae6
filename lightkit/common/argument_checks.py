"""Checks of a part's arguments: where a part is built without a configuration, no schema has looked at them.

What a rule says of several arguments stands here once, for the part and for the check of configurations, which imports
no PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightkit.common.errors import UserError


@dataclass(frozen=True)
class Range:
    """The numbers that are allowed; infinity and not-a-number never are."""

    low: float | None = None
    """The smallest one."""
    high: float | None = None
    """The largest one."""
    above: float | None = None
    """They are larger than this."""
    below: float | None = None
    """They are smaller than this."""
    instead_of_zero: str | None = None
    """What to do in place of a 0 that is not allowed."""

    def __contains__(self, value: float) -> bool:
        low, high = (value if bound is None else bound for bound in (self.low, self.high))
        above, below = -math.inf if self.above is None else self.above, math.inf if self.below is None else self.below
        return math.isfinite(value) and low <= value <= high and above < value < below

    def __str__(self) -> str:
        bounds = {"above": self.above, "at least": self.low, "below": self.below, "at most": self.high}
        return ", ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)


def check_choice(argument: str, value: object, choices: Iterable[str], what: str = "not a valid choice") -> None:
    """Refuse a value that is not one of the choices.

    Args:
        argument: Name of the argument.
        value: Its value.
        choices: The valid values.
        what: What is wrong otherwise, in words.

    Raises:
        UserError: The value is not among them.
    """
    valid = tuple(choices)
    if value not in valid:
        raise UserError(what, argument=argument, received=value, choices=valid, family="wrong-value")


def check_range(
    argument: str,
    value: float | None,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    what: str = "out of range",
) -> None:
    """Refuse a number outside of a range; infinity and not-a-number always are.

    Args:
        argument: Name of the argument.
        value: Its value; None is no number, and passes.
        low: The smallest valid value; give this or `above`.
        above: Valid values are larger than this.
        high: The largest valid value; None for both this and `below` sets no limit.
        below: Valid values are smaller than this.
        what: What is wrong otherwise, in words.

    Raises:
        UserError: The value is outside.
    """
    if value is None or value in Range(low, high, above, below):
        return
    upper = f" to {high:g}" if high is not None else f" to below {below:g}" if below is not None else ""
    expected = f"above {above:g}{upper}" if low is None else f"{low:g}{upper or ' or more'}"
    expected += "" if math.isfinite(value) else ", and finite"
    raise UserError(what, argument=argument, expected=expected, received=value, family="wrong-value")


def check_norm(clip_type: float | str) -> None:
    """Refuse the order of a norm that is none.

    Raises:
        UserError: It is neither a number above 0 nor `inf`.
    """
    if not (clip_type == "inf" if isinstance(clip_type, str) else clip_type > 0):
        what, expected = "no such norm", "a number above 0, or inf"
        raise UserError(what, argument="clip_type", expected=expected, received=clip_type, family="wrong-value")


IN_ORDER = ("ordered", "time", "time_fold")
"""Ways to split in which training rows come before all others."""
FOLDS = ("fold", "time_fold")
"""Ways to split into folds."""
REPEATED = ("seed", "data.split.seed", "data.split.fold")
"""Keys that repeat a run with other luck: runs that differ in nothing else are replicates, and never compete."""


def check_replicates(key: str, values: Sequence[int], by: str) -> None:
    """Refuse values of a key that do not repeat a run with other luck, each another one.

    Args:
        key: The key; the name of the argument as well.
        values: Those of the replicates.
        by: Way to split.

    Raises:
        UserError: They do not.
    """
    check_choice(key, key, REPEATED, "not a key that repeats a run: what competes is swept over")
    if not values or len({*values}) < len(values):
        what, expected = "each replicate has a value of its own", "different whole numbers, such as [0, 1, 2]"
        raise UserError(what, argument=key, expected=expected, received=values, family="wrong-value")
    if key == REPEATED[-1] and by not in FOLDS:
        fix = f"data.split.by={FOLDS[0]}"
        raise UserError("without folds, all of these are the same", argument=key, received=values, fix=fix)


def check_shares(by: str, val: float, test: float) -> None:
    """Refuse shares of the rows that leave none for training; those of folds are of equal size.

    Raises:
        UserError: They leave none.
    """
    if by not in FOLDS and val + test >= 1:
        what, expected = "val and test leave no training rows", "val + test below 1"
        raise UserError(what, argument="split", expected=expected, received=val + test, family="split")


def check_fold(by: str, folds: int, fold: int) -> None:
    """Refuse a fold that is not one of the folds.

    Raises:
        UserError: There is none of this number.
    """
    if by in FOLDS:
        check_range("split.fold", fold, low=0, high=folds - 1, what="there is no such fold")


def check_cycles(size: int, epochs: int | None, steps: int | None = None) -> None:
    """Refuse cycles that do not divide the epochs of a run.

    Args:
        size: Number of cycles.
        epochs: Length of the run; None where it is counted in steps.
        steps: Length of the run in steps; None where it is counted in epochs.

    Raises:
        UserError: They do not.
    """
    if steps is not None or epochs is None or epochs % size:
        raise UserError(
            "the cycles do not divide the epochs of the run",
            argument="epochs" if steps is None else "steps",
            expected=f"trainer.epochs a multiple of {size}, the cycles (ensemble.size)",
            received=epochs if steps is None else steps,
            family="ensemble",
        )


def check_rates(low: float, high: float) -> None:
    """Refuse a cycle of rates that does not rise.

    Raises:
        UserError: It does not.
    """
    if not 0 < low < high:
        what, expected = "a cycle needs a smaller and a larger rate", f"above 0 and below ensemble.high ({high})"
        raise UserError(what, argument="low", expected=expected, received=low, family="ensemble")
