"""What `lightkit config GROUP` tells: the options of a group and the meaning of its keys."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, cast

import yaml

from lightkit.common.errors import UserError
from lightkit.common.suggest import in_place_of
from lightkit.config.annotations import in_words
from lightkit.config.arguments import FILLED, HYDRA_KEYS, REMOVE, provided
from lightkit.config.fields import (
    argument_range,
    class_at,
    class_in,
    default_of,
    field_docs,
    field_types,
    is_required,
    keys_named,
    yaml_text,
)
from lightkit.config.loader import ConfigLoader, make_loader
from lightkit.config.lookup import Found, OpaqueSourceError, bases, find_known, own
from lightkit.config.origins import Key, absolute, dotted, entries, nodes, parts_of, shown
from lightkit.config.schema import Config
from lightkit.config.schema.base import Target
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.config.signatures import Parameter, read_known
from lightkit.config.sources import GROUP


@dataclass(frozen=True)
class OptionRow:
    """One key of a group."""

    key: str
    """Full key."""
    meaning: str
    """Its docstring in the schema."""
    type: str
    """What it may hold, in words."""
    default: str
    """Its default as YAML; empty where it must be given."""


@dataclass(frozen=True)
class Option:
    """One option of a group."""

    name: str
    """What to write after `group=`."""
    comment: str
    """The first line of its file."""
    source: str
    """Its file."""


def describe_group(group: str) -> list[OptionRow]:
    """List the keys of a group, nested ones too; none for groups the schema does not know, such as `experiment`.

    Args:
        group: Name of a group, or of any node with fields (`trainer.ema`); "" for the top level.
    """
    kind: Any = Config
    for part in group.replace("/", ".").split(".") if group else ():
        found = field_types(kind).get(part)
        if not dataclasses.is_dataclass(found):
            return []
        kind = found
    return _rows(kind, f"{group}." if group else "", nested=bool(group))


def describe_key(key: str) -> list[OptionRow]:
    """List a key of the schema and those below it (`trainer.callbacks`, `optim.rules`); none for any other key.

    Args:
        key: Full key. One below a node that takes any name (`metrics.val.f1`, `extra.width`) leads to that node.
    """
    group = key.partition(".")[0]
    known = {row.key: row for row in [*describe_group(""), *describe_group(group)]}
    below = [row for row in known.values() if row.key == key or row.key.startswith((f"{key}.", f"{key}[]"))]
    place = key
    while not below and "." in place:
        place = place.rpartition(".")[0]
        row = known.get(place)
        below = [row] if row is not None and row.type == in_words(dict) else []
    return below


def describe_arguments(
    group: str, *, project: Path | None = None, config_dir: str | None = None
) -> dict[str, list[Argument]]:
    """Return the arguments of what each option of a group builds, set or not; options without any are left out.

    Of a group whose keys all have defaults, such as `finetune`, also what the option changes of these.
    """
    loader = make_loader(project=project, config_dir=config_dir)
    options = loader.options(group)
    found = {name: [*_changes(loader, group, name), *option_arguments(loader, group, name)] for name in options}
    return {name: arguments for name, arguments in found.items() if arguments}


def changed_keys(loader: ConfigLoader, group: str) -> list[str]:
    """List the keys of a group that its options are about: those that one of them changes from the default."""
    changes = (item.key for name in loader.options(group) for item in _changes(loader, group, name))
    return [*dict.fromkeys(changes)]


def _changes(loader: ConfigLoader, group: str, name: str) -> list[Argument]:
    """List what an option changes of the defaults of a group; nothing for groups with a key that has no default."""
    rows = {row.key: row for row in describe_group(group) if "[]" not in row.key}
    if not all(row.default or row.type == in_words(FinetuneConfig) for row in rows.values()):
        return []
    values = {key: text for key, text in option_values(loader, group, name).items() if key in rows}
    return [
        Argument(key, text, rows[key].meaning, f"{rows[key].type}; {rows[key].default} by default")
        for key, text in values.items()
        if rows[key].default and yaml.safe_load(text) != yaml.safe_load(rows[key].default)
    ]


def unknown_key(key: str, *, project: Path | None = None, config_dir: str | None = None) -> UserError:
    """Make the error for a key that neither the schema nor any option of its group has."""
    group, _, rest = key.partition(".")
    loader = make_loader(project=project, config_dir=config_dir)
    if rest and loader.is_group(group):
        arguments = describe_arguments(group, project=project, config_dir=config_dir).values()
        known = {*(row.key for row in describe_group(group)), *(item.key for each in arguments for item in each)}
        choices, fix = sorted(known), in_place_of(key)
        return UserError("there is no such key", received=key, choices=choices, fix=fix, family="unknown-key")
    meant = keys_named(key)
    fix = f"did you mean {' or '.join(meant[:3])}?" if meant else None
    options = [f"{name}={key}" for name in (*loader.groups(), GROUP) if loader.is_option(name, key)]
    fix = f"lightkit config {options[0]}" if options else fix
    choices = [name for name in loader.groups() if name != "hydra"]
    return UserError("there is no such group", received=key, choices=choices, fix=fix, family="unknown-option")


def _rows(kind: type, prefix: str, *, nested: bool) -> list[OptionRow]:
    """List the fields of a schema class, and with `nested` those of the classes in it."""
    rows = []
    for field in dataclasses.fields(kind):
        inner, key = field_types(kind)[field.name], prefix + field.name
        if field.metadata.get("internal") or (not nested and dataclasses.is_dataclass(inner)):
            continue
        allowed, each = field.metadata.get("range"), "each " if typing.get_origin(inner) in (list, dict) else ""
        words = in_words(inner) + (f"; {each}{allowed}" if str(allowed or "") else "")
        value: Any = "" if is_required(field) else default_of(field)
        is_mapping = isinstance(value, dict) and bool(value)  # of which only what it builds is told
        default = str(value.get("_target_", "")) if is_mapping else yaml_text(value)
        rows.append(OptionRow(key, field_docs(kind)[field.name], words, default))
        item = class_in(typing.get_args(inner)[0]) if typing.get_origin(inner) is list else None
        if dataclasses.is_dataclass(inner) and not issubclass(typing.cast(type, inner), Target):
            rows += _rows(typing.cast(type, inner), f"{key}.", nested=True)
        elif item is not None and item is not Target:
            rows += _rows(item, f"{key}[].", nested=True)
    return rows


def list_options(group: str, *, project: Path | None = None, config_dir: str | None = None) -> list[Option]:
    """List the options of a group with their first comment lines and files.

    Raises:
        UserError: There is no such group.
    """
    loader = make_loader(project=project, config_dir=config_dir)
    if not loader.is_group(group):
        if group == GROUP:
            return []
        raise unknown_key(group, project=project, config_dir=config_dir)
    files = {name: loader.file_of(f"{group}/{name}") for name in loader.options(group)}
    return [
        Option(name, "", "part of Hydra") if path is None else Option(name, first_comment(path), shown(path))
        for name, path in files.items()
    ]


def first_comment(path: Path) -> str:
    """Return the first line of the comment that a file starts with; `# @package` lines are skipped."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.lstrip("# ").startswith("@"):
            return line.lstrip("#").strip()
    return ""


