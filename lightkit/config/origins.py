"""Which file and line, or which override, a value comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

Key = tuple["str | int", ...]
"""A place in the configuration: names, and numbers for list items."""

_OMEGACONF: Any = get_yaml_loader()


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML as OmegaConf does (`1e-3` is a number, dates are texts), but with libyaml where there is one."""

    yaml_implicit_resolvers = _OMEGACONF.yaml_implicit_resolvers


def dotted(key: Key) -> str:
    """Write `data.augment[0].size` for `("data", "augment", 0, "size")`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def parts_of(text: str) -> Key:
    """Reverse `dotted`."""
    found: list[str | int] = []
    for part in text.replace("[", ".[").split("."):
        inner = part.removeprefix("[").removesuffix("]")
        if part:
            found.append(int(inner) if part.startswith("[") and inner.isdigit() else inner)
    return tuple(found)


def shown(path: Path) -> str:
    """Show a file as the user knows it: relative below the working directory, absolute elsewhere."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def command_line(text: str) -> str:
    """Return the origin of something that an override says."""
    return f"command line: {text}"


@lru_cache(maxsize=1024)
def _parsed(path: Path, _changed: int, _size: int) -> tuple[str, yaml.Node | None]:
    """Parse a file once in a process, as long as it does not change; return its text, and the YAML with its lines."""
    text = path.read_text(encoding="utf-8")
    return text, yaml.compose(text, Loader=_Loader)


def _as_it_is_now(path: Path) -> tuple[str, yaml.Node | None]:
    facts = path.stat()
    return _parsed(path, facts.st_mtime_ns, facts.st_size)


def nodes(path: Path) -> yaml.Node | None:
    """Read the YAML of a file with the line of every node; None when it can't be."""
    try:
        return _as_it_is_now(path)[1]
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return None


def file_content(path: Path) -> tuple[str, Any]:
    """Read a file as text, and as the plain values that `OmegaConf.load` makes of it.

    Raises:
        OSError: It cannot be read.
        yaml.YAMLError: It is no YAML; the place in the error names the file.
    """
    with suppress(yaml.YAMLError):
        text, node = _as_it_is_now(path)
        if "<<" not in text:  # which would change the nodes
            loader = _OMEGACONF("")
            return text, loader.construct_document(node) if node is not None else None
    with path.open(encoding="utf-8") as file:
        return path.read_text(encoding="utf-8"), yaml.load(file, Loader=_OMEGACONF)


def _node_at(path: Path, key: Key | None) -> tuple[yaml.Node | None, int]:
    """Return the node at a key of a file, and its line; None where there is none."""
    node, line = None if key is None else nodes(path), 1
    for part in key or ():
        hits = list[tuple[yaml.Node, yaml.Node]]()
        if isinstance(node, yaml.MappingNode):
            hits = [(value, name) for name, value in node.value if str(name.value) == str(part)]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            hits = [(item, item) for item in node.value[part : part + 1]]
        node, line = (hits[-1][0], hits[-1][1].start_mark.line + 1) if hits else (None, 0)
    return node, line


def with_origins(text: str, sources: Sources, file: Path, *, below: Key = ()) -> str:
    """Write a configuration as YAML, with `file:line` behind every value that comes from a file.

    Args:
        text: The YAML.
        sources: Where its values come from.
        file: The file.
        below: The key that the text is the value of.
    """
    lines, start = text.splitlines(), f"{shown(file)}:"
    for key, line in _leaves(yaml.compose(text, Loader=_Loader), below):
        origin = sources.exact(key)
        if origin is not None and origin.startswith(start):
            lines[line] += f"  # {origin}"
    return "\n".join(lines)


def _leaves(node: yaml.Node | None, key: Key) -> Iterator[tuple[Key, int]]:
    """Return the keys of all values that are no mappings, and their lines counted from 0."""
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        place = (*key, str(name.value))
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _leaves(value, place)
        else:
            yield place, name.start_mark.line


class Sources:
    """Origins of the values of one composition; files are only read when a place is asked for.

    Args:
        layers: File and package of every file that was merged, the strongest last.
        overrides: Key and text of every override, the strongest last.
    """

    def __init__(self, layers: Iterable[tuple[Path, str]] = (), overrides: Sequence[tuple[str, str]] = ()) -> None:
        self.layers = [(path, parts_of(package)) for path, package in layers]
        self.overrides = [(parts_of(key), text) for key, text in overrides]

    def find(self, key: str | Key) -> str | None:
        """Return `file:line` or `command line: a.b=c`, of the key or else of the nearest node around it.

        Of a node, what is typed below it counts before its file; of what is nowhere set, the file of the node around
        it counts first.
        """
        place = parts_of(key) if isinstance(key, str) else key
        typed = self.on_command_line(place) or self._below(place)
        if typed is not None:
            return typed
        while place:
            found = self.exact(place) or self._below(place)
            if found is not None:
                return found
            place = place[:-1]
        return None

    def exact(self, key: Key) -> str | None:
        """Return what `find` does, but only of what sets the key itself."""
        typed = self.on_command_line(key)
        return typed or next((f"{shown(path)}:{line}" for path, _, _, line in self._layers_of(key)), None)

    def written(self, key: Key) -> str | None:
        """Return the value of a key as the strongest file has it, before YAML reads it; None where none sets it.

        What was typed for it counts before every file, and needs no reading by YAML.
        """
        node = next((node for _, _, node, _ in self._layers_of(key)), None)
        is_text = isinstance(node, yaml.ScalarNode) and self.on_command_line(key) is None
        return str(node.value) if node is not None and is_text else None

    def on_command_line(self, key: Key) -> str | None:
        """Return the override that sets the key, or a node around it."""
        for place, text in reversed(self.overrides):
            if place and key[: len(place)] == place:
                return command_line(text)
        return None

    def set_below(self, top: str) -> Iterator[tuple[Key, str]]:
        """Yield every key in a node of the root that somebody sets, with its origin, the strongest first."""
        for place, text in reversed(self.overrides):
            if place[:1] == (top,):
                yield place, command_line(text)
        for path, package in reversed(self.layers):
            below = package if package[:1] == (top,) else (top,)
            node, _ = _node_at(path, below[len(package) :] if not package or below is package else None)
            for key, line in _leaves(node, below):
                if key[len(below) :] != ("defaults",):
                    yield key, f"{shown(path)}:{line + 1}"

    def is_of_option(self, key: Key) -> bool:
        """Tell whether the option file of a group sets the key, and nothing stronger that the user runs with."""
        typed = self.on_command_line(key) is not None
        return not typed and next((bool(package) for _, package, _, _ in self._layers_of(key)), False)

    def former_option(self, key: Key) -> str | None:
        """Return the text that the strongest option file but the winner sets a key to; None where there is none."""
        found = [(package, node) for _, package, node, _ in self._layers_of(key) if isinstance(node, yaml.ScalarNode)]
        weaker = found if self.on_command_line(key) is not None else found[1:]
        return next((str(node.value) for package, node in weaker if package), None)

    def _layers_of(self, key: Key) -> Iterator[tuple[Path, Key, yaml.Node, int]]:
        """List path, package, node and line in every file that sets the key itself, the strongest first."""
        for path, package in reversed(self.layers):
            node, line = _node_at(path, key[len(package) :] if key[: len(package)] == package else None)
            if node is not None:
                yield path, package, node, line

    def _below(self, key: Key) -> str | None:
        """Return the last override that sets a key below this one."""
        texts = (text for place, text in reversed(self.overrides) if place[: len(key)] == key)
        return next(map(command_line, texts), None)


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
