"""From a dotted path to the definition behind it, by reading source: nothing is imported."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import lightkit.config.modules as modules
from lightkit.common.suggest import nearest
from lightkit.config.modules import Binding, Module

_PLAIN_BASES = {"object", "ABC", "Generic", "Protocol"}
_UNREADABLE_BASES = {"Enum", "IntEnum", "StrEnum", "NamedTuple", "TypedDict"}
_UNREADABLE_BASES |= {"type", "tuple", "str", "int", "dict", "list"}
_DEPTH = 40  # of re-exports and bases; only a cycle goes that deep


class TargetError(ValueError):
    """A `_target_` that does not exist.

    Args:
        what: What was not found.
        received: The part of the path that is wrong.
        choices: Finds what is there instead, which may take the reading of many files.
        prefix: Dotted path in front of the choices, to name them in full.
    """

    def __init__(self, what: str, *, received: str, choices: Callable[[], list[str]] = list, prefix: str = "") -> None:
        super().__init__(what)
        self.what, self.received, self.prefix, self._find_choices = what, received, prefix, choices

    @cached_property
    def choices(self) -> list[str]:
        """List the names that are there instead."""
        return self._find_choices()

    def sentence(self, target: str) -> str:
        """Say what is wrong with the whole path."""
        return f"{target} does not exist: {self.what}"


class BrokenError(TargetError):
    """A `_target_` in a file that is no valid Python.

    Args:
        module: The file as far as it was read.
    """

    def __init__(self, module: Module) -> None:
        place, _, reason = module.broken.partition(": ")
        self.place = relative(place)
        super().__init__(f"{self.place}: {reason}", received=module.name)

    def sentence(self, target: str) -> str:
        """Say what is wrong with the whole path."""
        return f"{target} can't be read, as its file is no valid Python: {self.what}"


def relative(place: str) -> str:
    """Show a file, and what follows it, as the user knows it: from the working directory on, where it is below that."""
    here = f"{Path.cwd()}{os.sep}"
    return place.removeprefix(here)


class OpaqueSourceError(Exception):
    """The source does not tell.

    Args:
        module: Name of the module where reading ended.
    """

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


@dataclass(frozen=True)
class Found:
    """A definition and the module whose names it uses; `node` is None for a module itself."""

    module: Module
    node: ast.AST | None = None


def find(target: str) -> tuple[Found, Found | None]:
    """Find the definition a dotted path leads to, and for a method its class.

    Raises:
        TargetError: There is no such module, or no such name in it.
        OpaqueSourceError: The source does not tell.
    """
    module, rest = split(target)
    found, owner = Found(module), None
    for name in rest:
        owner, found = found, step(found, name, last=name is rest[-1])
    return found, owner


def find_known(target: str) -> Found | None:
    """Find a definition as `find` does; None where there is none, or the source does not tell."""
    try:
        return find(target)[0]
    except (TargetError, OpaqueSourceError, RecursionError):
        return None


@cache
def defined_path(target: str) -> str:
    """Return the path of a target where it is defined; the path itself where the source does not tell."""
    found = find_known(target)
    name = getattr(found.node, "name", "") if found is not None else ""
    return f"{found.module.name}.{name}" if found is not None and name else target


def step(found: Found, name: str, *, last: bool) -> Found:
    """Find what a name means inside a module or class; `last` says that it ends the path.

    Raises:
        TargetError: There is no such name.
        OpaqueSourceError: The source does not tell.
    """
    try:
        return _attribute(found, name)
    except OpaqueSourceError:
        close = nearest(name, modules.submodules(found.module)) if found.node is None and not last else []
        if not close:
            raise
        # A name in the middle of a path is nearly always a module, and one of nearly this name exists.
        what = f"the package {found.module.name} has no such module"
        raise TargetError(what, received=name, choices=lambda: close, prefix=f"{found.module.name}.") from None


def split(target: str) -> tuple[Module, list[str]]:
    """Split a path into the module it starts with, as long as it can be found on disk, and the names after it.

    Raises:
        TargetError: There is no such module, or nothing after it.
    """
    parts = target.split(".")
    module = modules.load(parts[0]) if parts[0] else None
    if module is None or len(parts) == 1:
        what = "there is no such module" if module is None else "a module is not something to build"
        raise TargetError(what, received=parts[0], choices=list if module else modules.top_level_names)
    count = 1
    while count < len(parts) - 1 and module.folders and not module.opaque:
        deeper = modules.load(".".join(parts[: count + 1]))
        if deeper is None:
            break
        module, count = deeper, count + 1
    return module, parts[count:]


def _attribute(found: Found, name: str, depth: int = 0) -> Found:
    if found.node is None:
        return _module_attribute(found.module, name, depth)
    if isinstance(found.node, ast.ClassDef):
        method = member(found, name, depth)
        if method is not None:
            return method
        what = f"the class {found.node.name} has no method of that name"
        methods = [item.name for item in found.node.body if isinstance(item, ast.FunctionDef)]
        raise TargetError(what, received=name, choices=lambda: [item for item in methods if not item.startswith("_")])
    raise OpaqueSourceError(found.module.name)


def _module_attribute(module: Module, name: str, depth: int) -> Found:
    if module.broken:
        raise BrokenError(module)
    if module.opaque or depth > _DEPTH:
        raise OpaqueSourceError(module.name)
    binding = module.bindings.get(name)
    if binding is not None:
        return _follow(module, binding, depth + 1)
    starred = _from_stars(module, name, depth + 1)
    if starred is not None:
        return starred
    submodule = modules.load(f"{module.name}.{name}")
    if submodule is not None:
        return Found(submodule)
    if module.dynamic:
        return _lazy(module, name, depth + 1)
    what = f"the module {module.name} has no such name"
    raise TargetError(
        what,
        received=name,
        choices=lambda: sorted({*_public(module, 0), *modules.submodules(module)}),
        prefix=f"{module.name}.",
    )


def _follow(module: Module, binding: Binding, depth: int) -> Found:
    """Follow the statement that binds a name to the definition behind it."""
    if binding.node is None:
        source = modules.load(binding.module)
        if source is not None and source.broken:
            raise BrokenError(source)
        if source is None or source.opaque:
            raise OpaqueSourceError(binding.module)
        # `from torch import hub as hub` inside of torch itself can only mean the module torch.hub.
        own_module = modules.load(f"{source.name}.{binding.name}") if source is module else None
        if own_module is not None:
            return Found(own_module)
        return Found(source) if binding.name is None else _module_attribute(source, binding.name, depth)
    if isinstance(binding.node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        has_bases = isinstance(binding.node, ast.ClassDef) and isinstance(binding.node.body[0], ast.Pass)
        return Found(module, binding.node) if has_bases else _whole(Found(module, binding.node))
    value = getattr(binding.node, "value", None)
    if isinstance(value, (ast.Name, ast.Attribute)):
        return _expression(module, value, depth)
    raise OpaqueSourceError(module.name)


def _whole(found: Found) -> Found:
    try:
        modules.fill_in(found.module, found.node)
    except SyntaxError as error:
        raise OpaqueSourceError(found.module.name) from error
    return found


def _expression(module: Module, value: ast.expr, depth: int) -> Found:
    """Find what a name or dotted name means inside a module."""
    if depth > _DEPTH:
        raise OpaqueSourceError(module.name)
    if isinstance(value, ast.Subscript):
        return _expression(module, value.value, depth + 1)
    try:
        if isinstance(value, ast.Name):
            return _module_attribute(module, value.id, depth + 1)
        if isinstance(value, ast.Attribute):
            return _attribute(_expression(module, value.value, depth + 1), value.attr, depth + 1)
    except TargetError as error:
        raise OpaqueSourceError(module.name) from error
    raise OpaqueSourceError(module.name)


def _from_stars(module: Module, name: str, depth: int) -> Found | None:
    doubt: str | None = None
    for place, source in ((place, modules.load(place)) for place in module.stars):
        if source is None or source.opaque:
            doubt = doubt or place
            continue
        if name.startswith("_") if source.exports is None else name not in source.exports:
            continue
        try:
            return _module_attribute(source, name, depth)
        except TargetError:
            continue
        except OpaqueSourceError as error:
            doubt = doubt or error.module
    if doubt is not None:
        raise OpaqueSourceError(doubt)
    return None


def _lazy(module: Module, name: str, depth: int) -> Found:
    """Find a name that `__getattr__` imports, by the table beside it."""
    place = module.lazy.get(name, "").replace(":", ".").lstrip(".")
    for candidate in (place, f"{module.name}.{place}"):
        source = modules.load(candidate) if place else None
        if source is not None and not source.opaque:
            return _module_attribute(source, name, depth)
    raise OpaqueSourceError(module.name)


def _public(module: Module, depth: int) -> set[str]:
    names = {name for name in module.bindings if not name.startswith("_")}
    for source in map(modules.load, module.stars if depth < 5 else ()):
        names |= _public(source, depth + 1) if source is not None else set()
    return names


def bases(found: Found, depth: int = 0) -> list[Found]:
    """Return the base classes that could hold a constructor, in the order they are searched."""
    assert isinstance(found.node, ast.ClassDef)
    result = []
    for base in found.node.bases:
        name = last_name(base)
        if name in _UNREADABLE_BASES or depth > _DEPTH:
            raise OpaqueSourceError(found.module.name)
        if name not in _PLAIN_BASES:
            result.append(_expression(found.module, base, depth + 1))
    if not all(isinstance(base.node, ast.ClassDef) for base in result):
        raise OpaqueSourceError(found.module.name)
    return result


def last_name(node: ast.expr) -> str:
    """Return `C` of `a.b.C[T]`."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def own(found: Found, name: str) -> ast.FunctionDef | None:
    """Return the function of that name in the body of a class, all of which is read then.

    Raises:
        OpaqueSourceError: It is no valid Python.
    """
    node = _whole(found).node
    assert isinstance(node, ast.ClassDef)
    # The last definition counts: earlier ones are overloads.
    known = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == name]
    return known[-1] if known else None


def member(found: Found, name: str, depth: int) -> Found | None:
    """Find the method of a class or of the first base that has it."""
    method = own(found, name)
    if method is not None:
        return Found(found.module, method)
    for base in bases(found, depth):
        inherited = member(base, name, depth + 1)
        if inherited is not None:
            return inherited
    return None
