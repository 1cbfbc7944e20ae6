"""What the classes of the schema say about their fields: types, defaults, ranges, marks and meanings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import lightkit.config.schema as schema
from lightkit.common import suggest
from lightkit.common.argument_checks import Range
from lightkit.common.doors import SHIPPED
from lightkit.common.suggest import nearest
from lightkit.common.text import plain_letters
from lightkit.config.origins import Key, dotted
from lightkit.config.schema import Config
from lightkit.config.schema.learning import ARGUMENT_RANGES

Field = dataclasses.Field[Any]


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a schema class by name; a name of a part is one that lightkit brings."""
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if "door" in field.metadata:
            known: Any = typing.Literal[tuple(SHIPPED[field.metadata["door"]])]
            others = (kind for kind in typing.get_args(types[field.name]) if kind is not str)
            types[field.name] = typing.Union[tuple({known: None, **dict.fromkeys(others)})]
    return types


def is_required(field: Field) -> bool:
    """Tell whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def default_of(field: Field) -> Any:
    """Return the default of a field as plain values."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return defaults_of(type(value)) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def defaults_of(kind: type) -> dict[str, Any]:
    """Return the defaults of a schema class by name, as plain values."""
    return {field.name: default_of(field) for field in dataclasses.fields(kind) if not is_required(field)}


def yaml_text(value: object) -> str:
    """Write a default, or the source of one, as YAML."""
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def class_in(kind: Any) -> type | None:
    """Return the schema class that a type is or that is inside of its `Optional[...]`; None where there is none."""
    parts = typing.get_args(kind) if typing.get_origin(kind) is typing.Union else (kind,)
    found: Any = next((part for part in parts if dataclasses.is_dataclass(part)), None)
    return typing.cast("type | None", found)


def class_at(key: Key) -> type | None:
    """Return the schema class of the node at a key; None where the schema has none."""
    found: Any = Config
    for part in key:
        kind = class_in(found)
        named = typing.get_origin(found) in (list, dict)
        found = typing.get_args(found)[-1] if named else field_types(kind).get(str(part)) if kind is not None else None
    return class_in(found)


@cache
def valid_keys() -> tuple[str, ...]:
    """Return all keys of the schema in full, without those of list items and those that lightkit writes itself."""
    hidden = [key for key, field, _ in walk(Config) if field.metadata.get("internal")]
    kept = (key for key, _, _ in walk(Config) if "*" not in key)
    return tuple(dotted(key) for key in kept if not any(key[: len(one)] == one for one in hidden))


def keys_named(name: str) -> list[str]:
    """List the keys whose last part is a name, those of arguments that most parts take first: `optim.lr` for `lr`."""
    arguments_of = {part: names for part, names in ARGUMENT_RANGES.items() if part != "metrics"}
    usual = [f"{part}.{argument}" for part, names in arguments_of.items() for argument in names]
    return [key for key in dict.fromkeys([*usual, *valid_keys()]) if key.rpartition(".")[2] == name]


@cache
def walk(kind: type, key: Key = ()) -> tuple[tuple[Key, Field, Any], ...]:
    """Return key, field and type of all that a schema class has, each before what is in it.

    `*` stands for any item of a list and any name of a mapping.
    """
    found = list[tuple[Key, Field, Any]]()
    for field in dataclasses.fields(kind):
        place, of_field = (*key, field.name), field_types(kind)[field.name]
        found.append((place, field, of_field))
        for inner, way in _classes_in(of_field):
            found += walk(inner, (*place, *way))
    return tuple(found)


def marked_fields(kind: type, mark: str) -> dict[Key, Field]:
    """Return the fields at and below a schema class whose metadata has a mark, such as `user_only`, by key."""
    return {key: field for key, field, _ in walk(kind) if field.metadata.get(mark) is not None}


def _classes_in(kind: Any, way: Key = ()) -> Iterator[tuple[type, Key]]:
    """Yield the schema classes inside a type, each with the way through lists and mappings to it."""
    if dataclasses.is_dataclass(kind):
        yield typing.cast(type, kind), way
    more = ("*",) if typing.get_origin(kind) in (list, dict) else ()
    for part in typing.get_args(kind):
        yield from _classes_in(part, (*way, *more))


def argument_range(key: Key) -> Range | None:
    """Return the numbers that an argument of a target may be, or an item of it; None where any will do."""
    group, *names = key[:1] + key[3:] if key[0] == "metrics" else key
    ranges: Mapping[str, Range] = ARGUMENT_RANGES.get(str(group), {})
    is_item = bool(names) and isinstance(names[-1], int)
    return ranges.get(dotted(tuple(names[:-1])) + "[]" if is_item else dotted(tuple(names)))


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """Return the docstring under each field of a schema class and of those it derives from, read from their source."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        last = ""
        for node in _schema_classes()[base.__name__].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                last = node.target.id
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
                docs[last] = " ".join(str(node.value.value).split())
    return docs


@cache
def _schema_classes() -> dict[str, ast.ClassDef]:
    files = sorted(Path(inspect.getfile(schema)).parent.glob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def first_sentence(text: str) -> str:
    """Return a text up to the end of its first sentence, without the full stop."""
    return text.partition(". ")[0].removesuffix(".")


def meant_by(name: str, value: Any, valid: list[str], key: Key) -> str | None:
    """Say what an unknown key was probably meant for: a name of another framework, a typing error, or another place.

    Args:
        name: Last part of the key.
        value: What is below it, whose names count first: `callbacks.early_stopping.patience`.
        valid: The keys that are known there.
        key: The node above.
    """
    way = [name]
    while isinstance(value, dict) and len(value) == 1:
        [(inner, value)] = value.items()
        way.append(str(inner))
    near = nearest(plain_letters(name), valid, count=1)
    beside = f"did you mean {dotted((*key, near[0]))}?" if near else None
    is_nested = len(key) > 1 and len(way) == 1
    if is_nested and near == [suggest.own_name(name)]:  # `lr` of a rule for `learning_rate` there
        return beside
    for count in range(len(way), 1, -1):  # the innermost name says most: `compile.loss`
        if inner := suggest.meaning(dotted((*key, *way[:count]))) or _namesake(way[count - 1]):
            return inner
    return suggest.meaning(dotted((*key, name))) or beside or _namesake(name)


def _namesake(name: str) -> str | None:
    """Say which key has a name, where one alone has it and is not deep in its group."""
    found = [other for other in keys_named(name) if other.count(".") <= 1]
    return f"did you mean {found[0]}?" if len(found) == 1 else None
