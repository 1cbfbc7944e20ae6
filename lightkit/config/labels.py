"""Patterns and labels in a configuration, as far as they can be judged without the model they are for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern
from lightkit.config.origins import Key

if TYPE_CHECKING:
    from lightkit.config.check import Report

PatternPlace = tuple[Key, Any, tuple[str, ...]]
"""Where patterns are, what stands there, and which labels there are."""
LAYERS = ("@linear", "@conv", "@embedding", "@attention", "@blocks")
"""Labels of layers; among parameters they stand for those of these layers."""
PARAMETERS = ("@head", "@body", "@norm", "@bias", "@tuned", *LAYERS)
"""Labels of parameters."""

_NAMES_ONLY = {
    "optim": "put this rule into finetune.rules, or name the parameters",
    "device": "name modules: `blocks.*`",
    "resume": "name keys: `optim.*`",
}
"""What to do about a label in a group that knows none."""


def check_patterns(tree: dict[str, Any], report: Report) -> None:
    """Report patterns that cannot be meant: unknown labels, broken expressions, empty text."""
    for key, patterns, labels in pattern_places(tree):
        if patterns == [] and key[-1] == "match" and key[1] == "rules":
            report.add(key, "a rule for nothing", expected="a pattern or a list of patterns", received=patterns)
        for place, pattern in _each(key, patterns):
            _check(pattern, place, labels, report)


def pattern_places(tree: dict[str, Any]) -> Iterator[PatternPlace]:
    """Every key that takes patterns, with its value of whatever type; a list of lists is one key for each list."""
    finetune = _mapping(tree.get("finetune"))
    yield from _of_parameters(finetune)
    yield from _of_layers(finetune)
    yield from _of_rules(tree)
    yield from _of_names(tree)


def _of_parameters(finetune: dict[str, Any]) -> Iterator[PatternPlace]:
    for name in ("freeze", "train"):
        yield ("finetune", name), finetune.get(name), PARAMETERS
    for index, entry in enumerate(_items(finetune.get("schedule"))):
        for name in ("unfreeze", "freeze"):
            yield ("finetune", "schedule", index, name), _mapping(entry).get(name), PARAMETERS


def _of_layers(finetune: dict[str, Any]) -> Iterator[PatternPlace]:
    for part in ("lora", "adapter", "prefix"):
        yield ("finetune", part, "match"), _mapping(finetune.get(part)).get("match"), (*LAYERS, "@head")
    for pattern in _mapping(_mapping(finetune.get("lora")).get("ranks")):
        yield ("finetune", "lora", "ranks", pattern), pattern, (*LAYERS, "@head")


def _of_rules(tree: dict[str, Any]) -> Iterator[PatternPlace]:
    """What rules match; those of the optimizer know no labels."""
    for group, labels in (("optim", ()), ("finetune", PARAMETERS)):
        for index, rule in enumerate(_items(_mapping(tree.get(group)).get("rules"))):
            yield (group, "rules", index, "match"), _mapping(rule).get("match"), labels


def _of_names(tree: dict[str, Any]) -> Iterator[PatternPlace]:
    """Those that know no labels."""
    for group, name in (("device", "activation_checkpointing"), ("resume", "override")):
        yield (group, name), _mapping(tree.get(group)).get(name), ()


def _each(key: Key, patterns: Any) -> Iterator[tuple[Key, str]]:
    """The patterns of a list, or one alone, with their places; what is no text is left to the check of types."""
    if isinstance(patterns, str):
        yield key, patterns
    for index, pattern in enumerate(_items(patterns)):
        if isinstance(pattern, str):
            yield (*key, index), pattern


def _check(pattern: str, key: Key, labels: tuple[str, ...], report: Report) -> None:
    if not pattern.startswith("@"):
        _check_expression(pattern, key, report)
    elif not labels:
        what = "names only here; labels such as @head are for finetune"
        report.add(key, what, received=pattern, fix=_NAMES_ONLY[str(key[0])])
    elif pattern not in labels:
        what = f"{pattern} stands for parameters, not for layers" if pattern in PARAMETERS else "there is no such label"
        report.add(key, what, received=pattern, choices=labels)
    elif pattern == "@tuned" and key[:2] == ("finetune", "freeze"):
        what = "what LoRA, adapters and prefixes bring in trains from the start"
        report.add(key, what, received=pattern, fix="an entry of finetune.schedule freezes it later")


def _check_expression(pattern: str, key: Key, report: Report) -> None:
    if not pattern.removeprefix("re:").strip():
        what = "an empty pattern matches nothing" if not pattern.strip() else "an empty expression matches everything"
        report.add(key, what, received=pattern, fix="`*` matches everything")
        return
    try:
        Pattern(pattern)
    except UserError as error:
        report.add(key, error.what, received=pattern)


def _mapping(node: Any) -> dict[str, Any]:
    return node if isinstance(node, dict) else {}


def _items(node: Any) -> list[Any]:
    return node if isinstance(node, list) else []