_ENTRY = re.compile(r"^(\w+)[^:]*:\s*(.*)$")
_DEFAULT = re.compile(r"\s*\(default: (?:[^()]|\([^()]*\))*\)")


@dataclass(frozen=True)
class Argument:
    """One argument of the target of an option."""

    key: str
    """Full key."""
    value: str
    """What it is when nothing is set, as YAML; empty where it must be given."""
    meaning: str = ""
    """What the target's docstring says, or that of the schema."""
    type: str = ""
    """What it may hold, in words; empty where the source does not tell."""
    written: bool = True
    """The option's files set it; otherwise the value is the target's own default."""


def option_arguments(loader: ConfigLoader, group: str, name: str) -> list[Argument]:
    """List all arguments of the targets in an option: what its files set, in their order, then what they leave out."""
    written = _values_of_files(loader, f"{group}/{name}")
    prefix = parts_of(group.replace("/", "."))
    found: list[Argument] = []
    for place, names in _target_nodes((), class_at(prefix) or Target):
        target = written.get((*place, "_target_"))
        if target is not None:
            given = {key[len(place) :]: text for key, text in written.items() if key[: len(place)] == place != key}
            found += _of_target(target, (*prefix, *place), names, given)
    return found


def option_values(loader: ConfigLoader, group: str, name: str) -> dict[str, str]:
    """Return what an option sets, as YAML by full key, without what is below a `_target_`."""
    written, prefix = _values_of_files(loader, f"{group}/{name}"), parts_of(group.replace("/", "."))
    targets = [place[:-1] for place in written if place[-1] == "_target_"]
    kept = {place: text for place, text in written.items() if not any(place[: len(one)] == one for one in targets)}
    return {dotted((*prefix, *place)): text for place, text in kept.items()}


