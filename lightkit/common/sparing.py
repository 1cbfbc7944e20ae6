"""Importing what is named, and not all of a package with every other package that it finds beside it.

The packages of torchmetrics import all of their modules, and these torchvision, transformers, scipy, matplotlib and,
through them, PyTorch's compiler: that takes longer than many runs train. Here they wait: each imports the module that
defines a name when that name is asked for, and all the rest, as it would have by itself, when somebody asks for more.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from traceback import walk_tb
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

_METRICS = "torchmetrics"
_ROOTS = (_METRICS, "boto3", "fsspec")
"""Packages that wait; TensorBoard imports the last two where they are installed, for files on other machines."""
_PLOT = "torchmetrics.utilities.plot"
"""The module that imports matplotlib; all of it waits."""
_WAITING = WeakKeyDictionary[ModuleType, tuple[dict[str, Any], Any]]()
"""Of each: the names that its other lines import, and what runs these; None while it does.

A name stands beside the module that defines it and the name there, or beside None where only a run can tell."""


def sparingly(make: Callable[[], Any]) -> Any:
    """Call a function that imports metrics, or TensorBoard, and return what it returns.

    Args:
        make: The function. Where a module of torchmetrics fails to be imported without the others, it is called once
            more after all of them.
    """
    try:
        with _in_parts():
            return make()
    except Exception as error:
        if not _is_of_import(error):
            raise
    _complete(_WAITING)
    return make()


def _is_of_import(error: BaseException | None) -> bool:
    """Tell whether an error comes from a module of torchmetrics that was being imported."""
    if error is None:
        return False
    frames = (frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>")
    inside = any(str(frame.f_globals.get("__name__")).startswith(_METRICS) for frame in frames)
    return inside or _is_of_import(error.__cause__ or error.__context__)


@contextmanager
def _in_parts() -> Iterator[None]:
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)


class _Finder(MetaPathFinder):
    """Finds what waits."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return a module that waits; None for what is imported as ever."""
        spec: Any = PathFinder.find_spec(name, path) if name.partition(".")[0] in _ROOTS else None
        if spec is None or not isinstance(loader := spec.loader, SourceFileLoader):
            return None
        if name == _PLOT or spec.submodule_search_locations:
            spec.loader = SimpleNamespace(create_module=loader.create_module, exec_module=lambda it: _split(it, loader))
        return spec


def _split(module: Any, loader: SourceFileLoader) -> None:
    """Run the lines of a module that import nothing of its own package."""
    name, space, names = module.__name__, vars(module), dict[str, Any]()
    module.__spec__.loader = module.__loader__ = loader
    lines = ast.parse(loader.get_source(name) or "").body
    rest = [line for line in lines if name == _PLOT or _waits(line, name.partition(".")[0])]
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


def _waits(line: ast.stmt, root: str) -> bool:
    """Tell whether a line imports from its own package, or may need what such a line imports."""
    if isinstance(line, ast.ImportFrom):
        return line.names[0].name != "*" and (line.level > 0 or str(line.module).startswith(root))
    if isinstance(line, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "__all__" for target in line.targets)
    return not isinstance(line, ast.Import) and not isinstance(getattr(line, "value", None), ast.Constant)


class _Waits(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":  # of `dir` and `vars`
            _complete([self])
        return ModuleType.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        names, _ = _WAITING[self]
        if self.__name__ == _PLOT and _Finder in sys.meta_path:
            if name.endswith("_TYPE"):  # of annotations
                return object
            if name.startswith("plot_"):
                return lambda *args, **kwargs: getattr(self, name)(*args, **kwargs)
        if name in names or name == "__all__" or not name.startswith("__"):
            with suppress(Exception), _in_parts():
                if source := names.get(name):
                    value = getattr(import_module(source[0]), source[1])
                    ModuleType.__setattr__(self, name, value)
                    return value
                if name not in names and PathFinder.find_spec(f"{self.__name__}.{name}", self.__path__):
                    return import_module(f"{self.__name__}.{name}")
            _complete([self])
            if name not in vars(self):  # what others import of it
                root = self.__name__.partition(".")[0]
                _complete(one for one in _WAITING if one.__name__.startswith(root))
        return ModuleType.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _WAITING[self][0]):
            super().__setattr__(name, value)  # a module would hide the function of its name


def _complete(modules: Iterable[ModuleType]) -> None:
    """Let modules do what they have not done yet."""
    for module in [*modules]:
        names, rest = _WAITING[module]
        if rest is not None:
            _WAITING[module] = names, None
            try:
                rest()
            except BaseException:
                _WAITING[module] = names, rest
                raise
            _WAITING[module] = {}, None
