"""What `lightkit config GROUP` tells: the options of a group and the meaning of its keys."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightkit.common.errors import UserError
from lightkit.config.annotations import in_words
from lightkit.config.compose import make_loader
from lightkit.config.fields import (
    class_in,
    default_of,
    field_docs,
    field_types,
    is_required,
    keys_named,
    yaml_text,
)
from lightkit.config.loader import ConfigLoader
from lightkit.config.options import Argument, option_arguments, option_values
from lightkit.config.origins import shown
from lightkit.config.schema import Config
from lightkit.config.schema.base import Target
from lightkit.config.schema.finetune import FinetuneConfig
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


def group_names(*, project: Path | None = None) -> list[str]:
    """List all groups with options, own ones of the user too."""
    loader = make_loader(project=project)
    return [group for group in loader.groups() if group != "hydra" and loader.options(group)]


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
        return UserError("there is no such key", received=key, choices=sorted(known), family="unknown-key")
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
        words = in_words(inner) + (f"; {each}{allowed}" if allowed is not None else "")
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
