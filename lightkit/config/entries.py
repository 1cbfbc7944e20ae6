"""What the defaults list of a file says, read from its YAML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import yaml

from lightkit.config.origins import nodes


def entries(path: Path) -> Iterator[yaml.Node]:
    """Yield the entries of the defaults list of a file."""
    root = nodes(path)
    for name, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if name.value == "defaults" and isinstance(value, yaml.SequenceNode):
            yield from value.value


def words_of(entry: yaml.Node) -> list[str]:
    """Return what stands before the colon of an entry, `override /optim`, word by word; none without a colon."""
    return str(entry.value[0][0].value).split() if isinstance(entry, yaml.MappingNode) and entry.value else []


def included(name: str, path: Path) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the names of the files that the defaults list of a file includes, with the entries."""
    folder = PurePosixPath(name).parent
    for item in entries(path):
        if isinstance(item, yaml.ScalarNode):
            yield absolute(str(item.value).partition("@")[0], folder).removesuffix(".yaml"), item
        elif isinstance(item, yaml.MappingNode) and item.value:
            words = words_of(item)
            group = absolute(words[-1].partition("@")[0], folder) if words else ""
            for option in options_of(item.value[0][1]) if "override" not in words else ():
                yield f"{group}/{option}", item


def chosen_groups(path: Path) -> dict[str, yaml.Node]:
    """Return the groups that a file at the top of a folder of options chooses by itself, with the entries that do it.

    Overrides of what other files choose are left out.
    """
    found: dict[str, yaml.Node] = {}
    for item in entries(path):
        words = words_of(item)
        if isinstance(item, yaml.ScalarNode):
            found |= {name: item for name in [str(item.value).strip("/").rpartition("/")[0]] if name}
        elif words and "override" not in words:
            found[words[-1].removeprefix("/")] = item
    return found


def options_of(node: yaml.Node) -> list[str]:
    """List the options named by an entry; none for null, `???` and interpolations."""
    values = node.value if isinstance(node, yaml.SequenceNode) else [node]
    names = [str(value.value) for value in values if value.tag != "tag:yaml.org,2002:null"]
    return [name for name in names if "${" not in name and name != "???"]


def absolute(name: str, folder: PurePosixPath) -> str:
    """Return the full name of what an entry of a defaults list names, seen from the folder of its file."""
    joined = PurePosixPath(name[1:]) if name.startswith("/") else folder / name
    return str(joined)


def as_typed(options: Sequence[str]) -> str:
    """Write the options chosen for a group as one would type them: `a`, or `[a,b]` for several."""
    return options[0] if len(options) == 1 else f"[{','.join(options)}]"
