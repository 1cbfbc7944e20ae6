"""Files that can't be composed: what Hydra says of them names no line, so they are looked through for the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import yaml

from lightkit.common.errors import UserError
from lightkit.config.experiments import GROUP
from lightkit.config.origins import Key, dotted, nodes, shown

Files = Sequence[tuple[str, Path]]
"""Name and path of every file of a composition, in the order of reading."""
_KINDS = {"mapping": "a mapping", "sequence": "a list"}
_TWICE = re.compile(r"(\S+)(?: appears more than once in the final defaults list|\. To override a value use)")
_FULL_KEY = re.compile(r"^\s*full_key: (\S+)", re.M)


def clashes(files: Files, message: str) -> UserError | None:
    """Make the error for a list where another file has a mapping, or the other way round."""
    if "Cannot merge DictConfig with ListConfig" not in message:
        return None
    seen: dict[Key, str] = {}
    for name, path in sorted(files, key=lambda item: item[0].startswith(f"{GROUP}/")):
        for key, node in _nodes(name, path):
            if seen.setdefault(key, node.id) != node.id:
                expected, received, origin = _KINDS[seen[key]], _KINDS[node.id], _at(node, path)
                where = dotted(key) or None
                return UserError("wrong type", key=where, expected=expected, received=received, origin=origin)
    return None


def chosen_twice(files: Files, message: str) -> UserError | None:
    """Make the error for a group in a defaults list whose option another file has chosen already."""
    group = _TWICE.search(message)
    if group is None:
        return None
    for path, item in _choices(files):
        words = str(item.value[0][0].value).split()
        if words == [f"/{group[1]}"]:
            what = "another file has chosen the option of this group already"
            fix = f"- override /{group[1]}: {item.value[0][1].value}"
            return UserError(what, key="defaults", received=words[0], origin=_at(item, path), fix=fix)
    return None


def _choices(files: Files) -> Iterator[tuple[Path, yaml.MappingNode]]:
    """List the entries of defaults lists that choose the option of a group, those of the last file first."""
    for _, path in reversed(files):
        root = nodes(path)
        lists = [value for name, value in root.value if name.value == "defaults"] if _is_mapping(root) else []
        for entries in lists:
            yield from ((path, item) for item in entries.value if _is_mapping(item) and item.value)


def _is_mapping(node: object) -> TypeGuard[yaml.MappingNode]:
    return isinstance(node, yaml.MappingNode)


def unreadable_value(files: Files, message: str) -> UserError | None:
    """Make the error for a value with half an interpolation."""
    key = _FULL_KEY.search(message)
    if key is None or ("viable alternative" not in message and "extraneous input" not in message):
        return None
    for name, path in reversed(files):
        for place, node in _nodes(name, path, scalars=True):
            if dotted(place) == key[1]:
                what, fix = "the interpolation can't be read", "${name} of another key; for a plain text, \\${"
                return UserError(what, key=key[1], received=node.value, origin=_at(node, path), fix=fix)
    return None


def _nodes(name: str, path: Path, *, scalars: bool = False) -> Iterator[tuple[Key, yaml.Node]]:
    """Return the mappings and lists of a file by full key, or its single values."""
    root, group = nodes(path), Path(name).parent.parts
    if root is not None:
        yield from _below(root, () if group[:1] in ((GROUP,), ()) else group, scalars)


def _below(node: yaml.Node, key: Key, scalars: bool) -> Iterator[tuple[Key, yaml.Node]]:
    if isinstance(node, yaml.ScalarNode) == scalars:
        yield key, node
    for name, value in node.value if _is_mapping(node) else ():
        yield from _below(value, (*key, str(name.value)), scalars)


def _at(node: yaml.Node, path: Path) -> str:
    return f"{shown(path)}:{node.start_mark.line + 1}"
