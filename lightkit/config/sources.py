"""Where Hydra reads configurations from: folders, packages, experiments as a group, the project's `conf/config.yaml`.

Each file is parsed once in a process. `conf/config.yaml` of a project adds to the shipped one, unless it chooses
everything a run needs itself: the shipped file names `_project` in its defaults list, between its own values and the
experiment. That is an empty file which the project's stands in for, so that its choices and values win over those of
groups, and lose to an experiment.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from lightkit.config.doors import is_installed
from lightkit.config.fields import field_types, is_required
from lightkit.config.merging import copy_node, from_plain
from lightkit.config.modules import load
from lightkit.config.origins import (
    as_typed,
    chosen_groups,
    entries,
    file_content,
    included,
    nodes,
    options_of,
    words_of,
)
from lightkit.config.project import project_root, shipped_conf
from lightkit.config.schema import Config

Names = list[str]  # inside the classes below, `list` is a method
GROUP, EXPERIMENTS = "experiment", "experiments"
"""The group of experiments, and the prefix of their folders in Hydra's search path."""
PROJECT, SCHEME, FILE = "_project", "project", "config"
"""What the project's file goes by, the prefix of its folder in Hydra's search path, and the name that it has."""


def register_sources(plugins: Plugins) -> None:
    """Let Hydra read by the sources below."""
    for source in (ExperimentSource, ProjectSource):
        plugins.register(source)
    SourcesRegistry.instance().types |= {source.scheme(): source for source in (FileSource, PackageSource)}


def _read(path: Path, source: ConfigSource, *, package: str | None = None) -> ConfigResult:
    """Read a file; `package` is the one of its content, where its header names none."""
    facts = path.stat()
    header, config = _made(path, facts.st_mtime_ns, facts.st_size)
    # What was read tells whether it changes.
    header = {**header, "package": header["package"] or package, "read": f"{path} {facts.st_mtime_ns} {facts.st_size}"}
    return ConfigResult(source.provider, f"{source.scheme()}://{source.path}", copy_node(config), header)


@lru_cache(maxsize=1024)
def _made(path: Path, _changed: int, _size: int) -> tuple[dict[str, str | None], Any]:
    """Make the header and the nodes of a file once in a process, as long as it does not change."""
    text, content = file_content(path)
    header, content = ConfigSource._get_header_dict(text[:512]), {} if content is None else content
    with suppress(Exception):  # which OmegaConf tells with the place
        return header, from_plain(content if isinstance(content, list) else {**content})
    return header, OmegaConf.create(content)


class FileSource(FileConfigSource):
    """Configurations in a folder."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file."""
        path = Path(os.path.realpath(Path(self.path, self._normalize_file_name(config_path))))
        if not path.exists():
            raise ConfigLoadError(f"Config not found : {path}")
        return _read(path, self)


class PackageSource(ImportlibResourcesConfigSource):
    """Configurations in a package (`pkg://package.conf`); one of the project is read as files, without importing it."""

    def __new__(cls, provider: str = "", path: str = "") -> Any:
        """Return the source, or one that reads files; without arguments for a copy of this one."""
        folder = _project_package(path.partition("://")[2])
        return super().__new__(cls) if folder is None else FileSource(provider, str(folder))

    def _read_config(self, res: Any) -> ConfigResult:
        return _read(res, self) if isinstance(res, Path) else super()._read_config(res)


# The registry of another process takes them for Hydra's own, which they stand in for.
FileSource.__name__, PackageSource.__name__ = FileConfigSource.__name__, ImportlibResourcesConfigSource.__name__


def _project_package(path: str) -> Path | None:
    """Return the folder of a package that is not installed, whether it exists or not; None for an installed one."""
    top, *below = path.replace("/", ".").rstrip(".").split(".")
    module = load(top)
    if module is None:
        return None
    folders = module.folders or ((module.file.with_suffix(""),) if module.file is not None else ())
    if all(is_installed(str(folder.parent)) for folder in folders):
        return None
    inner = [folder.joinpath(*below) for folder in folders]
    return next((folder for folder in inner if folder.is_dir()), inner[0])


def find_experiment(root: Path, name: str) -> Path | None:
    """Find the file of an experiment: `a` is `a.yaml` or `a/a.yaml`, `a/b` is `a/b.yaml`."""
    parts = [part for part in name.removesuffix(".yaml").split("/") if part]
    if not parts or any(part.startswith(".") for part in parts):
        return None
    plain = root.joinpath(*parts[:-1], f"{parts[-1]}.yaml")
    own_folder = root.joinpath(*parts, f"{parts[-1]}.yaml")
    return next((path for path in (plain, own_folder) if path.is_file()), None)


def experiment_names(root: Path) -> dict[str, Path]:
    """List every experiment below a folder, by the name to choose it with."""
    names = {}
    for path in sorted(root.rglob("*.yaml")) if root.is_dir() else []:
        parts = path.relative_to(root).with_suffix("").parts
        if any(part.startswith((".", "_")) for part in parts):
            continue
        short = parts[:-1] if len(parts) > 1 and parts[-1] == parts[-2] else parts
        names["/".join(short)] = path
    return names


