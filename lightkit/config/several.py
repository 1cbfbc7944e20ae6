"""Several values for one key: where they are not wanted, and a range that was meant otherwise."""

from __future__ import annotations

import re
from typing import Any

from lightkit.common.errors import UserError
from lightkit.config.annotations import fits
from lightkit.config.fields import class_at, field_types
from lightkit.config.loader import Override
from lightkit.config.origins import command_line, parts_of

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
"""A number with a comma for its point."""


def wrong_sweep(override: Override, text: str, *, sweep: bool, choice: bool) -> UserError | None:
    """Make the error for several values of one key that cannot be.

    Args:
        override: What was typed.
        text: As it was typed.
        sweep: Whether several runs are wanted.
        choice: Whether it chooses options of a group.

    Returns:
        None where they can be, or where there is one value.
    """
    if not override.is_sweep_override():
        return None
    if not sweep:
        return _needs_multirun(text, override, choice=choice)
    if override.is_hydra_override():
        what = "Hydra's own settings can't be swept"
        return UserError(what, key=override.key_or_group, origin=command_line(text), family="hydra")
    return _empty_range(override, text)


def _needs_multirun(text: str, override: Override, *, choice: bool) -> UserError:
    what, value = "several values for one key start several runs, which wants -m", text.partition("=")[2]
    wanted = "options that go together" if choice else "a list"
    quoted = "" if choice else ", or for a text put quotes around it"
    fix = f"add -m, or for {wanted} write {override.get_key_element()}=[…]{quoted}"
    if DECIMAL_COMMA.fullmatch(value) and not _is_whole(override.key_or_group):
        fix = f"{override.key_or_group}={value.replace(',', '.')}, with a point; for several runs add -m"
    return UserError(
        what,
        key=override.key_or_group,
        received=value,
        origin=command_line(text),
        fix=fix,
        family="wrong-command",
    )


def _is_whole(key: str) -> bool:
    """Tell whether the value of a key can be a whole number, and no other one."""
    *above, name = parts_of(key)
    kind = class_at(tuple(above))
    hint = field_types(kind).get(str(name)) if kind is not None else None
    return hint is not None and fits(1, hint) and not fits(0.5, hint)


def _empty_range(override: Override, text: str) -> UserError | None:
    """Make the error for a range of fractions that is one value, as it counts in steps of 1."""
    if not override.is_range_sweep():
        return None
    counted: Any = override.value()
    numbers = (counted.start, counted.stop, counted.step)
    if all(float(number).is_integer() for number in numbers) or len(list(counted.range())) > 1:
        return None
    key, (start, stop, step) = override.key_or_group, numbers
    what = f"this range counts from {start:g} to {stop:g} in steps of {step:g}, which is one value"
    wanted = f"a start, the number it stops before, and a step: {key}=range(0.1,0.5,0.1)"
    fix = f"the values themselves: {key}={stop / 100:g},{stop / 10:g},{stop:g}"
    received = text.partition("=")[2]
    return UserError(
        what, key=key, expected=wanted, received=received, origin=command_line(text), fix=fix, family="wrong-value"
    )