def _target_nodes(place: Key, kind: type | None) -> Iterator[tuple[Key, set[str]]]:
    """Yield the places of targets below a node of the schema, with the keys of each that are no arguments."""
    if kind is None:
        return
    fields = field_types(kind)
    if issubclass(kind, Target):
        yield place, set(fields)
        return
    for name, inner in fields.items():
        yield from _target_nodes((*place, name), class_in(inner))


def _of_target(target: str, key: Key, own_keys: set[str], given: dict[Key, str]) -> list[Argument]:
    """List the arguments of one target.

    Args:
        target: Its path.
        key: Where it stands.
        own_keys: Keys of the node that are no arguments.
        given: What is below the node, as YAML.
    """
    signature = read_known(target)
    known = {parameter.name: parameter for parameter in signature.parameters} if signature is not None else {}
    meanings, skipped = argument_docs(target), own_keys | set(HYDRA_KEYS)
    written = {str(place[0]): text for place, text in given.items() if len(place) == 1 and place[0] not in skipped}
    left_out = [name for name in known if (name,) not in given and name not in (*skipped, *provided(key), *FILLED)]
    found = []
    for name in (*written, *left_out):
        kind = _type(known.get(name), (*key, name))
        value = written[name] if name in written else yaml_text(known[name].default)
        found.append(Argument(dotted((*key, name)), value, meanings.get(name, ""), kind, written=name in written))
    return found


def _type(parameter: Parameter | None, key: Key) -> str:
    words = in_words(parameter.annotation) if parameter is not None else "anything"
    words = words.replace(
        " or a list of numbers or a `_target_`", "" if key[:1] == ("optim",) else " or a list of numbers"
    )
    allowed, each = argument_range(key), argument_range((*key, 0))
    if allowed is None and each is None:
        return "" if words == "anything" else words
    if words == "anything":
        return f"a number {allowed or each}"
    return f"{words}; {allowed}" if allowed is not None else f"{words}; each {each}"


def _values_of_files(loader: ConfigLoader, config: str, depth: int = 0) -> dict[Key, str]:
    """Return what the file of an option and those of its own group that it is based on set, as YAML."""
    path = loader.file_of(config)
    root = nodes(path) if path is not None and depth < 10 else None
    if path is None or not isinstance(root, yaml.MappingNode):
        return {}
    own_values = dict(_leaves(root, ()))
    below: dict[Key, str] = {}
    above: dict[Key, str] = {}
    is_after = False
    listed = (str(entry.value) for entry in entries(path) if isinstance(entry, yaml.ScalarNode))
    for entry in (name for name in listed if "@" not in name):
        is_after = is_after or entry == "_self_"
        if entry != "_self_":
            more = _values_of_files(loader, absolute(entry, PurePosixPath(config).parent), depth + 1)
            (above if is_after else below).update(more)
    # What the option itself says comes first, as that is what makes it this option.
    merged = {**below, **own_values, **above}
    return {key: merged[key] for key in dict.fromkeys([*own_values, *merged])}


