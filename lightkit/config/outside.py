"""What a configuration names outside of itself: files and folders, columns of tables, modules of the user's.

Paths are looked at, tables are judged, and modules are read as text: nothing of all that is imported.

Of imports that would fail only what is certain is told. What a module imports after it has called something, in `try`
or in `if`, may well be there: the path of imports is open to change. What fails in another way is told when the run is
built.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lightkit.config.modules as modules
from lightkit.common import run_files
from lightkit.common.suggest import nearest
from lightkit.config.allow import judge, targets_in
from lightkit.config.lookup import BrokenError, Found, OpaqueSourceError, TargetError, relative, split, step
from lightkit.config.missing_targets import package_of
from lightkit.config.modules import Module
from lightkit.config.origins import Key, dotted
from lightkit.config.project import located
from lightkit.config.report import Report
from lightkit.config.schema import Config
from lightkit.config.tables import TABLE_FILES, check_tables
from lightkit.config.trust import Trust

Node = dict[str, Any]
_CSV, _IMAGES = "lightkit.data.csv_file.csv", "lightkit.data.images.ImageFolder"
_DATA: dict[str, dict[str, str]] = {
    _CSV: dict.fromkeys(TABLE_FILES, "a CSV file"),
    _IMAGES: dict.fromkeys(("root", "test_root"), "a folder with the images of each class in a folder of their own"),
    "lightkit.data.text.Text": {"path": "a text file, or a folder of text files"},
}
"""Arguments of data sets that name a file or folder, seen from the working directory."""
_WEIGHTS = {"path": "the folder of a run, or a file or folder of weights", "adapter": "an adapter file"}
_TEACHER = "the folder of the teacher's run"
_STEERING = (b"sys.path", b"sys.modules", b"sys.meta_path", b"__path__", b"path_hooks")
"""What a source says that changes what can be imported."""
_MAKING = (b"globals()", b"locals()", b"vars()", b"exec(", b"sys.modules")
"""What a source says that may make names which do not stand in it."""
_HARMLESS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def check_outside(tree: Node, report: Report) -> None:
    """Report the data and the imports that a run which is about to start would not find.

    One that was trained needs less of it: not its base, and its data only to go on.
    """
    told = set[str]()
    for key, node in targets_in(tree):
        _check_data(node, key, report)
        found = None if judge(node["_target_"], report.trust) else failing_import(node["_target_"], report.trust)
        if found is not None and found.place not in told:
            told.add(found.place)
            what = f"{node['_target_']} can't be imported: {found.place}: {found.what}"
            report.add(
                (*key, "_target_"),
                what,
                received=found.name,
                choices=found.choices,
                fix=found.fix,
                family="target-not-found",
            )


def check_finetune_files(cfg: Config, report: Report) -> None:
    """Report weights and a teacher that a run which is about to start would not find."""
    for name, kind in _WEIGHTS.items():
        _check_exists(getattr(cfg.finetune.weights, name, None), ("finetune", "weights", name), kind, report)
    teacher, key = cfg.finetune.distill.teacher, ("finetune", "distill", "teacher")
    found = _check_exists(teacher, key, _TEACHER, report)
    if teacher is not None and found and not (located(teacher) / run_files.CONFIG).is_file():
        report.add(
            key,
            "not the folder of a run: it has no config.yaml",
            expected=_TEACHER,
            received=teacher,
            family="no-such-run",
        )


def _check_data(node: Node, key: Key, report: Report) -> None:
    """Check the files and folders of a data set, and the columns of a table."""
    wanted = _DATA.get(node["_target_"], {})
    there = [
        name
        for name, kind in wanted.items()
        if _check_exists(node.get(name), (*key, name), kind, report, from_project=False)
    ]
    for name in there if node["_target_"] == _IMAGES else ():
        if not Path(node[name]).expanduser().is_dir():
            facts = {"expected": wanted[name], "received": node[name], "family": "data-not-found"}
            report.add((*key, name), "a file, not a folder", **facts)
    if node["_target_"] == _CSV:
        check_tables(node, there, key, report)


def _check_exists(value: Any, key: Key, kind: str, report: Report, *, from_project: bool = True) -> bool:
    """Tell whether there is a file or folder of that name; if not, report it with what is beside it.

    Args:
        value: The name.
        key: Where it stands.
        kind: What it should be.
        report: Gets the problem.
        from_project: Whether it is looked for in the project and its `outputs/`, too.
    """
    if not isinstance(value, str):
        return False
    if not value.strip():
        report.add(
            key,
            "an empty path",
            expected=f"{kind}, or null" if from_project else kind,
            received=value,
            family="missing-value",
        )
        return False
    if Path(value).expanduser().exists() or (from_project and located(value).exists()):
        return True
    _report_lost(value, key, kind, report, from_project=from_project)
    return False


def _report_lost(value: str, key: Key, kind: str, report: Report, *, from_project: bool) -> None:
    """Report a file or folder that is not there, with what is beside its place; the arguments are those above."""
    parent, elsewhere = str(Path(value).parent), located(value)
    folder = located(parent) if from_project else Path(parent).expanduser()
    beside = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
    near = [str(Path(value).with_name(name)) for name in beside if not name.startswith(".")]
    what = "there is no such file or folder" + ("" if folder.is_dir() else f": there is no folder {folder}")
    fix = f"{dotted(key)}={elsewhere}" if elsewhere.exists() else None
    family = "data-not-found" if key[0] == "data" else "file"
    report.add(key, what, expected=kind, received=value, choices=near, fix=fix, family=family)


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


class _CannotTellError(Exception):
    """From here on anything may be importable."""


def failing_import(target: str, trust: Trust) -> Failure | None:
    """Find the first import that fails when the module of a target is imported; None where none does for sure.

    Args:
        target: Dotted path of what is to be built; None is said of one that does not exist, or can't be read itself.
        trust: Tells which modules are the user's own: only these are looked into.
    """
    try:
        module, names = split(target)
        step(Found(module), names[0], last=len(names) == 1)
    except TargetError:
        return None
    except (OpaqueSourceError, RecursionError):
        pass
    try:
        return _ImportWalk(trust).walk(module.name)
    except (_CannotTellError, RecursionError):
        return None


class _ImportWalk:
    """Goes through modules in the order in which Python would."""

    def __init__(self, trust: Trust) -> None:
        self.trust, self.seen = trust, set[str]()

    def walk(self, name: str) -> Failure | None:
        """Find the first failure in a module and those around it; None also for what is not the user's."""
        if name.partition(".")[0] == "lightkit":
            return None  # its own modules are many, and can be imported
        return next((found for found in map(self.look_into, _packages_around(name)) if found is not None), None)

    def look_into(self, name: str) -> Failure | None:
        """Find the first failure in a module itself, or in those that it imports."""
        module = modules.load(name)
        if module is None or name in self.seen or name in sys.modules or not self.trust.in_project(module):
            return None
        self.seen.add(name)
        if module.broken:
            error = BrokenError(module)
            return Failure(error.place, error.what.removeprefix(f"{error.place}: "), fix=f"mend {error.place}")
        if modules.says(module, *_STEERING):
            raise _CannotTellError
        for statement in takewhile(_is_harmless, module.body):
            for found in self.imported_by(statement, module):
                if found is not None:
                    return found
        if not all(map(_is_harmless, module.body)):
            raise _CannotTellError
        return None

    def imported_by(self, statement: ast.stmt, module: Module) -> Iterator[Failure | None]:
        """Tell what comes of each name that a statement imports."""
        place = f"{relative(str(module.file))}:{statement.lineno}"
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield self.walk(alias.name) or self.missing_module(alias.name, place)
        elif isinstance(statement, ast.ImportFrom):
            if statement.level > module.name.count(".") + bool(module.folders):
                yield Failure(place, "the dots lead out of the package", fix="write the full path of the module")
                return
            source = modules.absolute_name(module, statement)
            yield self.walk(source) or self.missing_module(source, place)
            for alias in statement.names:
                yield self.walk(f"{source}.{alias.name}") or self.missing_name(source, alias.name, place)

    def missing_module(self, name: str, place: str) -> Failure | None:
        """Make the failure of a module that is not there."""
        parent = None
        for prefix in _packages_around(name):
            module = modules.load(prefix)
            if module is None and prefix not in sys.modules:
                break
            parent = module
        else:
            return None
        if prefix == name.partition(".")[0]:
            package = package_of(prefix)
            wanted = f"pip install {package}" if package else f"install what brings {prefix}"
            return Failure(place, f"there is no module {prefix}", prefix, fix=f"{wanted}, or mend {place}")
        if parent is None or not self.trust.in_project(parent):
            return None
        close = tuple(nearest(prefix.rpartition(".")[2], modules.submodules(parent)))
        return Failure(place, f"there is no module {prefix}", prefix, close, _fix_for(close, place))

    def missing_name(self, source: str, name: str, place: str) -> Failure | None:
        """Make the failure of a name that a module does not have."""
        module = modules.load(source)
        imported = vars(sys.modules[source]) if source in sys.modules else {}
        if name == "*" or module is None or name in imported:
            return None
        try:
            step(Found(module), name, last=True)
        except (BrokenError, OpaqueSourceError, RecursionError):
            pass  # a broken one is told where it is gone through
        except TargetError as error:
            if not modules.says(module, *_MAKING):
                close = tuple(nearest(name, error.choices))
                return Failure(place, f"the module {source} has no {name}", name, close, _fix_for(close, place))
        return None


def _fix_for(close: tuple[str, ...], place: str) -> str:
    return f"did you mean {close[0]}? It is to be mended in {place}" if close else f"mend {place}"


def _packages_around(name: str) -> Iterator[str]:
    """List `a`, `a.b` and `a.b.c` for `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _is_harmless(statement: ast.stmt) -> bool:
    """Tell whether a statement changes nothing of what can be imported after it: a docstring, a guarded import."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (*_HARMLESS, ast.If, ast.Try))
