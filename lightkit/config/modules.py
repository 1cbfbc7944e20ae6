"""Python modules read as text: where they are and what names they define, without importing anything."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_DEFINITION = re.compile(rb"""^((?:async )?def|class) +(\w+)(.*)(?:\n(?![^\s)\]}\#'"]).*)*""", re.M)
"""A function or class at the top of a module, with all lines up to the next that begins with anything else."""
_BASES = re.compile(rb"(\([\w., =\[\]]*\))?:")
"""The rest of the first line of a class that says what it derives from."""
_OF_OTHERS = ("site-packages", "dist-packages")
_OWN = Path(__file__).parents[1]


@dataclass(frozen=True)
class Binding:
    """One top-level name of a module.

    Args:
        node: The statement that binds it: a definition, an assignment, or None for an import.
        module: For imports, the absolute module it comes from.
        name: For imports, the name in that module; None when the module itself is bound.
    """

    node: ast.stmt | None = None
    module: str = ""
    name: str | None = None


@dataclass
class Module:
    """A module as found on disk.

    Args:
        name: Dotted name.
        file: Its source; None for packages without `__init__.py` and for compiled modules.
        folders: Where submodules are looked for; empty unless it is a package.
        opaque: Its names can't be read (compiled, built in).
        broken: Why its source is no valid Python, with file and line; then it is opaque too.
        body: Its statements.
        sources: Those of functions and classes of which the statement only has the name, see `fill_in`; that of a class
            whose body is `pass` has its bases, too.
    """

    name: str
    file: Path | None = None
    folders: tuple[Path, ...] = ()
    opaque: bool = False
    broken: str = ""
    bindings: dict[str, Binding] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    dynamic: bool = False
    exports: tuple[str, ...] | None = None
    lazy: dict[str, str] = field(default_factory=dict)
    body: list[ast.stmt] = field(default_factory=list, repr=False)
    sources: dict[ast.AST | None, bytes] = field(default_factory=dict, repr=False)


@cache
def load(name: str) -> Module | None:
    """Find and read a module; None when there is none of that name."""
    module = _locate(name)
    if module is None or module.file is None or module.opaque:
        return module
    try:
        text = _text(module.file)
        if not _outline(module, text):
            module.body = ast.parse(text).body
    except SyntaxError as error:
        module.opaque, module.broken = True, f"{module.file}:{error.lineno or 1}: {error.msg}"
        return module
    except (ValueError, OSError):
        module.opaque = True
        return module
    for statement, first in _statements(module.body):
        _bind(module, statement, first)
    module.dynamic = module.dynamic or "__getattr__" in module.bindings
    return module


def _outline(module: Module, text: bytes) -> bool:
    """Parse a source that nobody edits without what is in its functions and classes, which is most of it.

    Returns:
        Whether it can be told where these end: a string of several lines may hold what looks like one.
    """
    file, blocks, line, at = module.file, dict[int, bytes](), 1, 0
    is_fixed = file is not None and (_OWN in file.parents or any(name in file.parts for name in _OF_OTHERS))
    if not is_fixed or b"coding" in text[:100]:
        return False
    for found in _DEFINITION.finditer(text):
        line, at = line + text.count(b"\n", at, found.start()), found.start()
        blocks[line] = found[0]
        if found[0].count(b'"""') % 2 or found[0].count(b"'''") % 2:
            return False
    try:
        module.body = ast.parse(_DEFINITION.sub(_shortened, text)).body
    except SyntaxError:
        return False
    module.sources = {node: blocks[node.lineno] for node in module.body if node.lineno in blocks}
    return len(module.sources) == len(blocks)


def _shortened(found: re.Match[bytes]) -> bytes:
    """Return a definition with nothing in it that takes as many lines; of most classes with their bases."""
    inside = b"(): pass" if found[1] != b"class" else found[3] + b" pass" if _BASES.fullmatch(found[3]) else b": ..."
    return b"%b %b%b" % (found[1], found[2], inside) + b"\n" * found[0].count(b"\n")


def fill_in(module: Module, node: ast.AST | None) -> None:
    """Read what is in a function or class of a module, of which only the name may be known.

    Raises:
        SyntaxError: It is no valid Python.
    """
    source = module.sources.pop(node, None)
    if source is not None:
        kept = {name: getattr(node, name) for name in ("decorator_list", "lineno")}
        vars(node).update(vars(ast.parse(source).body[0]) | kept)


@cache
def _text(file: Path) -> bytes:
    return file.read_bytes()


def clear() -> None:
    """Forget what was read, because the import path or files have changed."""
    load.cache_clear()
    _locate.cache_clear()
    _text.cache_clear()
    importlib.invalidate_caches()


@cache
def _locate(name: str) -> Module | None:
    parent, _, last = name.rpartition(".")
    if not parent:
        return _top_level(name)
    package = _locate(parent)
    if package is None or package.opaque:
        return package
    for folder in package.folders:
        found = _in_folder(folder, last, name)
        if found is not None:
            return found
    return None


