"""The one way in which parts refuse a number that lies outside its range."""

from __future__ import annotations

from lightkit.common.errors import UserError


def check_range(
    value: float | None,
    argument: str,
    what: str = "out of range",
    *,
    low: float,
    high: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse a number that lies outside its range, and NaN.

    Args:
        value: The number; None is none, and passes.
        argument: Name of the argument that it is, for the error.
        what: What is wrong, in a few words.
        low: The smallest that is allowed.
        high: The largest that is allowed.
        below: It must be smaller than this.

    Raises:
        UserError: It is smaller or larger.
    """
    if value is None or (low <= value and (high is None or value <= high) and (below is None or value < below)):
        return
    expected = f"{low} or more"
    if high is not None:
        expected = f"{low} to {high}"
    elif below is not None:
        expected = f"{low} to below {below}"
    raise UserError(what, argument=argument, expected=expected, received=value, family="wrong-value")
