"""What `lightkit config GROUP` tells: the options of a group and the meaning of its keys."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import lightkit.config.schema as schema
from lightkit.common.errors import UserError
from lightkit.config.annotations import in_words
from lightkit.config.check import schema_fields, valid_keys
from lightkit.config.compose import make_loader
from lightkit.config.experiments import GROUP
from lightkit.config.hydra_compat import ConfigLoader
from lightkit.config.limits import LIMITS
from lightkit.config.options import Argument, option_arguments, option_values
from lightkit.config.origins import shown


@dataclass(frozen=True)
class OptionRow:
    """One key of a group.

    Args:
        key: Full key.
        meaning: Its docstring in the schema.
        type: What it may hold, in words.
        default: Its default as YAML; empty where it must be given.
    """

    key: str
    meaning: str
    type: str
    default: str


@dataclass(frozen=True)
class Option:
    """One option of a group.

    Args:
        name: What to write after `group=`.
        comment: The first line of its file.
        source: Its file.
    """

    name: str
    comment: str
    source: str


def group_names(*, project: Path | None = None) -> list[str]:
    """All groups with options, own ones of the user too."""
    loader = make_loader(project=project)
    return [group for group in loader.groups() if group != "hydra" and loader.options(group)]


def describe_group(group: str) -> list[OptionRow]:
    """The keys of a group, nested ones too; empty for groups the schema does not know, such as `experiment`.

    Args:
        group: Name of a group, or of any node with fields (`trainer.ema`); "" for the top level.
    """
    kind: Any = schema.Config
    for part in group.replace("/", ".").split(".") if group else ():
        kind = schema_fields(typing.cast(type, kind)).get(part) if dataclasses.is_dataclass(kind) else None
    if not dataclasses.is_dataclass(kind):
        return []
    return _rows(typing.cast(type, kind), f"{group}." if group else "", nested=bool(group))


def describe_key(key: str) -> list[OptionRow]:
    """A key of the schema and those below it (`trainer.callbacks`, `optim.rules`); empty for any other key.

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
    """By option of a group: the arguments of what it builds, set or not; options without any are left out.

    Of a group whose keys all have defaults, such as `finetune`, also what the option changes of these.
    """
    loader = make_loader(project=project, config_dir=config_dir)
    options = loader.options(group)
    found = {name: [*_changes(loader, group, name), *option_arguments(loader, group, name)] for name in options}
    return {name: arguments for name, arguments in found.items() if arguments}


def _changes(loader: ConfigLoader, group: str, name: str) -> list[Argument]:
    rows = {row.key: row for row in describe_group(group) if "[]" not in row.key}
    if not all(row.default or row.type == in_words(schema.FinetuneConfig) for row in rows.values()):
        return []
    found = []
    for key, (value, comment) in option_values(loader, group, name).items():
        row = rows.get(key)
        if row is not None and row.default and yaml.safe_load(value) != yaml.safe_load(row.default):
            kind = f"{row.type}; {row.default} by default"
            found.append(Argument(key, value, comment, row.meaning, kind))
    return found


def unknown_key(key: str, *, project: Path | None = None, config_dir: str | None = None) -> UserError:
    """The error for a key that neither the schema nor any option of its group has."""
    group, _, rest = key.partition(".")
    loader = make_loader(project=project, config_dir=config_dir)
    if rest and loader.is_group(group):
        arguments = describe_arguments(group, project=project, config_dir=config_dir).values()
        known = {*(row.key for row in describe_group(group)), *(item.key for each in arguments for item in each)}
        return UserError("there is no such key", received=key, choices=sorted(known))
    keys = dict.fromkeys([*LIMITS, *valid_keys()])
    meant = [name for name in keys if name.rpartition(".")[2] == key and not name.startswith("metrics.*")]
    fix = f"did you mean {' or '.join(meant[:3])}?" if meant else None
    options = [f"{name}={key}" for name in (*loader.groups(), GROUP) if loader.is_option(name, key)]
    fix = f"lightkit config {options[0]}" if options else fix
    choices = [name for name in loader.groups() if name != "hydra"]
    return UserError("there is no such group", received=key, choices=choices, fix=fix)


def _rows(kind: type, prefix: str, *, nested: bool) -> list[OptionRow]:
    rows, types = [], schema_fields(kind)
    for field in dataclasses.fields(kind):
        inner, key = types[field.name], prefix + field.name
        if not nested and dataclasses.is_dataclass(inner):
            continue
        rows.append(
            OptionRow(key, field_docs(_owner(kind, field.name)).get(field.name, ""), _type(inner, key), _default(field))
        )
        if dataclasses.is_dataclass(inner) and not issubclass(typing.cast(type, inner), schema.Target):
            rows += _rows(typing.cast(type, inner), f"{key}.", nested=True)
        elif typing.get_origin(inner) is list and dataclasses.is_dataclass(typing.get_args(inner)[0]):
            rows += _item_rows(typing.get_args(inner)[0], key)
    return rows


def _item_rows(kind: type, key: str) -> list[OptionRow]:
    return [] if kind is schema.Target else _rows(kind, f"{key}[].", nested=True)


def _owner(kind: type, field: str) -> str:
    return next(base.__name__ for base in kind.__mro__ if field in inspect.get_annotations(base))


def _type(kind: Any, key: str) -> str:
    place = key.replace("[]", ".*")
    limit, words = LIMITS.get(place) or LIMITS.get(f"{place}.*"), in_words(kind)
    each = "" if place in LIMITS else "each "
    return f"{words}; {each}{limit.in_words().removeprefix('a number ')}" if limit is not None else words


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return {"None": "null", "True": "true", "False": "false"}.get(str(field.default), str(field.default))
    if field.default_factory is dataclasses.MISSING:
        return ""
    value = field.default_factory()
    return value._target_ if isinstance(value, schema.Target) else str(value) if isinstance(value, (list, dict)) else ""


@cache
def _schema_classes() -> dict[str, ast.ClassDef]:
    files = sorted(Path(schema.__file__).parent.glob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


@cache
def field_docs(kind: str) -> dict[str, str]:
    """The docstring under each field of a schema class, read from its source."""
    docs, last = {}, ""
    for node in _schema_classes()[kind].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
            docs[last] = " ".join(str(node.value.value).split())
    return docs


def list_options(group: str, *, project: Path | None = None, config_dir: str | None = None) -> list[Option]:
    """The options of a group with their first comment lines and files.

    Raises:
        UserError: There is no such group.
    """
    loader = make_loader(project=project, config_dir=config_dir)
    if not loader.is_group(group):
        if group == GROUP:
            return []
        raise unknown_key(group, project=project, config_dir=config_dir)
    return [_option(loader, group, name) for name in loader.options(group)]


def _option(loader: ConfigLoader, group: str, name: str) -> Option:
    path = loader.file_of(f"{group}/{name}")
    if path is None:
        return Option(name, "", "part of Hydra")
    return Option(name, first_comment(path), shown(path))


def first_comment(path: Path) -> str:
    """The comment a file starts with, up to the end of its first sentence or block; `# @package` lines are skipped."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.lstrip("# ").startswith("@"):
            lines.append(line.lstrip("#").strip())
    return lines[0] if lines else ""
