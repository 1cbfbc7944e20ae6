"""The arguments each option of a group sets or could set, read from its files and from the source of its target."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Union, cast, get_args, get_origin

import yaml

from lightkit.config.annotations import in_words
from lightkit.config.arguments import HYDRA_KEYS, provided
from lightkit.config.check import schema_fields
from lightkit.config.defaults import absolute
from lightkit.config.hydra_compat import ConfigLoader
from lightkit.config.limits import limit_of
from lightkit.config.lookup import Found, TargetError, UnreadableError, bases, find, own
from lightkit.config.origins import Key, dotted, nodes, parts_of
from lightkit.config.schema import Config, Target
from lightkit.config.signatures import Parameter, read

_COMMENT = re.compile(r"\s+#\s*(.*)")
_ENTRY = re.compile(r"^(\w+)[^:]*:\s*(.*)$")
_DEFAULT = re.compile(r"\s*\(default: (?:[^()]|\([^()]*\))*\)")
_WORDS = {"None": "null", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Argument:
    """One argument of the target of an option.

    Args:
        key: Full key.
        value: What it is when nothing is set, as YAML; empty where it must be given.
        comment: What the option's file says beside it, or else `meaning`.
        meaning: What the target's docstring says.
        type: What it may hold, in words; empty where the source does not tell.
        written: The option's files set it; otherwise the value is the target's own default.
    """

    key: str
    value: str
    comment: str = ""
    meaning: str = ""
    type: str = ""
    written: bool = True


@dataclass(frozen=True)
class _Value:
    text: str
    comment: str = ""


def option_arguments(loader: ConfigLoader, group: str, name: str) -> list[Argument]:
    """All arguments of the targets in an option: first what its files set, in their order, then what they leave out."""
    written = _written(loader, f"{group}/{name}")
    prefix = parts_of(group.replace("/", "."))
    found: list[Argument] = []
    for place, names in _target_nodes((), _kind_at(prefix)):
        target = written.get((*place, "_target_"))
        if target is not None:
            found += _of_target(target.text, (*prefix, *place), names, written)
    return found


def option_values(loader: ConfigLoader, group: str, name: str) -> dict[str, tuple[str, str]]:
    """By full key: what an option sets, as YAML, and the comment beside it; without what is below a `_target_`."""
    written, prefix = _written(loader, f"{group}/{name}"), parts_of(group.replace("/", "."))
    targets = [place[:-1] for place in written if place[-1] == "_target_"]
    kept = {place: value for place, value in written.items() if not any(place[: len(one)] == one for one in targets)}
    return {dotted((*prefix, *place)): (value.text, value.comment) for place, value in kept.items()}


def _kind_at(key: Key) -> Any:
    kind: Any = Config
    for part in key:
        kind = schema_fields(kind).get(str(part)) if isinstance(kind, type) and kind is not Target else None
        if kind is None:
            return Target  # a group of the user's own: whatever it builds is shown
    return kind


def _target_nodes(place: Key, kind: Any) -> Iterator[tuple[Key, set[str]]]:
    """Places of targets below a node of the schema, with the keys of each that are no arguments."""
    if not dataclasses.is_dataclass(kind):
        return
    fields = schema_fields(cast(type, kind))
    if issubclass(cast(type, kind), Target):
        yield place, set(fields)
        return
    for name, inner in fields.items():
        yield from _target_nodes((*place, name), _class_of(inner))


def _class_of(kind: Any) -> Any:
    """The schema class inside of `Optional[...]`."""
    parts = get_args(kind) if get_origin(kind) is Union else ()
    return next((part for part in parts if dataclasses.is_dataclass(part)), kind)


def _of_target(target: str, key: Key, own_keys: set[str], written: dict[Key, _Value]) -> list[Argument]:
    depth = len(key)
    known = {parameter.name: parameter for parameter in _parameters(target)}
    meanings = argument_docs(target)
    skipped = own_keys | set(HYDRA_KEYS)
    inner = key[1:]  # `written` counts from the option's own file
    given = {
        place[depth - 1 :]: value for place, value in written.items() if place[: depth - 1] == inner and place != inner
    }
    found = []
    for place, value in given.items():
        name = str(place[0])
        if len(place) == 1 and name not in skipped:
            kind = _type(known.get(name), (*key, name))
            meaning = meanings.get(name, "")
            found.append(Argument(dotted((*key, name)), value.text, value.comment or meaning, meaning, kind))
    for name, parameter in known.items():
        if (name,) not in given and name not in skipped and name not in provided(key) and name not in _FILLED:
            meaning, default = meanings.get(name, ""), _WORDS.get(parameter.default, parameter.default)
            kind = _type(parameter, (*key, name))
            found.append(Argument(dotted((*key, name)), default, meaning, meaning, kind, written=False))
    return found


_FILLED = ("params", "optimizer")


def _parameters(target: str) -> tuple[Parameter, ...]:
    try:
        signature = read(target)
    except TargetError:
        signature = None
    return signature.parameters if signature is not None else ()


def _type(parameter: Parameter | None, key: Key) -> str:
    words = in_words(parameter.annotation) if parameter is not None else "anything"
    words = words.replace(
        " or a list of numbers or a `_target_`", "" if key[:1] == ("optim",) else " or a list of numbers"
    )
    limit = limit_of(key) or limit_of((*key, 0))
    if limit is None:
        return "" if words == "anything" else words
    each = "" if limit_of(key) else "each "
    return limit.in_words() if words == "anything" else f"{words}; {each}{limit.in_words().removeprefix('a number ')}"


def _written(loader: ConfigLoader, config: str, depth: int = 0) -> dict[Key, _Value]:
    """What the file of an option and those of its own group that it is based on set."""
    path = loader.file_of(config)
    root = nodes(path) if path is not None and depth < 10 else None
    if path is None or not isinstance(root, yaml.MappingNode):
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    own_values = dict(_leaves(root, (), lines))
    below: dict[Key, _Value] = {}
    above: dict[Key, _Value] = {}
    is_after = False
    for entry in _bases(root):
        is_after = is_after or entry == "_self_"
        if entry != "_self_":
            more = _written(loader, absolute(entry, PurePosixPath(config).parent), depth + 1)
            (above if is_after else below).update(more)
    # What the option itself says comes first, as that is what makes it this option.
    merged = {**below, **own_values, **above}
    order = dict.fromkeys([*own_values, *merged])
    return {key: _with_comment(merged[key], below.get(key)) for key in order}


def _with_comment(value: _Value, base: _Value | None) -> _Value:
    return value if value.comment or base is None else replace(value, comment=base.comment)


def _bases(root: yaml.MappingNode) -> list[str]:
    entries = next((list(value.value) for name, value in root.value if name.value == "defaults"), list[yaml.Node]())
    return [str(entry.value) for entry in entries if isinstance(entry, yaml.ScalarNode) and "@" not in entry.value]


def _leaves(node: yaml.MappingNode, key: Key, lines: list[str]) -> Iterator[tuple[Key, _Value]]:
    for name, value in node.value:
        place = (*key, str(name.value))
        if place == ("defaults",):
            continue
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield place, _Value(as_text(value))
            yield from _leaves(value, place, lines)
        else:
            yield place, _Value(as_text(value), _comment(value, lines))


def _comment(node: yaml.Node, lines: list[str]) -> str:
    is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    mark = node.end_mark
    if is_block or mark.line >= len(lines):
        return ""
    hit = _COMMENT.match(lines[mark.line][mark.column :])
    return hit[1].strip() if hit else ""


def as_text(node: yaml.Node) -> str:
    """A YAML node on one line, as it would be typed."""
    if isinstance(node, yaml.SequenceNode):
        return "[" + ", ".join(map(as_text, node.value)) + "]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ", ".join(f"{as_text(name)}: {as_text(value)}" for name, value in node.value) + "}"
    text, quote = str(node.value), cast(yaml.ScalarNode, node).style
    return f"{quote}{text}{quote}" if quote in ("'", '"') else text or "null"


@cache
def argument_docs(target: str) -> dict[str, str]:
    """What the docstring of a class (or of a base) or of a function says about each argument, Google style."""
    try:
        return _documented(find(target)[0])
    except (TargetError, UnreadableError, RecursionError):
        return {}


def _documented(found: Found) -> dict[str, str]:
    node = found.node
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {}
    docs: dict[str, str] = {}
    if isinstance(node, ast.ClassDef):
        for base in reversed(_readable_bases(found)):
            docs.update(_documented(base))
        init = own(node, "__init__")
        docs.update(_args_section(ast.get_docstring(init) or "") if init is not None else {})
    return {**docs, **_args_section(ast.get_docstring(node) or _assigned_docstring(found.module.file, node.name))}


def _assigned_docstring(file: Path | None, name: str) -> str:
    """The text in `Name.__doc__ = ...`, which is where torch puts that of its optimizers."""
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


def _readable_bases(found: Found) -> list[Found]:
    try:
        return [
            base for base in bases(found) if base.module.name.partition(".")[0] == found.module.name.partition(".")[0]
        ]
    except UnreadableError:
        return []


def _args_section(text: str) -> dict[str, str]:
    """`name: meaning` of every argument below `Args:`; further lines of an entry are indented deeper."""
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