class ExperimentSource(ConfigSource):
    """Shows a folder of experiments to Hydra as the group `experiment`, with `_global_` as the package of its files."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of the source in Hydra's search path."""
        return EXPERIMENTS

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one experiment."""
        path = self.file_of(config_path)
        if path is None:
            raise ConfigLoadError(f"Config not found : {config_path}")
        return _read(path, self, package="_global_")

    def available(self) -> bool:
        """Tell whether the folder is there."""
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        """Tell whether a name is `experiment`, or a folder of it with more than the experiment of its own name."""
        inner = self._inner(config_path)
        return inner is not None and any(self._below(inner))

    def is_config(self, config_path: str) -> bool:
        """Tell whether there is such an experiment."""
        return self.file_of(config_path) is not None

    def file_of(self, config_path: str) -> Path | None:
        """Return the file of an experiment, by its name in the search path."""
        inner = self._inner(config_path)
        return find_experiment(Path(self.path), inner) if inner else None

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        """List the experiments or folders directly inside a folder."""
        if config_path == "":
            return [GROUP] if results_filter in (None, ObjectType.GROUP) and self.is_group(GROUP) else []
        inner = self._inner(config_path)
        below = self._below(inner) if inner is not None else []
        groups = {name.partition("/")[0] for name in below if "/" in name}
        configs = {name for name in below if "/" not in name}
        wanted = (groups if results_filter != ObjectType.CONFIG else set()) | (
            configs if results_filter != ObjectType.GROUP else set()
        )
        return sorted(wanted)

    def _inner(self, config_path: str) -> str | None:
        head, _, inner = config_path.strip("/").partition("/")
        return inner if head == GROUP else None

    def _below(self, inner: str) -> Names:
        prefix = f"{inner}/" if inner else ""
        return [name[len(prefix) :] for name in experiment_names(Path(self.path)) if name.startswith(prefix)]


class ProjectSource(FileSource):
    """The `conf/` of a project whose `config.yaml` goes by the name of `_project`."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of the source in Hydra's search path."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file; of `_project`, choices are written as overrides of those that the shipped file makes."""
        result = super().load_config(self._own(config_path))
        if config_path == PROJECT and isinstance(result.config, DictConfig) and "defaults" in result.config:
            result.config.defaults = _adding(OmegaConf.to_container(result.config.defaults))
        if config_path == PROJECT and OmegaConf.select(result.config, "hydra.searchpath") is not None:
            # It is known already, and Hydra takes it of the main file only.
            node: Any = OmegaConf.select(result.config, "hydra")
            del node["searchpath"]
        return result

    def is_config(self, config_path: str) -> bool:
        """Tell whether there is such a file; its `config.yaml` has the other name only."""
        return config_path.removesuffix(".yaml") != FILE and super().is_config(self._own(config_path))

    def file_of(self, config_path: str) -> Path:
        """Return the file of a configuration, by its name in the search path."""
        return Path(self.path, f"{self._own(config_path).removesuffix('.yaml')}.yaml")

    @staticmethod
    def _own(config_path: str) -> str:
        return FILE if config_path.removesuffix(".yaml") == PROJECT else config_path


def project_file() -> Path | None:
    """Return the `conf/config.yaml` of the project we are in, where there is one that is not the shipped one."""
    root = project_root()
    path = root / "conf" / f"{FILE}.yaml" if root is not None else None
    return path if path is not None and path.is_file() and path != _shipped() else None


def choices_in(path: Path) -> dict[str, tuple[str, int]]:
    """Return the option that the defaults list of a file chooses for each group, as it is typed, and its line."""
    found = {}
    for item in entries(path):
        if isinstance(item, yaml.MappingNode) and item.value:
            group = words_of(item)[-1].removeprefix("/")
            found[group] = as_typed(options_of(item.value[0][1])), item.start_mark.line + 1
    return found


def _adding(defaults: Any) -> Any:
    """Write a defaults list that changes choices of the shipped one: `- data: wine`, `- override data: wine` alike."""
    groups, found = chosen_groups(_shipped()), []
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str) and entry.strip("/") == FILE:
            continue  # the shipped one, which is there already
        words = str(next(iter(entry))).split() if isinstance(entry, dict) and len(entry) == 1 else []
        group = words[-1].removeprefix("/") if words else ""
        plain = group in groups and "override" not in words
        found.append({f"override /{group}": next(iter(entry.values()))} if plain else entry)
    return found if isinstance(defaults, list) else defaults


def _shipped() -> Path:
    return shipped_conf() / f"{FILE}.yaml"


def adds(folder: Path, others: Sequence[Path]) -> bool:
    """Tell whether the `config.yaml` of a project adds to the shipped one: it chooses less than a run needs.

    Args:
        folder: The project's `conf/`.
        others: Further folders in which files that it includes may be.
    """
    path = folder / f"{FILE}.yaml"
    if not path.is_file() or path == _shipped():
        return False
    return not _needed(Config) <= _chosen(path, [folder, *others], {path})


def _needed(kind: type) -> set[str]:
    """Return the fields of a schema class that have no default."""
    return {field.name for field in dataclasses.fields(kind) if is_required(field)}


def _chosen(path: Path, folders: Sequence[Path], seen: set[Path]) -> set[str]:
    """Return the nodes that a file chooses an option for, or writes out, also by files that it includes."""
    found = {*chosen_groups(path), *_written_out(path)}
    for name, entry in included(FILE, path):
        if isinstance(entry, yaml.ScalarNode) and name != FILE:
            other = next((folder / f"{name}.yaml" for folder in folders if (folder / f"{name}.yaml").is_file()), None)
            if other is not None and other not in seen:
                found |= _chosen(other, folders, seen | {other})
    return found


def _written_out(path: Path) -> set[str]:
    """Return the nodes that a file gives all of that has no default."""
    root, kinds = nodes(path), field_types(Config)
    found = set()
    for name, value in root.value if isinstance(root, yaml.MappingNode) else ():
        kind = kinds.get(str(name.value))
        if dataclasses.is_dataclass(kind) and isinstance(value, yaml.MappingNode):
            is_whole = _needed(typing.cast(type, kind)) <= {str(key.value) for key, _ in value.value}
            found |= {str(name.value)} if is_whole else set()
    return found
