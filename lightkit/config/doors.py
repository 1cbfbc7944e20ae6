"""Parts that are chosen by a name: those that lightkit brings, and those that a project or a package adds.

A project adds one by a line in `conf/plugins.yaml`, and a package by an entry point of the group `lightkit.plugins`,
called `DOOR.NAME`. What the file of a project names is judged like any `_target_` before it is imported, and a
configuration from elsewhere may not choose it; who installs a package has agreed to what it adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lightkit.common.doors import SHIPPED, import_path
from lightkit.common.errors import UserError
from lightkit.common.reading import UnreadableError, parse_mapping, read_text
from lightkit.config.policy import Trust, Violation, violations
from lightkit.config.project import make_importable, project_root
from lightkit.config.signatures import TargetError, read

FILE = Path("conf/plugins.yaml")
"""Where a project says what it adds."""
GROUP = "lightkit.plugins"
"""The group of entry points by which a package does."""


def names(door: str) -> list[str]:
    """List what may be chosen: what lightkit brings, then what the project and installed packages add."""
    return [*dict.fromkeys([*SHIPPED[door], *_of_project().get(door, {}), *_of_packages(door)])]


def problems_of(door: str, name: str, trust: Trust) -> Iterator[Violation]:
    """Yield why a configuration may not choose a part of a project; nothing is imported.

    Args:
        door: What the name is for, such as `sweep.engine`.
        name: One of `names(door)`.
        trust: What the configuration may build.
    """
    node = _own_node(door, name)
    if node is None:
        return
    make_importable(project_root())
    yield from violations(node, trust, (str(FILE), door, name))
    try:
        read(node["_target_"])
    except TargetError as error:
        facts = {"received": node["_target_"], "choices": error.choices, "family": "target-not-found"}
        yield (str(FILE), door, name), error.sentence(node["_target_"]), facts


def load(
    door: str, name: str | Mapping[str, Any], expected: type | None = None, *, entries: Iterable[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Import what a name stands for.

    Args:
        door: What the name is for.
        name: One of `names(door)`; or in its place, where the door takes one, a node with a `_target_`.
        expected: The class that it has to be derived from.
        entries: What `trust` adds.

    Returns:
        The class or function, and the arguments that the project, or the node, gives it.

    Raises:
        UserError: There is none of that name, it may not be built, it cannot be imported, or is of another kind.
    """
    node, key = (_own_node(door, name), f"{FILE}: {door}.{name}") if isinstance(name, str) else (name, door)
    if node is not None or not isinstance(name, str):
        from lightkit.config.instantiate import instantiate

        make_importable(project_root())
        tree = OmegaConf.create({"trust": [*entries], "node": {**(node or {}), "_partial_": True}})
        made = instantiate(tree.node, key=key, expected=expected)
        return made.func, made.keywords
    point = _of_packages(door).get(name) if name not in SHIPPED[door] else None
    if point is None and name not in SHIPPED[door]:
        fix = f"a line in {FILE}: `{door}: {{{name}: module.Class}}`"
        raise UserError("no such part", key=door, received=name, choices=names(door), fix=fix)
    try:
        built = import_path(SHIPPED[door][name]) if point is None else point.load()
    except (ImportError, AttributeError) as error:
        if point is None:
            raise
        what = f"{point.value} can't be imported: {error}"
        raise UserError(what, key=door, received=name, family="target-not-found") from error
    if expected is not None and not (isinstance(built, type) and issubclass(built, expected)):
        kind = f"{expected.__module__}.{expected.__name__}"
        raise UserError("of another kind", key=door, expected=kind, received=name, family="wrong-value")
    return built, {}


def _own_node(door: str, name: str) -> dict[str, Any] | None:
    """Return what the project says of a name: a `_target_` and its arguments; a name of lightkit's own stays that."""
    node = None if name in SHIPPED[door] else _of_project().get(door, {}).get(name)
    return {"_target_": node} if isinstance(node, str) else node


def _of_project() -> dict[str, dict[str, Any]]:
    """Read what the project adds, by door and name.

    Raises:
        UserError: The file cannot be read, or says something else.
    """
    root = project_root()
    if root is None or not (path := root / FILE).is_file():
        return {}
    try:
        found = parse_mapping(read_text(path))
    except UnreadableError as error:
        raise UserError(f"cannot be read: {error}", key=str(path), family="file") from error
    for door, listed in found.items():
        if door not in SHIPPED:
            raise UserError("nothing is chosen by such a name", key=str(path), received=door, choices=SHIPPED)
        for name, node in listed.items() if isinstance(listed, dict) else [("", listed)]:
            if not isinstance(node.get("_target_") if isinstance(node, dict) else node, str):
                expected = "a class, `NAME: module.Class`, or a mapping with `_target_` and its arguments"
                key = f"{path}: {door}.{name}".rstrip(".")
                raise UserError("names no class", key=key, expected=expected, received=node, family="wrong-value")
    return found


def _of_packages(door: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages, by the name that they add."""
    points = entry_points(group=GROUP)
    return {one.name.removeprefix(f"{door}."): one for one in points if one.name.startswith(f"{door}.")}
