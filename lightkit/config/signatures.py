"""Signatures of `_target_`s read from source with `ast`, so that a configuration is checked without importing it.

Re-exports, star imports, lazy exports, inherited `__init__`s, dataclasses and arguments handed on by `**kwargs` are
followed. What cannot be read (compiled code, `__new__`, names made at run time) gives None and is left to the build.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Optional

import lightkit.config.modules as modules
from lightkit.config.annotations import is_called, read_annotation
from lightkit.config.lookup import Found, OpaqueSourceError, TargetError, bases, defined_path, find, last_name, own
from lightkit.config.modules import Module

__all__ = ["Parameter", "Signature", "TargetError", "called", "clear", "read", "read_known"]


@dataclass(frozen=True)
class Parameter:
    """One argument: its name, its type as far as it is plain, and whether it must be given."""

    name: str
    annotation: Any = Any
    required: bool = False
    default: str = ""


@dataclass(frozen=True)
class Signature:
    """What may be passed by name.

    Args:
        parameters: The named arguments, in order.
        open: Any further name may be passed too.
        positional: Number of leading arguments that may also be passed by position.
    """

    parameters: tuple[Parameter, ...]
    open: bool = False
    positional: int = 0

    def names(self) -> list[str]:
        """Return the names of the arguments, in order."""
        return [parameter.name for parameter in self.parameters]

    def get(self, name: str) -> Parameter | None:
        """Return the argument of that name."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


@cache
def read(target: str) -> Signature | None:
    """Read the signature of a class, function or method by its dotted path; None when the source does not tell.

    Raises:
        TargetError: There is no such module, or no such name in it.
    """
    try:
        found, owner = find(target)
        if isinstance(found.node, ast.ClassDef):
            return _of_class(found)
        if not isinstance(found.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        in_class = owner is not None and isinstance(owner.node, ast.ClassDef)
        # Taken from the class, a plain method still wants `self`; a class method is bound already.
        bound = in_class and _decorated(found.node, "classmethod")
        return _of_function(found.node, found.module, skip=1 if bound else 0, forwarded=None)
    except (OpaqueSourceError, RecursionError):
        return None


def read_known(target: str) -> Signature | None:
    """Read a signature as `read` does; None also for a target that does not exist."""
    try:
        return read(target)
    except TargetError:
        return None


def called(node: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the functions that a node gives to its target by their paths, as nodes, by the argument that takes each.

    Where the target takes further arguments by `**kwargs`, those that it does not name are for the function.
    """
    signature = read_known(node["_target_"]) if isinstance(node.get("_target_"), str) else None
    if signature is None:
        return {}
    named = [item.name for item in signature.parameters if is_called(node.get(item.name), item.annotation)]
    known = {*signature.names(), "_target_", "_partial_", "_args_", "_convert_", "_recursive_"}
    rest = {name: value for name, value in node.items() if name not in known} if signature.open else {}
    return {name: {"_target_": node[name], "_partial_": True, **rest} for name in named}


def clear() -> None:
    """Forget what was read, because the import path or files have changed."""
    read.cache_clear()
    defined_path.cache_clear()
    modules.clear()


def _decorated(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, *names: str) -> bool:
    plain = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
    return any(last_name(item) in names for item in plain)


def _of_class(found: Found) -> Signature:
    """Read the constructor of the class itself or of the first base that has one."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    if own(found, "__new__") or any(
        keyword.arg == "metaclass" and last_name(keyword.value) != "ABCMeta" for keyword in node.keywords
    ):
        raise OpaqueSourceError(found.module.name)
    init = own(found, "__init__")
    if init is not None:
        return _of_function(init, found.module, skip=1, forwarded=found)
    if _decorated(node, "dataclass", "define", "attrs"):
        return _of_dataclass(found)
    if any(_makes_dataclasses(base) for base in bases(found)):
        return replace(_of_dataclass(found), open=True)
    return _inherited(found)


def _makes_dataclasses(found: Found) -> bool:
    """Tell whether a class, or one it comes from, makes data classes of all derived from it.

    Configurations of transformers are such: they also take what they have no field for.
    """
    node = found.node
    assert isinstance(node, ast.ClassDef)
    return _decorated(node, "dataclass_transform") or any(map(_makes_dataclasses, bases(found)))


def _inherited(found: Found) -> Signature:
    for base in bases(found):
        signature = _of_class(base)
        if signature != _NOTHING:
            return signature
    return _NOTHING


_NOTHING = Signature(())


def _of_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module, *, skip: int, forwarded: Found | None
) -> Signature:
    """Read the arguments of a function; with `forwarded`, the class whose bases get what `**kwargs` catches."""
    listed = [*node.args.posonlyargs, *node.args.args]
    gap: list[ast.expr | None] = [None] * (len(listed) - len(node.args.defaults))
    pairs = list(zip(listed, [*gap, *node.args.defaults]))[skip:]
    positional = len(pairs)
    pairs = [pair for pair in pairs if pair[0] not in node.args.posonlyargs]
    pairs += list(zip(node.args.kwonlyargs, node.args.kw_defaults))
    own_ones = tuple(_parameter(argument, default, module) for argument, default in pairs)
    if node.args.kwarg is None:
        return Signature(own_ones, positional=positional)
    rest = _taken_by_kwargs(node, node.args.kwarg.arg, forwarded)
    names = {parameter.name for parameter in own_ones}
    more = tuple(parameter for parameter in rest.parameters if parameter.name not in names)
    return Signature((*own_ones, *more), open=rest.open, positional=positional)