def _leaves(node: yaml.MappingNode, key: Key) -> Iterator[tuple[Key, str]]:
    for name, value in node.value:
        place = (*key, str(name.value))
        if place != ("defaults",):
            yield place, as_text(value)
            if isinstance(value, yaml.MappingNode) and not value.flow_style:
                yield from _leaves(value, place)


def as_text(node: yaml.Node) -> str:
    """Write a YAML node on one line, as it would be typed."""
    if isinstance(node, yaml.SequenceNode):
        return "[" + ", ".join(map(as_text, node.value)) + "]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ", ".join(f"{as_text(name)}: {as_text(value)}" for name, value in node.value) + "}"
    text, quote = str(node.value), cast(yaml.ScalarNode, node).style
    return f"{quote}{text}{quote}" if quote in ("'", '"') else text or "null"


@cache
def argument_docs(target: str) -> dict[str, str]:
    """Return what the docstring of a class (or of a base) or of a function says about each argument, Google style."""
    found = find_known(target)
    return _documented(found) if found is not None else {}


def _documented(found: Found) -> dict[str, str]:
    node = found.node
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {}
    docs: dict[str, str] = {}
    if isinstance(node, ast.ClassDef):
        package = found.module.name.partition(".")[0]
        with suppress(OpaqueSourceError):
            for base in reversed(bases(found)):
                docs |= _documented(base) if base.module.name.partition(".")[0] == package else {}
        init = own(found, "__init__")
        docs.update(_args_section(ast.get_docstring(init) or "") if init is not None else {})
    return {**docs, **_args_section(ast.get_docstring(node) or _assigned_docstring(found.module.file, node.name))}


def _assigned_docstring(file: Path | None, name: str) -> str:
    """Return the text in `Name.__doc__ = ...`, which is where torch puts that of its optimizers."""
    if file is None or f"{name}.__doc__" not in (text := file.read_text(encoding="utf-8", errors="replace")):
        return ""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == f"{name}.__doc__":
            parts = (item.value for item in _in_order(statement.value) if isinstance(item, ast.Constant))
            return inspect.cleandoc("".join(part for part in parts if isinstance(part, str)))
    return ""


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def _args_section(text: str) -> dict[str, str]:
    """Read `name: meaning` of every argument below `Args:`; further lines of an entry are indented deeper."""
    docs, last = dict[str, str](), ""
    indent: int | None = None
    for line in text.partition("Args:\n")[2].splitlines():
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if depth == 0:
            break
        indent = depth if indent is None else indent
        hit = _ENTRY.match(line.strip()) if depth == indent else None
        if hit:
            last = hit[1]
        docs[last] = f"{docs.get(last, '')} {hit[2] if hit else line.strip()}".strip()
    return {name: _DEFAULT.sub("", meaning).strip() for name, meaning in docs.items()}


_USUAL = {"ensemble": "voting", "model": "mlp", "optim": "sgd"}
"""The option of a group that is named first."""


def name_options(errors: Iterable[UserError], loader: ConfigLoader) -> None:
    """Change the fix of each error about an argument on the command line that other options of its group take.

    Args:
        errors: Mistakes of a configuration.
        loader: Knows the groups and options.
    """
    for error in errors:
        key, origin = error.key or "", error.origin or ""
        group = key.partition(".")[0]
        is_typed = origin.startswith("command line") and (error.fix or "").startswith(REMOVE)
        options = _taking(loader, group, key) if is_typed and loader.is_group(group) else []
        if options:
            first = next((option for option in options if option == _USUAL.get(group)), options[0])
            others = ", ".join(option for option in options if option != first)
            value = origin.partition("=")[2]
            error.change_fix(f"{group}={first} {key}={value}" + (f"; also of {others}" if others else ""))


def _taking(loader: ConfigLoader, group: str, key: str) -> list[str]:
    """List the options of a group whose targets take an argument."""
    return [
        name for name in loader.options(group) if any(one.key == key for one in option_arguments(loader, group, name))
    ]
