"""Rules that give parameters settings of their own: what a rule may say, and which parameters it is for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkit.common.errors import UserError, keys_under
from lightkit.common.patterns import Matched, Pattern

_FIELDS = ("match", "name", "lr", "lr_scale", "weight_decay", "warmup_steps", "allow_zero")
_RESOLVED = ("names", "key", "lr_ratio")
_VALUES = ("lr", "lr_scale", "lr_ratio", "weight_decay", "warmup_steps")


@dataclass(frozen=True)
class Rule:
    """A checked rule."""

    key: str
    """Where it stands in the configuration."""
    name: str
    """Its part of the names of groups."""
    patterns: tuple[str, ...]
    """Patterns over parameter names; only shown where `names` are given."""
    names: frozenset[str] | None = None
    """The names of the parameters, where they have been found already."""
    lr: float | None = None
    """The rate itself."""
    lr_scale: float | None = None
    """Factor on the optimizer's rate, in place of that of an earlier rule."""
    lr_ratio: float | None = None
    """Factor on what all other rules make of the rate."""
    weight_decay: float | None = None
    """The weight decay itself."""
    warmup_steps: int | None = None
    """Optimizer steps of linear warm-up, counted from the first step the parameter trains at."""

    @property
    def scales(self) -> bool:
        """Tell whether there must be a rate to multiply."""
        return self.lr_scale is not None or self.lr_ratio is not None


def read_rules(rules: Sequence[Mapping[str, Any]]) -> list[Rule]:
    """Check rules as they stand in the configuration.

    Raises:
        UserError: A rule is not understood, or a value is out of its range.
    """
    found: list[Rule] = []
    own = 0
    for rule in rules:
        key = rule.get("key") or f"optim.rules[{own}]"
        with keys_under(key):
            found.append(_read(rule, key))
        own += not rule.get("key")
    return found


def check_rate(rate: float | None, argument: str, *, hint: str = "") -> None:
    """Refuse what is not a rate, or a factor on one.

    Args:
        rate: The rate; None is none.
        argument: Name of the argument that it is, for the error.
        hint: How a rate of 0 may be had, where it may.

    Raises:
        UserError: It is not a number above 0.
    """
    if rate is None or (math.isfinite(rate) and rate > 0.0):
        return
    if rate == 0.0:
        fix = (
            "freeze these parameters instead: they would still take memory and time, and norm layers would still change"
        )
        raise UserError("a learning rate of 0 does not train", argument=argument, received=rate, fix=fix + hint)
    raise UserError("not a learning rate", argument=argument, expected="a finite number above 0", received=rate)


def check_decay(decay: float | None, argument: str) -> None:
    """Refuse what is not a weight decay.

    Raises:
        UserError: It is not a number from 0.
    """
    if decay is not None and not (math.isfinite(decay) and decay >= 0.0):
        raise UserError("not a weight decay", argument=argument, expected="a finite number, 0 or above", received=decay)


def targets(rule: Rule, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Find the first names of the parameters that a rule is for.

    Args:
        rule: The rule.
        known: First name → all names of every parameter that has a group.

    Raises:
        UserError: One of the patterns, or the whole list of names, is for no parameter that has a group.
    """
    if rule.names is not None:
        named = [first for first, names in known.items() if not rule.names.isdisjoint(names)]
        if not named:
            raise UserError(
                "the settings are for parameters that never train",
                key=f"{rule.key}.match" if rule.patterns else rule.key,
                received=", ".join(rule.patterns or sorted(rule.names)[:8]),
                fix="unfreeze these parameters, or leave the settings out",
                family="finetuning",
            )
        return named
    found = matched(rule, known)
    return list(dict.fromkeys(name for pattern in found for name in pattern.names))


def matched(rule: Rule, known: Mapping[str, Sequence[str]]) -> list[Matched]:
    """Find what each pattern of a rule stands for; see `targets`.

    Raises:
        UserError: A pattern is for no parameter that has a group.
    """
    key, found = f"{rule.key}.match", []
    for text in rule.patterns:
        pattern = Pattern(text, key=key)
        names = tuple(first for first, its in known.items() if any(map(pattern.covers, its)))
        if not names:
            raise UserError(
                "the pattern matches no trainable parameter",
                key=key,
                received=text,
                choices=[name for its in known.values() for name in its],
                fix="write a glob over whole names (`layer4.*`), or `re:` and a regular expression; "
                "frozen ones are left out",
                family="pattern",
            )
        found.append(Matched(key, text, names))
    return found


def _read(rule: Mapping[str, Any], key: str) -> Rule:
    exact = rule.get("names") is not None
    unknown = [field for field in rule if field not in (*_FIELDS, *(_RESOLVED if exact else ("names", "key")))]
    if unknown:
        raise UserError("unknown setting of a rule", argument="", received=unknown[0], choices=_FIELDS)
    patterns = rule.get("match")
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
    if not patterns and not exact:
        expected = "a pattern or a list of patterns"
        raise UserError("a rule needs the names it is for", argument="match", expected=expected)
    values = {field: rule.get(field) for field in _VALUES}
    _check_values(values, zero_rate=bool(rule.get("allow_zero")))
    name = rule.get("name") or _group_name(patterns or (key,))
    return Rule(key, name, patterns, frozenset(rule["names"]) if exact else None, **values)


def _check_values(values: Mapping[str, Any], *, zero_rate: bool) -> None:
    """Refuse settings that contradict each other or are out of their range.

    Args:
        values: The settings of a rule by name; None where it has none.
        zero_rate: Whether a rate of 0 is meant.
    """
    if values["lr"] is not None and values["lr_scale"] is not None:
        received = {field: value for field, value in values.items() if value is not None}
        raise UserError("a rule sets either lr or lr_scale", argument="", received=received, family="contradiction")
    for field in ("lr", "lr_scale"):
        if not (zero_rate and values[field] == 0.0):
            check_rate(values[field], field, hint="; or set allow_zero: true in the rule if this is meant")
    check_rate(values["lr_ratio"], "lr_ratio")
    check_decay(values["weight_decay"], "weight_decay")
    steps = values["warmup_steps"]
    if steps is not None and (type(steps) is not int or steps < 0):
        expected = "a whole number of optimizer steps, 0 or above"
        raise UserError("not a length of a warm-up", argument="warmup_steps", expected=expected, received=steps)


def _group_name(patterns: Sequence[str]) -> str:
    """Return a name for groups that can be a TensorBoard tag: `layer_34` for `re:^layer[34]`."""
    readable = (re.sub(r"[^\w.]+", "_", text.removeprefix("re:")).strip("._") for text in patterns)
    return "+".join(text or "rest" for text in readable)