def _parameter(argument: ast.arg, default: ast.expr | None, module: Module) -> Parameter:
    kind = read_annotation(_alias(argument.annotation, module))
    if isinstance(default, ast.Constant) and default.value is None and kind is not Any:
        kind = Optional[kind]
    return Parameter(argument.arg, kind, required=default is None, default=ast.unparse(default) if default else "")


def _alias(annotation: ast.expr | None, module: Module, depth: int = 0) -> ast.expr | None:
    """Find what a name stands for where it is a `Literal[...]` with a name of its own, as in `mode: Mode`."""
    binding = module.bindings.get(annotation.id) if isinstance(annotation, ast.Name) else None
    if binding is None or depth > 5:
        return annotation
    if binding.node is None:
        source = modules.load(binding.module) if binding.name else None
        name = ast.Name(binding.name or "")
        found = _alias(name, source, depth + 1) if source is not None else name
        return annotation if found is name else found
    value = getattr(binding.node, "value", None)
    is_literal = isinstance(value, ast.Subscript) and last_name(value.value) == "Literal"
    return value if is_literal else annotation


def _taken_by_kwargs(node: ast.FunctionDef | ast.AsyncFunctionDef, kwargs: str, found: Found | None) -> Signature:
    """Tell what `**kwargs` takes: the base's arguments when handed on, or the names popped when a rest is refused."""
    try:
        call = _super_call(node, kwargs)
        if found is not None and call is not None:
            base = _inherited(found)
            given = {keyword.arg for keyword in call.keywords}
            kept = [item for item in base.parameters[len(call.args) :] if item.name not in given]
            return Signature(tuple(kept), open=base.open)
    except OpaqueSourceError:
        return Signature((), open=True)
    popped = _popped_names(node, kwargs)
    tests = (item for item in ast.walk(node) if isinstance(item, ast.If) and _is_name(item.test, kwargs))
    refuses_rest = any(isinstance(inner, ast.Raise) for test in tests for inner in ast.walk(test))
    return Signature(tuple(map(Parameter, popped)), open=not (popped and refuses_rest))


def _super_call(node: ast.AST, kwargs: str) -> ast.Call | None:
    """Find `super().__init__(..., **kwargs)` somewhere in a constructor."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
            inner = call.func.value
            through_super = isinstance(inner, ast.Call) and last_name(inner.func) == "super"
            if through_super and any(k.arg is None and _is_name(k.value, kwargs) for k in call.keywords):
                return call
    return None


def _popped_names(node: ast.AST, kwargs: str) -> list[str]:
    found = []
    for call in ast.walk(node):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "pop"
            and call.args
        ):
            key = call.args[0]
            if _is_name(call.func.value, kwargs) and isinstance(key, ast.Constant) and isinstance(key.value, str):
                found.append(key.value)
    return found


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _of_dataclass(found: Found) -> Signature:
    node = found.node
    assert isinstance(node, ast.ClassDef)
    fields: dict[str, Parameter] = {}
    for base in reversed(bases(found)):
        fields.update({parameter.name: parameter for parameter in _of_class(base).parameters})
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            fields.update(_field(item, item.target.id, found.module))
    return Signature(tuple(fields.values()), positional=len(fields))


def _field(item: ast.AnnAssign, name: str, module: Module) -> dict[str, Parameter]:
    if "ClassVar" in ast.unparse(item.annotation):
        return {}
    options: dict[str | None, ast.expr] = {}
    if isinstance(item.value, ast.Call) and last_name(item.value.func) == "field":
        options = {keyword.arg: keyword.value for keyword in item.value.keywords}
        if isinstance(options.get("init"), ast.Constant) and ast.unparse(options["init"]) == "False":
            return {}
        required = not {"default", "default_factory"} & set(options)
    else:
        required = item.value is None
    made = _parameter(ast.arg(name, item.annotation), item.value, module)
    return {name: replace(made, required=required)}
