"""Keys that grant trust, found by their mark in the schema: only the user sets them, never the file of a run."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from lightkit.common.errors import UserError
from lightkit.config.check import schema_default, schema_fields
from lightkit.config.origins import Key, dotted, parts_of
from lightkit.config.schema import GRANTS, Config


def granting_keys() -> tuple[Key, ...]:
    """Every key that grants trust; `*` stands for an item of a list and for a name of the user's."""
    return tuple(_granting(Config))


@cache
def _granting(kind: type) -> dict[Key, dataclasses.Field[Any]]:
    found: dict[Key, dataclasses.Field[Any]] = {}
    types = schema_fields(kind)
    for field in dataclasses.fields(kind):
        if GRANTS.keys() <= field.metadata.keys():
            found[(field.name,)] = field
        for inner, way in _classes_in(types[field.name]):
            found |= {(field.name, *way, *key): below for key, below in _granting(inner).items()}
    return found


def _classes_in(kind: Any, way: Key = ()) -> Iterator[tuple[type, Key]]:
    """The schema classes inside a type, each with the way through lists and dicts to it."""
    if dataclasses.is_dataclass(kind):
        yield typing.cast(type, kind), way
    more = ("*",) if typing.get_origin(kind) in (list, dict) else ()
    for part in typing.get_args(kind):
        yield from _classes_in(part, (*way, *more))


def withdraw(tree: dict[str, Any], keys: Iterable[Key] | None = None) -> None:
    """Set keys that grant trust to their defaults, wherever they are set.

    Args:
        tree: A configuration as plain values, interpolations as they are written; changed in place.
        keys: Some of `granting_keys()`; None takes all.

    Raises:
        UserError: A node around such a key is an interpolation, which leads to another place.
    """
    fields = _granting(Config)
    for key in fields if keys is None else keys:
        for node in _nodes(tree, key[:-1]):
            if key[-1] in node:
                node[str(key[-1])] = schema_default(fields[key])


def _nodes(node: Any, way: Key, place: Key = ()) -> Iterator[dict[str, Any]]:
    """The nodes that a way with `*` leads to."""
    if isinstance(node, str) and "${" in node:
        what = "refers to another place, which a run's file can't do around a key that grants trust"
        raise UserError(what, key=dotted(place), received=node, fix="write the values here")
    if not way and isinstance(node, dict):
        yield node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, item in items if way else ():
        if way[0] in ("*", name):
            yield from _nodes(item, way[1:], (*place, name))


def changed_around(overrides: Iterable[str]) -> list[Key]:
    """Keys that grant trust to what stands beside them, where that is changed: something else was trusted."""
    typed = [parts_of(text.lstrip("+~").partition("=")[0]) for text in overrides]
    nodes = [key for key in granting_keys() if len(key) > 1]
    return [key for key in nodes if any(_meet(name, key[:-1]) for name in typed)]


def _meet(one: Key, other: Key) -> bool:
    """Whether one of two keys is at or below the other."""
    return all("*" in pair or pair[0] == pair[1] for pair in zip(one, other))
