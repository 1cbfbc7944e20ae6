"""Where configuration and modules come from: what lightkit ships and the user's own project."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import lightkit.config.signatures as signatures
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import UnreadableError, parse_mapping, read_text

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOTS: dict[Path, None] = {}  # what `make_importable` put on `sys.path`, which is as global as this


def shipped_conf() -> Path:
    """Return the folder of the shipped options: inside an installed package, or beside it in a checkout."""
    return _shipped("conf")


def shipped_experiments() -> Path:
    """Return the folder of the shipped experiments."""
    return _shipped("experiments")


def shipped_docs() -> Path:
    """Return the folder of the manual; an installed package has those of its pages that commands print."""
    return _shipped("docs")


def shipped_templates() -> Path:
    """Return the folder of what new projects begin with."""
    return _shipped("templates")


def _shipped(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def project_root() -> Path | None:
    """Find the user's project: `LIGHTKIT_PROJECT`, or the nearest folder upwards with `conf/` or `experiments/`.

    The folder of a run is none, nor is a folder below one: anybody may have written what is in it.

    Raises:
        UserError: `LIGHTKIT_PROJECT` names no folder, or that of a run.
    """
    named = os.environ.get("LIGHTKIT_PROJECT")
    if named:
        place = Path(named).resolve()
        if not place.is_dir():
            raise UserError("the environment variable LIGHTKIT_PROJECT names no folder", received=named, family="file")
        if any(map(is_run, (place, *place.parents))):
            what = "the environment variable LIGHTKIT_PROJECT names a folder of a run, which is no project"
            raise UserError(what, received=named, family="file")
        return place
    return project_of(Path.cwd())


def located(path: str) -> Path:
    """Find a file or folder that a configuration names: as it stands, or in the project or in its `outputs/`.

    Args:
        path: Absolute, from the home folder (`~`), or from any of these places; what is nowhere comes back as it is.
    """
    plain, root = Path(path).expanduser(), project_root() or Path()
    return next((place for place in (plain, root / plain, root / run_files.OUTPUTS / plain) if place.exists()), plain)


def project_of(place: Path) -> Path | None:
    """Find the nearest folder from `place` upwards with `conf/` or `experiments/` that is neither a run nor in one.

    Jobs of a sweep may have such names, too: their folders make no project.
    """
    here, found = place.resolve(), None
    for folder in (here, *here.parents):
        if is_run(folder):
            found = None
        elif found is None:
            found = folder if any(map(_is_of_project, (folder / "conf", folder / "experiments"))) else None
    return found


def _is_of_project(folder: Path) -> bool:
    """Tell whether a folder holds configurations, rather than being that of a job that has begun or is to begin."""
    if not folder.is_dir() or is_run(folder):
        return False
    beside_journal = (folder.parent / run_files.SWEEP_JOURNAL).exists()
    return not beside_journal or any(file.name != run_files.OVERRIDES for file in folder.rglob("*.yaml"))


def beside(name: str) -> str | None:
    """Say what to do about a module that lies in the working directory, where it is not looked for.

    Args:
        name: The first part of its dotted path.

    Returns:
        None where there is no such file, or it is looked for there.
    """
    here = Path.cwd()
    files = [path for path in (here / f"{name}.py", here / name / "__init__.py") if path.is_file()]
    if not name.isidentifier() or not files or any(map(is_run, (here, *here.parents))):
        return None
    root, file = project_root(), files[0].relative_to(here)
    if root is None:
        what = f"{file} is here, but this folder is no project: `mkdir conf` makes it one"
        return f"{what} (so does experiments/, or LIGHTKIT_PROJECT=FOLDER)"
    if root == here or not here.is_relative_to(root):
        return None if root == here else f"{file} is here, but modules are looked for in the project, {root}"
    full = ".".join((*here.relative_to(root).parts, name))
    return f"{file} is here, but names begin in the folder of the project, {root}: did you mean {full}?"


def is_run(folder: Path) -> bool:
    """Tell whether a folder is that of a run: its `config.yaml` is whole, not one to compose others from."""
    path = folder / run_files.CONFIG
    try:
        facts = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and _holds_run(path, facts.st_mtime_ns, facts.st_size)


@cache
def _holds_run(path: Path, _mtime: int, _size: int) -> bool:
    try:
        keys = parse_mapping(read_text(path)).keys()
    except (FileNotFoundError, UnreadableError):
        return False
    return {"data", "model"} <= keys and "defaults" not in keys


CODE = "LIGHTKIT_CODE"
"""Variable that names a folder of modules of the user's which go before those of the project: what a run has kept."""


def make_importable(project: Path | None) -> None:
    """Let `_target_`s name modules of the project and of experiments, shipped or own.

    The project goes to the end of `sys.path`, so that it hides nothing. Shipped experiments inside an installed package
    can't be reached that way (the package's own folder must not be on the path); a finder for that one name adds them.
    """
    roots = [project] if project is not None else []
    experiments = shipped_experiments()
    if experiments.is_dir() and experiments.parent != _PACKAGE:
        roots.append(experiments.parent)
    _ROOTS.update(dict.fromkeys(roots))
    if (code := os.environ.get(CODE)) and code not in sys.path:  # before any other code of the same name
        sys.path.insert(0, code)
    _ROOTS.update({Path(code): None} if code else {})
    new = [str(root) for root in roots if str(root) not in sys.path]
    sys.path.extend(new)
    finder = _ExperimentsFinder.install() if experiments.parent == _PACKAGE and experiments.is_dir() else None
    if new or finder:
        signatures.clear()


def project_folders() -> tuple[Path, ...]:
    """List the folders whose modules are the user's: made importable, the project, and shipped experiments.

    Raises:
        UserError: `LIGHTKIT_PROJECT` names no folder.
    """
    made, root = [root for root in _ROOTS if str(root) in sys.path], project_root()
    return tuple(dict.fromkeys([*made, *([root] if root else []), shipped_experiments()]))


def searched() -> list[str]:
    """Return what `project_folders` goes by in this process, in a part of its time: the file system is not asked."""
    return [str(Path.cwd()), os.environ.get("LIGHTKIT_PROJECT", ""), *map(str, _ROOTS), *sys.path]


class _ExperimentsFinder:
    """Makes `experiments` one namespace package of all `experiments/` folders on the path and the shipped one."""

    @classmethod
    def install(cls) -> bool:
        """Put it in front of the other finders; False when it is there already."""
        if any(isinstance(finder, cls) for finder in sys.meta_path):
            return False
        sys.meta_path.insert(0, cls())
        return True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the namespace package, when it is the one asked for."""
        if name != "experiments":
            return None
        spec = ModuleSpec(name, None, is_package=True)
        folders = [Path(entry or ".").absolute() / name for entry in sys.path]
        spec.submodule_search_locations = [str(path) for path in (*folders, shipped_experiments()) if path.is_dir()]
        return spec


def find_config_dir(folder: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of `--config-dir`.

    Raises:
        UserError: It does not exist.
    """
    if folder is None:
        return None
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise UserError("no such folder", key="--config-dir", received=str(folder), family="file")
    return path
