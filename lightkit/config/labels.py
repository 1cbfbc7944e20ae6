"""Patterns and labels in a configuration, as far as they can be judged without the model they are for."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern
from lightkit.config.fields import class_in, field_types
from lightkit.config.origins import Key
from lightkit.config.report import Report
from lightkit.config.schema import LABELS, Config

PatternPlace = tuple[Key, Any, tuple[str, ...]]
"""Where patterns are, what stands there, and which labels there are."""

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
        listed = enumerate(patterns) if isinstance(patterns, list) else ()
        for place, pattern in [(key, patterns), *(((*key, index), item) for index, item in listed)]:
            if isinstance(pattern, str):  # what is no text is left to the check of types
                _check(pattern, place, labels, report)


def pattern_places(node: Any, kind: type = Config, key: Key = ()) -> Iterator[PatternPlace]:
    """Yield every key that takes patterns, with its value of whatever type and the labels that it may use.

    Args:
        node: A configuration as plain values, which need not be complete or right, or what is below a key of it.
        kind: The class of the schema that describes it.
        key: Where it stands.
    """
    for field in dataclasses.fields(kind):
        place, of_field = (*key, field.name), field_types(kind)[field.name]
        value = node.get(field.name) if isinstance(node, dict) else None
        labels, inner = field.metadata.get("patterns"), class_in(of_field)
        if labels is not None and typing.get_origin(of_field) is dict:
            yield from (((*place, name), name, labels) for name in (value if isinstance(value, dict) else ()))
        elif labels is not None:
            yield place, value, labels
        elif inner is not None:
            yield from pattern_places(value, inner, place)
        elif typing.get_origin(of_field) is list and (item := class_in(typing.get_args(of_field)[0])) is not None:
            for index, entry in enumerate(value if isinstance(value, list) else ()):
                yield from pattern_places(entry, item, (*place, index))


def _check(pattern: str, key: Key, labels: tuple[str, ...], report: Report) -> None:
    if not pattern.removeprefix("re:").strip():
        what = "an empty pattern matches nothing" if not pattern.strip() else "an empty expression matches everything"
        report.add(key, what, received=pattern, fix="`*` matches everything")
    elif not pattern.startswith("@"):
        try:
            Pattern(pattern)
        except UserError as error:
            report.add(key, error.what, received=pattern)
    elif not labels:
        what = "names only here; labels such as @head are for finetune"
        report.add(key, what, received=pattern, fix=_NAMES_ONLY[str(key[0])])
    elif pattern not in labels:
        what = f"{pattern} stands for parameters, not for layers" if pattern in LABELS else "there is no such label"
        report.add(key, what, received=pattern, choices=labels)
    elif pattern == "@tuned" and key[:2] == ("finetune", "freeze"):
        what = "what LoRA, adapters and prefixes bring in trains from the start"
        report.add(key, what, received=pattern, fix="an entry of finetune.schedule freezes it later")
