"""Which code Hydra may import while it composes: plugins of installed distributions, and what the user names.

Hydra imports every module of the package `hydra_plugins` that it finds on the import path, and the packages that
`pkg://` in its search path names. The user's project is on that path, and a configuration must be readable before
anybody trusts it.
"""

from __future__ import annotations

import importlib
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from importlib.util import module_from_spec
from inspect import getmembers, isabstract, isclass
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.plugins.plugin import Plugin

from lightkit.common.errors import UserError
from lightkit.config.project import project_folders

PACKAGE = "hydra_plugins"


def load_plugins(named: Sequence[str] = ()) -> Plugins:
    """Find Hydra's plugins: those of installed distributions, and those of the project that the user names.

    Args:
        named: Entries of `trust` on the command line: `hydra_plugins`, or modules below it.

    Raises:
        UserError: A plugin that was named cannot be imported.
    """
    with nullcontext() if Plugins in Singleton._instances else _installed_only():
        found = Plugins.instance()  # which looks for them once in a process
    for name in _project_plugins():
        if any(name == entry or name.startswith(f"{entry}.") for entry in named):
            _register(found, name)
    return found


def confine() -> None:
    """Let Hydra find those of installed distributions only when it looks again, as it does in each job of joblib's."""
    spec = _installed_package()
    if spec is not None and spec.origin is None:
        sys.modules[PACKAGE] = module_from_spec(spec)


def _installed_package() -> ModuleSpec | None:
    """Find the package `hydra_plugins` of installed distributions; None where none has it."""
    spec = PathFinder.find_spec(PACKAGE, [entry for entry in sys.path if is_installed(entry)])
    if spec is not None:  # a list: the path of a namespace package would follow `sys.path`
        spec.submodule_search_locations = [*(spec.submodule_search_locations or ())]
    return spec


def is_unnamed(target: str) -> bool:
    """Tell whether a plugin is one of the project that Hydra does not know, as the user has not named it."""
    name = target.rpartition(".")[0]
    return name in _project_plugins() and target not in Plugins.instance().class_name_to_class


def is_plugin(target: str) -> bool:
    """Tell whether Hydra can run a sweeper or launcher of this class: in its own package, or in those installed."""
    return target in Plugins.instance().class_name_to_class or is_unnamed(target)  # which is told elsewhere


def _register(plugins: Plugins, name: str) -> None:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise UserError(
            f"{name} can't be imported: {type(error).__name__}: {error}", key="trust", family="target-not-found"
        ) from error
    for _, item in getmembers(module, isclass):
        if issubclass(item, Plugin) and not isabstract(item):
            plugins.register(item)


def _project_plugins() -> list[str]:
    """List the names of the modules in `hydra_plugins/` of the project, as their files tell."""
    return [name for root in project_folders() for name in _modules(root / PACKAGE, f"{PACKAGE}.")]


def _modules(folder: Path, prefix: str) -> Iterator[str]:
    for info in pkgutil.iter_modules([str(folder)], prefix):
        yield info.name
        if info.ispkg:
            yield from _modules(folder / info.name.rpartition(".")[2], f"{info.name}.")


@contextmanager
def _installed_only() -> Iterator[None]:
    """Let `hydra_plugins` be the package of installed distributions only, or not be there."""
    before = sys.modules.pop(PACKAGE, None)
    spec = _installed_package()
    if spec is None:
        sys.modules[PACKAGE] = None  # type: ignore[assignment]  # so that importing it fails
    else:
        sys.modules[PACKAGE] = module = module_from_spec(spec)
        if spec.loader is not None and spec.origin is not None:
            spec.loader.exec_module(module)
    try:
        yield
    finally:
        del sys.modules[PACKAGE]
        if before is not None:
            sys.modules[PACKAGE] = before


def is_installed(entry: str) -> bool:
    """Tell whether distributions are installed in a place of `sys.path`, or it is the source of one that is."""
    path = Path(entry).resolve()
    if path in _site_folders() or not path.exists():  # finders of distributions in development are no folders
        return True
    if any(path.is_relative_to(place) for place in (Path.cwd(), *project_folders())):
        return False
    # What is put on the path by hand counts with its record of what was installed there (`pip install --target`).
    files = (file for item in distributions(path=[entry]) for file in item.files or ())
    return (path / PACKAGE).is_dir() and any(file.parts[:1] == (PACKAGE,) for file in files)


@cache
def _site_folders() -> frozenset[Path]:
    """List where pip installs, and the folders that `.pth` files there add."""
    names = {*site.getsitepackages(), site.getusersitepackages()}
    names |= {sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib", "platstdlib")}
    folders = {Path(name).resolve() for name in names}
    for file in [file for folder in folders for file in folder.glob("*.pth")]:
        with suppress(OSError, UnicodeDecodeError):
            lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
            added = {file.parent / line for line in lines if line and not line.startswith(("#", "import ", "import\t"))}
            folders |= {folder.resolve() for folder in added}
    return frozenset(folders)
