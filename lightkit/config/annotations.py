"""Types a value may have: read from annotations, compared with values, and put into words."""

from __future__ import annotations

import ast
import dataclasses
import types
import typing
from contextlib import suppress
from typing import Annotated, Any, Literal, Optional, Union

from lightkit.common.text import is_number, look_alike, plain_letters, without_secrets


class Built:
    """Stands for a tensor, which YAML cannot write: a nested `_target_` makes one, or a list of numbers becomes one."""


class Called:
    """Stands for a class or function, which YAML cannot write: its dotted path, or a nested `_target_`, gives one."""


class _Unknown:
    """Stands for a value that was reported already, so that nothing more is said about it."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()
_PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "None": None, "Tensor": Built, "Callable": Called}
_TUPLES = {"tuple", "Tuple"}
_LISTS = {"list", "List", "Sequence", "MutableSequence", *_TUPLES}
_DICTS = {"dict", "Dict", "Mapping", "MutableMapping"}
_PYTHON_TYPES: dict[Any, Any] = {
    **{kind: kind for kind in (int, bool, str, type(None))},
    float: (int, float),
    None: type(None),
    Built: (),
}
"""Classes of the plain values that have a type; anything has one that is not named here."""
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    Built: "a list of numbers or a `_target_`",
    Called: "the dotted path of a function, or a `_target_`",
}


def read_annotation(node: ast.expr | None) -> Any:
    """Read a type as `typing` knows it from an annotation in source; `Any` for all but plain types.

    Names are taken at face value: `int` is an int and `Tensor` a tensor in whatever module it stands.
    """
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        with suppress(SyntaxError):
            return read_annotation(ast.parse(node.value, mode="eval").body)
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return list if name in _LISTS else dict if name in _DICTS else _PLAIN.get(name, Any)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Union[read_annotation(node.left), read_annotation(node.right)]
    if isinstance(node, ast.Subscript):
        return _from_subscript(node)
    return Any


def _from_subscript(node: ast.Subscript) -> Any:
    name = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        values = [item.value for item in inner if isinstance(item, ast.Constant)]
        return Literal[tuple(values)] if len(values) == len(inner) and values else Any
    if name == "Optional":
        return Optional[read_annotation(inner[0])]
    if name == "Union":
        return Union[tuple(map(read_annotation, inner))]
    if name == "Annotated":
        return read_annotation(inner[0])
    if name == "Callable":
        return Called
    if name in _LISTS:
        return _from_items(inner, fixed=name in _TUPLES)
    return dict if name in _DICTS else Any


def _from_items(items: list[ast.expr], *, fixed: bool) -> Any:
    """Return the type of a list, for a tuple with its length, or 0 for any; `tuple[int]` often means any length."""
    kinds = {read_annotation(item) for item in items if not _is_ellipsis(item)}
    kind: Any = list[kinds.pop()] if len(kinds) == 1 else list  # type: ignore[misc]
    length = len(items) if len(items) > 1 and not any(map(_is_ellipsis, items)) else 0
    return Annotated[kind, length] if fixed else kind


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a plain value (from YAML) has the type. A whole number is a number; true and false are not."""
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Annotated:
        return fits(value, inner[0]) and inner[1] in (0, len(value))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in inner)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in inner)
    if origin in (list, dict):
        items: Any = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and (not inner or all(fits(item, inner[-1]) for item in items))
    # One of the schema's classes is written as a mapping.
    accepted = dict if dataclasses.is_dataclass(kind) else _PYTHON_TYPES.get(kind, object)
    return kind is Any or (isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)))


def becomes_tensor(value: object, kind: Any) -> bool:
    """Tell whether a value is a (nested) list of numbers, for an argument that takes a tensor and no such list."""
    takes_tensor = kind is Built or Built in typing.get_args(kind)
    return takes_tensor and not fits(value, kind) and _are_numbers(value)


def becomes_tuple(value: object, kind: Any) -> bool:
    """Tell whether a value is a list for an argument that takes a text or a tuple, and so tells the two apart."""
    kinds = typing.get_args(kind)
    return isinstance(value, list) and str in kinds and any(typing.get_origin(one) is Annotated for one in kinds)


def is_called(value: object, kind: Any) -> bool:
    """Tell whether a value is the dotted path of a class or function, for an argument that takes one and no text."""
    parts, kinds = value.split(".") if isinstance(value, str) else [], {kind, *typing.get_args(kind)}
    return len(parts) > 1 and all(part.isidentifier() for part in parts) and Called in kinds and str not in kinds


def _are_numbers(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(_are_numbers(item) or (isinstance(item, (int, float)) and not isinstance(item, bool)) for item in value)


def item_type(kind: Any) -> Any:
    """Return the type of the items of a list; `Any` where nothing is known of them, or the type is another one."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Annotated, Union, types.UnionType):
        return next((found for found in map(item_type, inner) if found is not Any), Any)
    return inner[0] if origin is list and inner else Any


def in_words(kind: Any) -> str:
    """Say a type as an error message does."""
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Annotated:
        return in_words(inner[0]).replace("a list", f"a list of {inner[1]}" if inner[1] else "a list", 1)
    if origin is Literal:
        return "one of " + ", ".join("null" if choice is None else str(choice) for choice in inner)
    if origin in (Union, types.UnionType):
        # Without the unreadable part, of which nothing can be said.
        return " or ".join(in_words(part) for part in inner if part is not Any)
    if origin is list:
        return f"a list ({in_words(inner[0])} each)" if inner and inner[0] is not Any else "a list"
    if origin is dict:
        return "a mapping of names to values"
    if dataclasses.is_dataclass(kind):
        return "a mapping with `_target_`" if "_target_" in {f.name for f in dataclasses.fields(kind)} else "a mapping"
    return _WORDS.get(type(None) if kind is None else kind, "anything")


def choices_of(kind: Any) -> list[str]:
    """List the values of a `Literal`, also inside a union; none for other types."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return ["null" if choice is None else str(choice) for choice in inner]
    if origin in (Union, types.UnionType):
        return [choice for part in inner for choice in choices_of(part)]
    return []


def shown_value(value: Any) -> Any:
    """Return a value as a message shows it, cut where it is long."""
    text = without_secrets(repr(value))  # before it is cut
    return value if value is not None and len(text) <= 80 else "null" if value is None else f"{text[:77]}..."


def type_hint(value: Any, kind: Any) -> str | None:
    """Say what probably went wrong with a type."""
    odd = look_alike(value) if isinstance(value, str) else None
    if odd is not None and fits(0.5, kind) and is_number(plain_letters(value)):
        return f"write {plain_letters(value)}: {odd}"
    if isinstance(value, str) and fits(0.5, kind) and is_number(value):
        return f"write {value} without quotes"
    if isinstance(value, str) and fits(True, kind) and value.lower() in ("true", "false", "yes", "no", "on", "off"):
        return "write true or false without quotes"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e12 and fits(1, kind):
        return f"write {int(value)}"
    if not isinstance(value, list) and fits([value], kind):
        return f"write [{value}]"
    return None
