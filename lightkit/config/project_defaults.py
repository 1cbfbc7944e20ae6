"""`conf/config.yaml` of a project: it adds to the shipped one, unless it chooses everything a run needs itself.

The shipped file names `_project` in its defaults list, between its own values and the experiment. That is an empty file
which the project's stands in for, so that its choices and values win over those of groups, and lose to an experiment.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from lightkit.config.entries import as_typed, chosen_groups, entries, included, options_of, words_of
from lightkit.config.fields import field_types, is_required
from lightkit.config.origins import nodes
from lightkit.config.project import project_root, shipped_conf
from lightkit.config.schema import Config

NAME, SCHEME, FILE = "_project", "project", "config"


class ProjectSource(FileConfigSource):
    """The `conf/` of a project whose `config.yaml` goes by the name of `_project`."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of the source in Hydra's search path."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file; of `_project`, choices are written as overrides of those that the shipped file makes."""
        result = super().load_config(self._own(config_path))
        if config_path == NAME and isinstance(result.config, DictConfig) and "defaults" in result.config:
            result.config.defaults = _adding(OmegaConf.to_container(result.config.defaults))
        if config_path == NAME and OmegaConf.select(result.config, "hydra.searchpath") is not None:
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
        return FILE if config_path.removesuffix(".yaml") == NAME else config_path


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
