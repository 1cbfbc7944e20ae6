"""Keys that grant trust, found by their mark in the schema: only the user sets them, never the file of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lightkit.common.errors import UserError
from lightkit.config.fields import default_of, marked_fields
from lightkit.config.origins import Key, dotted, parts_of
from lightkit.config.schema import GRANTS, Config


def granting_keys() -> tuple[Key, ...]:
    """Return every key that grants trust; `*` stands for an item of a list and for a name of the user's."""
    return tuple(marked_fields(Config, *GRANTS))


def withdraw(tree: dict[str, Any], keys: Iterable[Key] | None = None) -> None:
    """Set keys that grant trust to their defaults, wherever they are set.

    Args:
        tree: A configuration as plain values, interpolations as they are written; changed in place.
        keys: Some of `granting_keys()`; None takes all.

    Raises:
        UserError: A node around such a key is an interpolation, which leads to another place.
    """
    fields = marked_fields(Config, *GRANTS)
    for key in fields if keys is None else keys:
        for node in _nodes(tree, key[:-1]):
            if key[-1] in node:
                node[str(key[-1])] = default_of(fields[key])


def _nodes(node: Any, way: Key, place: Key = ()) -> Iterator[dict[str, Any]]:
    """Yield the nodes that a way with `*` leads to."""
    if isinstance(node, str) and "${" in node:
        what = "refers to another place, which a run's file can't do around a key that grants trust"
        raise UserError(
            what, key=dotted(place), received=node, fix="write the values here", family="target-not-trusted"
        )
    if not way and isinstance(node, dict):
        yield node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, item in items if way else ():
        if way[0] in ("*", name):
            yield from _nodes(item, way[1:], (*place, name))


def changed_around(overrides: Iterable[str]) -> list[Key]:
    """List the keys that grant trust to what stands beside them, where that is changed: something else was trusted."""
    typed = [parts_of(text.lstrip("+~").partition("=")[0]) for text in overrides]
    typed += [key[3:] for key in typed if key[:2] == ("ensemble", "members")]  # values of one member
    nodes = [key for key in granting_keys() if len(key) > 1]
    return [key for key in nodes if any(_overlap(name, key[:-1]) for name in typed)]


def _overlap(one: Key, other: Key) -> bool:
    """Tell whether one of two keys is at or below the other."""
    return all("*" in pair or pair[0] == pair[1] for pair in zip(one, other))
