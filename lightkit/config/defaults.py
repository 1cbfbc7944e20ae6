"""Mistakes in the files of a composition: in their defaults lists, and where they do not go together.

Hydra would drop some in silence and complain about the others one by one; what it says names no line, so the files are
looked through for the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from lightkit.common.doors import SHIPPED
from lightkit.common.errors import UserError
from lightkit.common.suggest import in_place_of, nearest
from lightkit.config.loader import ConfigLoader
from lightkit.config.origins import Key, absolute, dotted, entries, included, nodes, options_of, shown, words_of
from lightkit.config.project import shipped_conf
from lightkit.config.sources import GROUP, PROJECT

Files = Sequence[tuple[str, Path]]
"""Name and path of every file of a composition, in the order of reading."""
_KINDS = {"mapping": "a mapping", "sequence": "a list"}
_TWICE = re.compile(r"(\S+)(?: appears more than once in the final defaults list|\. To override a value use)")
_FULL_KEY = re.compile(r"^\s*full_key: (\S+)", re.M)
SWEEPS = ("sweep", "sweeper", "launcher", "engine")
"""What a sweep is asked for by, of which only the first is a group."""
_OF_SWEEPS = {
    **{engine: f"sweep.engine={engine}" for engine in SHIPPED["sweep.engine"]},
    "submitit": "sweep.engine=slurm",
    "submitit_slurm": "sweep.engine=slurm",
    **{method: f"sweep.halving.method={method}" for method in ("successive", "hyperband")},
    **dict.fromkeys(("asha", "pasha"), "sweep.halving.method=successive"),
    "halving": "sweep.halving.method=successive",
    "optuna": "hydra/sweeper=optuna",
}
_WORDS = ("override", "optional")
_TWO_WORDS = re.compile(r"^[ \t]*-[ \t]+['\"]?(\w+)[ \t]+(?:(\w+)[ \t]+)?[/\w@.:]+['\"]?[ \t]*:", re.M)


def misspelled_words(loader: ConfigLoader) -> list[UserError]:
    """Report entries such as `overide /loss: mse`, whose first word Hydra drops without a word."""
    errors = []
    for _, path in loader.used_files():
        text = ""
        with suppress(OSError, UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
        words = {word for match in _TWO_WORDS.finditer(text) for word in match.groups() if word}
        if words - set(_WORDS):
            errors += [error for item in entries(path) for error in _wrong_words(item, path)]
    return errors


def check_defaults(loader: ConfigLoader) -> list[UserError]:
    """Find all that is wrong in the defaults lists of the files read so far."""
    errors = []
    for name, path in loader.used_files():
        folder = PurePosixPath(name).parent
        for item in entries(path):
            wrong = _wrong_words(item, path)
            errors += wrong or _wrong_names(loader, item, folder, path)
            words = words_of(item)
            if name == PROJECT and words and words[-1].removeprefix("/") == GROUP:
                what = "an experiment is chosen on the command line: it goes over what a project has by default"
                option = str(item.value[0][1].value)
                errors.append(_entry_error(what, item, path, received=option, fix=f"experiment={option}"))
    return errors


def circle(loader: ConfigLoader) -> UserError | None:
    """Make the error for a file of the last composition that includes itself, straight or by way of others."""
    known = {name.strip("/").removesuffix(".yaml"): path for name, path in loader.used_files()}
    graph = {name: dict(included(name, path)) for name, path in known.items()}
    for name, path in known.items():
        way = _path_between(graph, name, name, ())
        if way is None:
            continue
        detour = f": {' → '.join((*way, name))}" if len(way) > 1 else ""
        fix = "take this entry out"
        if "/" not in name:
            shipped = shipped_conf() / path.name
            fix += f"; this {path.name} stands in for the shipped one, so copy from {shipped} instead"
        item = graph[name][way[1] if len(way) > 1 else name]
        return _entry_error(f"{path.name} includes itself{detour}", item, path, fix=fix)
    return None


def _path_between(
    graph: dict[str, dict[str, yaml.Node]], start: str, goal: str, seen: tuple[str, ...]
) -> list[str] | None:
    """Find the files from one to the other, without the last; None when there is no way."""
    for following in graph.get(start, ()):
        if following == goal:
            return [start]
        rest = _path_between(graph, following, goal, (*seen, start)) if following not in seen else None
        if rest is not None:
            return [start, *rest]
    return None


def _at(item: yaml.Node, path: Path) -> str:
    return f"{shown(path)}:{item.start_mark.line + 1}"


def _entry_error(what: str, item: yaml.Node, path: Path, **facts: Any) -> UserError:
    """Make the error for an entry of a defaults list; `facts` are those of `UserError`."""
    return UserError(what, key="defaults", origin=_at(item, path), **facts)


def _wrong_words(item: yaml.Node, path: Path) -> list[UserError]:
    what, unknown = "unknown word in a defaults list", [word for word in words_of(item)[:-1] if word not in _WORDS]
    return [_entry_error(what, item, path, received=word, choices=_WORDS) for word in unknown]


def _wrong_names(loader: ConfigLoader, item: yaml.Node, folder: PurePosixPath, path: Path) -> list[UserError]:
    if isinstance(item, yaml.ScalarNode):
        return _wrong_config(loader, item, folder, path)
    if not isinstance(item, yaml.MappingNode) or len(item.value) != 1:
        what = "an entry of a defaults list is a file name or one `group: option`"
        return [_entry_error(what, item, path)]
    words = words_of(item)
    group = absolute(words[-1].partition("@")[0], folder)
    if "optional" in words[:-1]:
        return []
    if not loader.is_group(group):
        near = loader.groups(str(PurePosixPath(group).parent).removeprefix("."))
        meant = words[-1].partition("@")[0]
        fix = f"- override /{meant}: {item.value[0][1].value}" if loader.is_group(meant) else None
        facts = {"received": group, "choices": near, "fix": fix, "family": "unknown-option"}
        return [_entry_error("there is no such group", item, path, **facts)]
    return [
        unknown_option(loader, group, option, origin=_at(item, path))
        for option in options_of(item.value[0][1])
        if not loader.is_option(group, option)
    ]


def _wrong_config(loader: ConfigLoader, item: yaml.ScalarNode, folder: PurePosixPath, path: Path) -> list[UserError]:
    name = str(item.value).partition("@")[0]
    if name == "_self_" or "${" in name:
        return []
    config = absolute(name, folder)
    if loader.repository.config_exists(config):
        return []
    group = str(PurePosixPath(config).parent).removeprefix(".")
    choices = [*loader.options(group), "_self_"] if group else ["_self_", *loader.groups()]
    what = "there is no such file" if not group else f"there is no such file in {group}/"
    return [_entry_error(what, item, path, received=name, choices=choices, family="unknown-option")]


def unknown_option(
    loader: ConfigLoader, group: str, option: str, *, origin: str, several: Sequence[str] = ()
) -> UserError:
    """Make the error for an option that a group does not have; `several` are all that were named in a list."""
    choices = loader.options(group)
    close = nearest(option, choices)
    guesses = [name if name in choices else next(iter(nearest(name, choices)), name) for name in several]
    meant = ",".join(guesses) if close else ""
    better = f"[{meant}]" if meant else close[0] if close else ""
    fix = f"{group}={better}" if better else f"`lightkit config {group}` lists the choices"
    if group == "device" and option.startswith("cuda:"):
        fix = f"device=cuda device.name={option}"
    fix = of_sweeps(loader, group, option) or in_place_of(f"{group}={option}") or fix
    return UserError(
        "no such option", key=group, received=option, choices=choices, origin=origin, fix=fix, family="unknown-option"
    )


def of_sweeps(loader: ConfigLoader, group: str, option: str) -> str | None:
    """Say how a search, an engine or another launcher of a sweep is chosen, which no option of the group does."""
    if group not in SWEEPS:
        return None
    names = [f"hydra/{kind}" for kind in ("sweeper", "launcher") if loader.is_option(f"hydra/{kind}", option)]
    return _OF_SWEEPS.get(option) or (f"{names[0]}={option}" if names else None)


def clashes(files: Files, message: str) -> UserError | None:
    """Make the error for a list where another file has a mapping, or the other way round."""
    if "Cannot merge DictConfig with ListConfig" not in message:
        return None
    seen: dict[Key, str] = {}
    for name, path in sorted(files, key=lambda item: item[0].startswith(f"{GROUP}/")):
        for key, node in _nodes(name, path):
            if seen.setdefault(key, node.id) != node.id:
                facts: dict[str, Any] = {"expected": _KINDS[seen[key]], "received": _KINDS[node.id]}
                origin = _at(node, path)
                return UserError("wrong type", key=dotted(key) or None, origin=origin, **facts, family="wrong-value")
    return None


def chosen_twice(files: Files, message: str) -> UserError | None:
    """Make the error for a group in a defaults list whose option another file has chosen already."""
    group = _TWICE.search(message)
    if group is None:
        return None
    entry = f"/{group[1]}"
    for _, path in reversed(files):
        for item in entries(path):
            if words_of(item) == [entry]:
                what = "another file has chosen the option of this group already"
                fix = f"- override {entry}: {item.value[0][1].value}"
                return _entry_error(what, item, path, received=entry, fix=fix)
    return None


def unreadable_value(files: Files, message: str) -> UserError | None:
    """Make the error for a value with half an interpolation."""
    key = _FULL_KEY.search(message)
    if key is None or ("viable alternative" not in message and "extraneous input" not in message):
        return None
    for name, path in reversed(files):
        for place, node in _nodes(name, path, scalars=True):
            if dotted(place) == key[1]:
                what, fix = "the interpolation can't be read", "${name} of another key; for a plain text, \\${"
                facts = {"received": node.value, "origin": _at(node, path), "fix": fix}
                return UserError(what, key=key[1], **facts, family="unreadable-configuration")
    return None


def _nodes(name: str, path: Path, *, scalars: bool = False) -> Iterator[tuple[Key, yaml.Node]]:
    """Yield the mappings and lists of a file by full key, or its single values."""
    root, group = nodes(path), Path(name).parent.parts
    if root is not None:
        yield from _below(root, () if group[:1] in ((GROUP,), ()) else group, scalars)


def _below(node: yaml.Node, key: Key, scalars: bool) -> Iterator[tuple[Key, yaml.Node]]:
    if isinstance(node, yaml.ScalarNode) == scalars:
        yield key, node
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield from _below(value, (*key, str(name.value)), scalars)
