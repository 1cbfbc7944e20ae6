"""The problems of a configuration, and its checked values for the rules that compare several of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lightkit.common.errors import UserError
from lightkit.common.foreign_names import in_place_of
from lightkit.config.annotations import choices_of, in_words, shown_value
from lightkit.config.origins import Key, Sources, dotted, parts_of
from lightkit.config.schema import Config
from lightkit.config.schema.base import Range

if TYPE_CHECKING:
    from lightkit.config.policy import Trust

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)


class Report:
    """Collects problems and adds to each where it comes from.

    Args:
        sources: Origins of the values.
    """

    trust: Trust
    """What the configuration may build; set before its targets are judged."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self.errors = sources, list[UserError]()
        self.family: str | None = None
        """Family of the problems that name none; None goes by their keys."""
        self._keys = list[Key]()

    def add(self, key: Key, what: str, **facts: Any) -> None:
        """Note a problem with the value at `key`; `facts` are those of `UserError`."""
        self._keys.append(key)
        facts = {"family": self.family, **facts}
        self.errors.append(UserError(what, key=dotted(key), origin=self.sources.find(key), **facts))

    def take(self, error: UserError) -> None:
        """Note a problem that was found elsewhere, at the key that it names."""
        facts = {"expected": error.expected, "received": error.received, "choices": error.choices, "fix": error.fix}
        self.add(parts_of(error.key or ""), error.what, family=error.families[0].slug, **facts)

    def ask(self, key: Key, check: Callable[..., object], *values: object) -> bool:
        """Note what a check of a part refuses, which names an argument below `key`; tell whether it took the values."""
        try:
            check(*values)
        except UserError as error:
            error.put_under(dotted(key))
            self.take(error)
            return False
        return True

    def add_wrong_type(
        self, value: Any, kind: Any, key: Key, *, expected: str | None = None, fix: str | None = None
    ) -> None:
        """Note a value that is not of its type; `expected` says the type in other words."""
        choices = choices_of(kind)
        what = "not one of the choices" if choices else "wrong type"
        expected = None if choices else expected or in_words(kind)
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value) and (expected or "").startswith("a number"):
            fix = fix or f"{dotted(key)}={value.replace(',', '.')}, with a point"
        fix = fix or in_place_of(f"{dotted(key)}={value}")
        self.add(
            key, what, expected=expected, received=shown_value(value), choices=choices, fix=fix, family="wrong-value"
        )

    def has(self, key: Key) -> bool:
        """Tell whether a problem at a key or below it is noted."""
        return any(noted[: len(key)] == key for noted in self._keys)

    def check_range(self, value: Any, key: Key, allowed: Range | None) -> bool:
        """Note a number that is not among the allowed ones; True for any other value."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if allowed is None or not is_number or value in allowed:
            return True
        expected = f"a number {allowed}" + ("" if math.isfinite(value) else ", and finite")
        fix = allowed.instead_of_zero if value == 0 else None
        self.add(key, "out of range", expected=expected, received=value, fix=fix, family="wrong-value")
        return False


class Silent(Report):
    """Drops what it is told: what an interpolation leads to is reported where it stands itself."""

    def __init__(self) -> None:
        super().__init__(Sources())

    def add(self, key: Key, what: str, **facts: Any) -> None:
        """Do nothing."""


class UnusableError(AttributeError):
    """A value is missing or has a problem, which is reported: a rule that reads it has nothing to say."""


class Node(SimpleNamespace):
    """Values of a checked node of the configuration by name, with the defaults of what is not given.

    Values with a problem are left out. Of a node with a `_target_` the arguments are there as they are given.
    """

    def __getattr__(self, name: str) -> Any:
        raise UnusableError(name)


Rule = Callable[[Config, Report], None]
"""Reports values that are right on their own and wrong together. It takes a `Config` made of `Node`s, and is over as
soon as it reads a value that has a problem by itself."""
