"""Rules that give parameters settings of their own, and what a parameter is trained with after all rules."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Settings:
    """What one parameter is trained with, and the parts of its group's name; never changed, only replaced."""

    base: float | None
    """The optimizer's rate."""
    weight_decay: float | None
    """Weight decay; None leaves it to the optimizer."""
    label: str = ""
    """First part of the group's name."""
    first_step: int = 0
    """Optimizer step the parameter first trains at."""
    lr: float | None = None
    """Rate that a rule set."""
    scale: float = 1.0
    """Factor that a rule put on the optimizer's rate."""
    ratio: float = 1.0
    """Factor on what all else makes of the rate."""
    layer_scale: float = 1.0
    """Factor of the parameter's layer or slice of layers."""
    layer: str = ""
    """Name of that layer or slice."""
    rules: tuple[str, ...] = ()
    """Names of the rules for this parameter."""
    decay: str = ""
    """`decay` or `no_decay` where the two are told apart."""
    warmup_steps: int = 0
    """Optimizer steps of a warm-up of its own."""
    warmup_key: str = ""
    """Configuration key that has this warm-up."""
    keys: tuple[str, ...] = ("optim",)
    """Configuration keys of everything that took part."""

    @property
    def rate(self) -> float | None:
        """A rule's `lr` as it stands, else the optimizer's with its factors; None leaves it to the optimizer."""
        if self.lr is not None:
            return self.lr * self.ratio
        return None if self.base is None else self.base * self.scale * self.layer_scale * self.ratio

    @property
    def name(self) -> str:
        """Such as `all`, `decay`, `layer_03.no_decay`, `head`."""
        rules = "+".join(rule for rule in self.rules if rule != self.label)
        parts = [part for part in (self.label, self.layer, rules) if part]
        if not parts:
            return self.decay or "all"
        return ".".join([*parts, *([self.decay] if self.decay == "no_decay" else [])])

    @property
    def group(self) -> tuple[Any, ...]:
        """Equal for parameters that share a group."""
        start = self.first_step if self.warmup_steps else 0
        return self.label, self.name, self.rate, self.weight_decay, self.warmup_steps, start

    def told_apart(self, *, spared: bool) -> Settings:
        """Return these settings without weight decay if spared, else with, and with a name that says so."""
        if not spared:
            return replace(self, decay="decay")
        return replace(self, weight_decay=0.0, decay="no_decay", keys=(*self.keys, "optim.no_decay"))

    def in_layer(self, layer: str, factor: float, *, key: str) -> Settings:
        """Return these settings with the factor of a layer."""
        return replace(self, layer=layer, layer_scale=factor, keys=(*self.keys, key))

    def under(self, rule: Rule) -> Settings:
        """Return these settings with what a rule says, which wins over what was said before."""
        changes: dict[str, Any] = {"rules": (*self.rules, rule.name), "keys": (*self.keys, rule.key)}
        if rule.lr is not None:
            changes["lr"] = rule.lr
        if rule.lr_scale is not None:
            changes |= {"lr": None, "scale": rule.lr_scale}
        if rule.lr_ratio is not None:
            changes["ratio"] = rule.lr_ratio
        if rule.weight_decay is not None:
            changes |= {"weight_decay": rule.weight_decay, "decay": ""}
        if rule.warmup_steps is not None:
            changes |= {"warmup_steps": rule.warmup_steps, "warmup_key": f"{rule.key}.warmup_steps"}
        return replace(self, **changes)

    def empty_group(self) -> dict[str, Any]:
        """Make a group without parameters; what the optimizer knows by itself is left out."""
        group: dict[str, Any] = {"params": [], "param_names": [], "name": self.name, "rules": []}
        if self.rate is not None:
            group["lr"] = self.rate
        if self.weight_decay is not None:
            group["weight_decay"] = self.weight_decay
        if self.warmup_steps:
            group |= {"warmup_steps": self.warmup_steps, "first_step": self.first_step, "warmup_key": self.warmup_key}
        return group
