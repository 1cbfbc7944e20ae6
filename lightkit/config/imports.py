"""Imports at the top of the user's modules that would fail, told from source: nothing is imported.

Only what is certain is told. What a module imports after it has called something, in `try` or in `if`, may well be
there: the path of imports is open to change. What fails in another way is told when the run is built.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import lightkit.config.modules as modules
from lightkit.common.suggest import nearest
from lightkit.config.arguments import EXTRAS
from lightkit.config.lookup import BrokenError, Found, TargetError, UnreadableError, relative, split, step
from lightkit.config.modules import Module
from lightkit.config.trust import Trust

_STEERING = (b"sys.path", b"sys.modules", b"sys.meta_path", b"__path__", b"path_hooks")
"""What a source says that changes what can be imported."""
_MAKING = (b"globals()", b"locals()", b"vars()", b"exec(", b"sys.modules")
"""What a source says that may make names which do not stand in it."""
_HARMLESS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


class Failure(NamedTuple):
    """An import that would fail.

    Args:
        place: File and line.
        what: Why it fails.
        name: What it asks for; None where the file is no valid Python.
        choices: What there is that is called much like it.
        fix: What to do.
    """

    place: str
    what: str
    name: str | None = None
    choices: tuple[str, ...] = ()
    fix: str | None = None


class _OpenError(Exception):
    """From here on anything may be importable."""


def failing_import(target: str, trust: Trust) -> Failure | None:
    """The first import that fails when the module of a target is imported; None where none does for sure.

    Args:
        target: Dotted path of what is to be built; None is said of one that does not exist, or can't be read itself.
        trust: Tells which modules are the user's own: only these are looked into.
    """
    try:
        module, names = split(target)
        step(Found(module), names[0], last=len(names) == 1)
    except TargetError:
        return None
    except (UnreadableError, RecursionError):
        pass
    try:
        return _Walk(trust).through(module.name)
    except (_OpenError, RecursionError):
        return None


class _Walk:
    """Goes through modules in the order in which Python would."""

    def __init__(self, trust: Trust) -> None:
        self.trust, self.seen = trust, set[str]()

    def through(self, name: str) -> Failure | None:
        """The first failure in a module and those around it; None also for what is not the user's."""
        if name.partition(".")[0] == "lightkit":
            return None  # its own modules are many, and can be imported
        return next((found for found in map(self.inside, _prefixes(name)) if found is not None), None)

    def inside(self, name: str) -> Failure | None:
        """The first failure in a module itself, or in those that it imports."""
        module = modules.load(name)
        if module is None or name in self.seen or name in sys.modules or not self.trust.in_project(module):
            return None
        self.seen.add(name)
        if module.broken:
            error = BrokenError(module)
            return Failure(error.place, error.what.removeprefix(f"{error.place}: "), fix=f"mend {error.place}")
        if modules.says(module, *_STEERING):
            raise _OpenError
        for statement in takewhile(_is_harmless, module.body):
            for found in self.of(statement, module):
                if found is not None:
                    return found
        if not all(map(_is_harmless, module.body)):
            raise _OpenError
        return None

    def of(self, statement: ast.stmt, module: Module) -> Iterator[Failure | None]:
        """What comes of each name that a statement imports."""
        place = f"{relative(str(module.file))}:{statement.lineno}"
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield self.through(alias.name) or self.module(alias.name, place)
        elif isinstance(statement, ast.ImportFrom):
            if statement.level > module.name.count(".") + bool(module.folders):
                yield Failure(place, "the dots lead out of the package", fix="write the full path of the module")
                return
            source = modules.absolute_name(module, statement)
            yield self.through(source) or self.module(source, place)
            for alias in statement.names:
                yield self.through(f"{source}.{alias.name}") or self.name(source, alias.name, place)

    def module(self, name: str, place: str) -> Failure | None:
        """The failure of a module that is not there."""
        parent = None
        for prefix in _prefixes(name):
            module = modules.load(prefix)
            if module is None and prefix not in sys.modules:
                break
            parent = module
        else:
            return None
        if prefix == name.partition(".")[0]:
            wanted = (
                f"pip install 'lightkit[{EXTRAS[prefix]}]'" if prefix in EXTRAS else f"install what brings {prefix}"
            )
            return Failure(place, f"there is no module {prefix}", prefix, fix=f"{wanted}, or mend {place}")
        if parent is None or not self.trust.in_project(parent):
            return None
        close = tuple(nearest(prefix.rpartition(".")[2], modules.submodules(parent)))
        return Failure(place, f"there is no module {prefix}", prefix, close, _meant(close, place))

    def name(self, source: str, name: str, place: str) -> Failure | None:
        """The failure of a name that a module does not have."""
        module = modules.load(source)
        imported = vars(sys.modules[source]) if source in sys.modules else {}
        if name == "*" or module is None or name in imported:
            return None
        try:
            step(Found(module), name, last=True)
        except (BrokenError, UnreadableError, RecursionError):
            pass  # a broken one is told where it is gone through
        except TargetError as error:
            if not modules.says(module, *_MAKING):
                close = tuple(nearest(name, error.choices))
                return Failure(place, f"the module {source} has no {name}", name, close, _meant(close, place))
        return None


def _meant(close: tuple[str, ...], place: str) -> str:
    return f"did you mean {close[0]}? It is to be mended in {place}" if close else f"mend {place}"


def _prefixes(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _is_harmless(statement: ast.stmt) -> bool:
    """Whether nothing changes what can be imported after a statement: a docstring, a definition, a guarded import."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (*_HARMLESS, ast.If, ast.Try))