def _top_level(name: str) -> Module | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = tuple(map(Path, spec.submodule_search_locations or ()))
    if spec.origin is None or spec.origin in ("built-in", "frozen", "namespace"):
        return Module(name, folders=folders, opaque=not folders)
    file = Path(spec.origin)
    return Module(name, file, folders, opaque=file.suffix != ".py")


def _in_folder(folder: Path, last: str, name: str) -> Module | None:
    package, file = folder / last, folder / f"{last}.py"
    if (package / "__init__.py").is_file():
        return Module(name, package / "__init__.py", (package,))
    if file.is_file():
        return Module(name, file)
    for compiled in (folder / f"{last}{suffix}" for suffix in EXTENSION_SUFFIXES):
        if compiled.is_file():
            return Module(name, compiled, opaque=True)
    return Module(name, folders=(package,)) if package.is_dir() else None


def says(module: Module, *words: bytes) -> bool:
    """Tell whether any of these words is in the source of a module."""
    try:
        text = _text(module.file) if module.file is not None and not module.opaque else b""
    except OSError:
        return True
    return any(word in text for word in words)


def submodules(module: Module) -> list[str]:
    """List the names of the modules directly inside a package."""
    return sorted(info.name for info in pkgutil.iter_modules(map(str, module.folders)))


def top_level_names() -> list[str]:
    """List the names of everything that `import NAME` would find."""
    return sorted({*sys.stdlib_module_names, *(info.name for info in pkgutil.iter_modules())})


def _statements(body: Iterable[ast.stmt], first: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield top-level statements, also in `if`, `try` and `with`; `first` is False on branches that only fill gaps."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _statements(statement.body, first)
            yield from _statements(statement.orelse, False)
        elif isinstance(statement, ast.Try):
            yield from _statements([*statement.body, *statement.orelse, *statement.finalbody], first)
            for handler in statement.handlers:
                yield from _statements(handler.body, False)
        elif isinstance(statement, ast.With):
            yield from _statements(statement.body, first)
        else:
            yield statement, first


def _bind(module: Module, statement: ast.stmt, first: bool) -> None:
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        _add_binding(module, statement.name, Binding(statement), first)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            bound = alias.name if alias.asname else alias.name.partition(".")[0]
            _add_binding(module, alias.asname or bound, Binding(module=bound), first)
    elif isinstance(statement, ast.ImportFrom):
        source = absolute_name(module, statement)
        module.stars += [source for alias in statement.names if alias.name == "*"]
        for alias in [alias for alias in statement.names if alias.name != "*"]:
            _add_binding(module, alias.asname or alias.name, Binding(module=source, name=alias.name), first)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        _bind_assignment(module, statement, first)
    elif isinstance(statement, (ast.Expr, ast.For, ast.While)):
        module.dynamic = module.dynamic or _writes_names(statement)


def absolute_name(module: Module, statement: ast.ImportFrom) -> str:
    """Return the module that a statement of a module imports from."""
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    drop = statement.level - (1 if module.folders else 0)
    base = parts[: len(parts) - drop] if drop else parts
    return ".".join([*base, *([statement.module] if statement.module else [])])


def _bind_assignment(module: Module, statement: ast.Assign | ast.AnnAssign, first: bool) -> None:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        for name in [target] if isinstance(target, ast.Name) else getattr(target, "elts", ()):
            if isinstance(name, ast.Name):
                _add_binding(module, name.id, Binding(statement), first)
    if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
        module.exports = _strings(statement.value)
    elif isinstance(statement.value, ast.Dict):
        _collect_lazy(module, statement.value)
    elif any(isinstance(target, ast.Subscript) for target in targets):
        module.dynamic = module.dynamic or _writes_names(statement)


def _collect_lazy(module: Module, table: ast.Dict) -> None:
    """Collect tables of the form `{"Name": "package.module"}`, which a module-level `__getattr__` imports from."""
    for key, value in zip(table.keys, table.values):
        name, place = getattr(key, "value", None), getattr(value, "value", None)
        if isinstance(name, str) and isinstance(place, str):
            module.lazy.setdefault(name, place)


def _add_binding(module: Module, name: str, binding: Binding, first: bool) -> None:
    """Note what binds a name; of several, the last one counts whose branch does not only fill gaps."""
    known, assigned = module.bindings.get(name), (ast.Assign, ast.AnnAssign)
    # `Name = None` before or after a definition is a placeholder for it.
    if known is not None and isinstance(binding.node, assigned) and not isinstance(known.node, assigned):
        return
    if known is None or first:
        module.bindings[name] = binding


def _writes_names(statement: ast.stmt) -> bool:
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return bool(names & {"globals", "vars", "exec", "setattr", "locals"})


def _strings(value: ast.expr | None) -> tuple[str, ...] | None:
    """Return the text constants of a list or tuple literal; None when it is anything else."""
    if not isinstance(value, (ast.List, ast.Tuple)):
        return None
    found = [item.value for item in value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return tuple(found) if len(found) == len(value.elts) else None
