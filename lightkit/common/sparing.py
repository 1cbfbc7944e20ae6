"""Importing the metrics that are named, and not all of torchmetrics with every package that it finds beside it.

Its packages import all of their modules, and these torchvision, transformers, scipy, matplotlib and, through them,
PyTorch's compiler: that takes longer than many runs train. Here they wait: each imports the module that defines a name
when that name is asked for, and all do the rest, as they would have by themselves, when somebody asks for more.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from traceback import format_exception
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

_ROOT = "torchmetrics"
_PLOT = "torchmetrics.utilities.plot"
"""The module that imports matplotlib; all of it waits."""
_WAITING = WeakKeyDictionary[ModuleType, tuple[dict[str, Any], Any]]()
"""Of each module: the names that its other lines import, and what runs these; None while it does.

A name stands beside the module that defines it and the name there, or beside None where only a run can tell."""


def sparingly(make: Callable[[], Any]) -> Any:
    """Call a function that imports metrics, and return what it returns; from then on torchmetrics comes in parts.

    Args:
        make: The function. Where a module of torchmetrics fails to be imported without the others, it is called once
            more after all of them.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    try:
        return make()
    except Exception as error:
        if not re.search(rf"{_ROOT}\W.*, in <module>", "".join(format_exception(error))):
            raise
    sys.meta_path.remove(_FINDER)
    _complete()
    return make()


class _Finder:
    """Finds what waits."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return a module that waits; None for what is imported as ever."""
        spec: Any = PathFinder.find_spec(name, path) if name.partition(".")[0] == _ROOT else None
        if spec is None or not isinstance(loader := spec.loader, SourceFileLoader):
            return None
        if name == _PLOT or spec.submodule_search_locations:
            spec.loader = SimpleNamespace(create_module=loader.create_module, exec_module=lambda it: _split(it, loader))
        return spec


_FINDER = _Finder()


def _split(module: Any, loader: SourceFileLoader) -> None:
    """Run the lines of a module that import nothing of torchmetrics."""
    name, space, names = module.__name__, vars(module), dict[str, Any]()
    module.__spec__.loader = module.__loader__ = loader
    lines = ast.parse(loader.get_source(name) or "").body
    rest = [line for line in lines if name == _PLOT or _waits(line)]
    for line, part in ((one, part) for one in rest for part in ast.walk(one)):
        if isinstance(part, ast.ImportFrom) and part.module != name:
            knows = part is line and part.level == 0
            names |= {it.asname or it.name: (part.module, it.name) if knows else None for it in part.names}

    def run(some: list[ast.stmt]) -> None:
        exec(compile(ast.Module(some, []), loader.path, "exec"), space)

    try:
        run([line for line in lines if line not in rest])
    except Exception:  # a line needs what waits
        loader.exec_module(module)
    else:
        _WAITING[module] = names, lambda: run(rest)
        module.__class__ = _Waits


def _waits(line: ast.stmt) -> bool:
    """Tell whether a line imports from torchmetrics, or may need what such a line imports."""
    if isinstance(line, ast.ImportFrom):
        return line.names[0].name != "*" and (line.level > 0 or str(line.module).startswith(_ROOT))
    if isinstance(line, (ast.Assign, ast.Import)):
        return "__all__" in ast.unparse(line)
    return not isinstance(getattr(line, "value", None), ast.Constant)


class _Waits(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":  # of `dir` and `vars`
            _complete()
        return ModuleType.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        names, _ = _WAITING.get(self, ({}, None))
        if self.__name__ == _PLOT and str(sys._getframe(1).f_globals.get("__name__")).startswith(_ROOT):
            if name.endswith("_TYPE"):  # of annotations
                return object
            if name.startswith("plot_"):
                return lambda *args, **kwargs: getattr(self, name)(*args, **kwargs)
        if name in names or name == "__all__" or not name.startswith("__"):
            with suppress(Exception):
                if source := names.get(name):
                    return getattr(import_module(source[0]), source[1])
                if name not in names and PathFinder.find_spec(f"{self.__name__}.{name}", self.__path__):
                    return import_module(f"{self.__name__}.{name}")
            _complete(self if self.__name__ == _PLOT else None)
        return ModuleType.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _WAITING.get(self, ((), None))[0]):
            super().__setattr__(name, value)  # a module would hide the function of its name


def _complete(only: ModuleType | None = None) -> None:
    """Let all modules, or one, do what they have not done yet."""
    while module := next((it for it, (_, rest) in _WAITING.items() if rest and only in (None, it)), None):
        names, rest = _WAITING[module]
        _WAITING[module] = names, None
        try:
            rest()
        except BaseException:
            _WAITING[module] = names, rest
            raise
        del _WAITING[module]
        module.__class__ = ModuleType
