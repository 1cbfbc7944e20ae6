"""Parts that are chosen by a name: those that lightkit brings, and those that a project or a package adds.

A project adds one by a line in `conf/plugins.yaml`, and a package by an entry point of the group `lightkit.plugins`,
called `DOOR.NAME`. What the file of a project names is judged like any `_target_` before it is imported, and a
configuration from elsewhere may not choose it; who installs a package has agreed to what it adds.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from inspect import getmembers, isabstract, isclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.plugins.plugin import Plugin
from omegaconf import OmegaConf

from lightkit.common.doors import SHIPPED, import_path
from lightkit.common.errors import UserError
from lightkit.common.reading import UnreadableError, parse_mapping, read_text
from lightkit.config.judging import Violation, violations
from lightkit.config.policy import Trust
from lightkit.config.project import make_importable, project_folders, project_root
from lightkit.config.signatures import TargetError, read

FILE = Path("conf/plugins.yaml")
"""Where a project says what it adds."""
GROUP = "lightkit.plugins"
"""The group of entry points by which a package does."""


def names(door: str) -> list[str]:
    """List what may be chosen: what lightkit brings, then what the project and installed packages add."""
    return [*dict.fromkeys([*SHIPPED[door], *_of_project().get(door, {}), *_of_packages(door)])]


def problems_of(door: str, name: str, trust: Trust) -> Iterator[Violation]:
    """Yield why a configuration may not choose a part of a project; nothing is imported.

    Args:
        door: What the name is for, such as `sweep.engine`.
        name: One of `names(door)`.
        trust: What the configuration may build.
    """
    node = _own_node(door, name)
    if node is None:
        return
    make_importable(project_root())
    yield from violations(node, trust, (str(FILE), door, name))
    try:
        read(node["_target_"])
    except TargetError as error:
        facts = {"received": node["_target_"], "choices": error.choices, "family": "target-not-found"}
        yield (str(FILE), door, name), error.sentence(node["_target_"]), facts


def load(
    door: str, name: str | Mapping[str, Any], expected: type | None = None, *, entries: Iterable[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Import what a name stands for.

    Args:
        door: What the name is for.
        name: One of `names(door)`; or in its place, where the door takes one, a node with a `_target_`.
        expected: The class that it has to be derived from.
        entries: What `trust` adds.

    Returns:
        The class or function, and the arguments that the project, or the node, gives it.

    Raises:
        UserError: There is none of that name, it may not be built, it cannot be imported, or is of another kind.
    """
    node, key = (_own_node(door, name), f"{FILE}: {door}.{name}") if isinstance(name, str) else (name, door)
    if node is not None or not isinstance(name, str):
        from lightkit.config.instantiate import instantiate

        make_importable(project_root())
        tree = OmegaConf.create({"trust": [*entries], "node": {**(node or {}), "_partial_": True}})
        made = instantiate(tree.node, key=key, expected=expected)
        return made.func, made.keywords
    point = _of_packages(door).get(name) if name not in SHIPPED[door] else None
    if point is None and name not in SHIPPED[door]:
        fix = f"a line in {FILE}: `{door}: {{{name}: module.Class}}`"
        raise UserError("no such part", key=door, received=name, choices=names(door), fix=fix)
    try:
        built = import_path(SHIPPED[door][name]) if point is None else point.load()
    except (ImportError, AttributeError) as error:
        if point is None:
            raise
        what = f"{point.value} can't be imported: {error}"
        raise UserError(what, key=door, received=name, family="target-not-found") from error
    if expected is not None and not (isinstance(built, type) and issubclass(built, expected)):
        kind = f"{expected.__module__}.{expected.__name__}"
        raise UserError("of another kind", key=door, expected=kind, received=name, family="wrong-value")
    return built, {}


def _own_node(door: str, name: str) -> dict[str, Any] | None:
    """Return what the project says of a name: a `_target_` and its arguments; a name of lightkit's own stays that."""
    node = None if name in SHIPPED[door] else _of_project().get(door, {}).get(name)
    return {"_target_": node} if isinstance(node, str) else node


def _of_project() -> dict[str, dict[str, Any]]:
    """Read what the project adds, by door and name.

    Raises:
        UserError: The file cannot be read, or says something else.
    """
    root = project_root()
    if root is None or not (path := root / FILE).is_file():
        return {}
    try:
        found = parse_mapping(read_text(path))
    except UnreadableError as error:
        raise UserError(f"cannot be read: {error}", key=str(path), family="file") from error
    for door, listed in found.items():
        if door not in SHIPPED:
            raise UserError("nothing is chosen by such a name", key=str(path), received=door, choices=SHIPPED)
        for name, node in listed.items() if isinstance(listed, dict) else [("", listed)]:
            if not isinstance(node.get("_target_") if isinstance(node, dict) else node, str):
                expected = "a class, `NAME: module.Class`, or a mapping with `_target_` and its arguments"
                key = f"{path}: {door}.{name}".rstrip(".")
                raise UserError("names no class", key=key, expected=expected, received=node, family="wrong-value")
    return found


def _of_packages(door: str) -> dict[str, Any]:
    """Return the entry points of installed packages, by the name that they add."""
    return {one.name.removeprefix(f"{door}."): one for one in entry_points() if one.name.startswith(f"{door}.")}


@cache
def entry_points() -> list[Any]:
    """List lightkit's entry points in installed packages; of each of these a file is read, once in a process."""
    import importlib.metadata  # which takes a tenth of what a composition imports

    return [*importlib.metadata.entry_points(group=GROUP)]


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
    if not (path / PACKAGE).is_dir():
        return False
    from importlib.metadata import distributions

    return any(file.parts[:1] == (PACKAGE,) for item in distributions(path=[entry]) for file in item.files or ())


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
