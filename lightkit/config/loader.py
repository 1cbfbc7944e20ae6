"""Hydra's configuration loader over the folders of lightkit and a project, and what else is used of Hydra.

Beside this module only `plugins` and `sources` know Hydra's inside, which is that of 1.3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import hydra.version
from hydra._internal import defaults_list, utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, InstantiationException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightkit.common.errors import UserError
from lightkit.config.doors import confine, load_plugins
from lightkit.config.merging import copy_below, copy_node, copy_only, merge
from lightkit.config.origins import as_typed, file_content
from lightkit.config.project import find_config_dir, make_importable, project_root, shipped_conf, shipped_experiments
from lightkit.config.sources import EXPERIMENTS, SCHEME, ExperimentSource, ProjectSource, adds, register_sources

APP = "lightkit"
PARAMS = "hydra.sweeper.params"
"""Where values are typed for one of Hydra's sweepers."""
_SEARCHED = "hydra.searchpath"
_ANY_KEY_BELOW = ("hydra.callbacks.", "hydra.job.env_set.", "hydra.launcher.", "hydra.sweeper.")
locate, native_parser = utils._locate, utils.get_args_parser
"""What imports the object at a dotted path, and what makes Hydra's own argument parser."""
_full_map = defaults_list._create_interpolation_map
_version = hydra.version._get_version
setattr(hydra.version, _version.__name__, cache(_version))  # which is asked for hundreds of times
_MERGED: dict[str, DictConfig] = {}
"""What files come to when they are merged, by what tells whether they are the same."""
COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, ValueError, OSError, RecursionError)
"""What composing may raise; a YAML syntax error is added by the caller."""


def prepare(named: Sequence[str] = ()) -> None:
    """Prepare Hydra: fix its behaviour level, make its plugins and our sources known; may be called again.

    Args:
        named: Entries of `trust` that the user typed, which may name plugins of the project.
    """
    hydra.version.setbase("1.3")
    setattr(defaults_list, _full_map.__name__, _interpolation_map)
    register_sources(load_plugins(named))


def _interpolation_map(overrides: defaults_list.Overrides, listed: list[InputDefault], added: bool) -> DictConfig:
    """Return what Hydra's function does, where a defaults list has an interpolation; otherwise nobody looks at it."""
    return _full_map(overrides, listed, added) if any(one.is_interpolation() for one in listed) else DictConfig({})


def typed_list(overrides: Sequence[str], key: str) -> list[str]:
    """Return the texts in a list that was typed for a key; none where nothing was, or what can't be read."""
    texts = [text for text in overrides if text.lstrip("+").partition("=")[0] == key]
    try:
        values = [OverridesParser.create().parse_override(text).value() for text in texts[-1:]]
    except HydraException:  # whatever is wrong is told when all of them are read
        return []
    return [str(item) for value in values if isinstance(value, list) for item in value]


class _Recording(CachingConfigRepository):
    """Remembers what it was asked for, also what could not be read then."""

    def __init__(self, delegate: IConfigRepository) -> None:
        # Hydra's own copies all that is in its store. One level does: `initialize_sources` makes a list of its own.
        self.delegate, self.cache, self.asked = copy(delegate), {}, list[str]()

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Read a configuration, or hand it out again."""
        self.asked.append(config_path)
        return super().load_config(config_path)


class ConfigLoader(ConfigLoaderImpl):
    """Hydra's configuration loader, which remembers what the last composition was made of.

    Args:
        folders: Folders of options; the first that has a file wins.
        experiments: Folders of experiments, in the same order.
        adding: The one of the folders whose `config.yaml` adds to the next one, where there is one.
        named: Entries of `trust` that the user typed.
        search: Places that come last, as `hydra.searchpath` names them.
        config_name: File to start from.

    Attributes:
        time: What `${now:…}` tells in all that is composed with it.
        subdirs: Folder of each job of a sweep by its overrides, where it is not for Hydra to name it.
        typed: Overrides of a sweep as they were typed, by what Hydra's sweeper makes of them.
    """

    defaults: Sequence[ResultDefault] = ()
    repo: _Recording | None = None
    base: DictConfig | None = None

    def __init__(
        self,
        folders: Iterable[Path],
        experiments: Iterable[Path],
        adding: Path | None = None,
        named: Sequence[str] = (),
        search: Sequence[str] = (),
        config_name: str = "config",
    ) -> None:
        prepare(named)
        path = ConfigSearchPathImpl()
        path.append("hydra", "pkg://hydra.conf")
        for position, folder in enumerate(folders):
            scheme = SCHEME if folder == adding else "file"
            path.append("main" if position == 0 else APP, f"{scheme}://{folder}")
        for folder in experiments:
            path.append("experiments", f"{EXPERIMENTS}://{folder}")
        for place in search:
            path.append("search", place)
        path.append("schema", "structured://")
        super().__init__(path)
        self.config_name, self.time = config_name, datetime.now()
        self.subdirs: dict[tuple[str, ...], str] = {}
        self.typed: dict[str, str] = {}
        self._params: dict[str, str] = {}

    def compose(self, overrides: list[str]) -> DictConfig:
        """Compose the whole tree, Hydra's own node included."""
        self.defaults, self.repo, self.base = (), None, None
        return self.load_configuration(self.config_name, overrides, RunMode.RUN)

    def parse(self, override: str) -> Override:
        """Read one override.

        Raises:
            ValueError: It can't be read; the message says where.
        """
        try:
            return OverridesParser.create(config_loader=self).parse_overrides([override])[0]
        except (OverrideParseException, HydraException, OmegaConfBaseException) as error:
            raise ValueError(str(error)) from error

    def options(self, group: str) -> list[str]:
        """List the options of a group, those in folders by their longer names too; `_base` and the like are none."""
        found = [name for name in self.repository.get_group_options(group) if not name.startswith("_")]
        for folder in self.repository.get_group_options(group, ObjectType.GROUP):
            found += [f"{folder}/{name}" for name in self.options(f"{group}/{folder}")]
        return found

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        """List what Hydra's completion and `glob` see: files that start with `_` are no options."""
        found = super().get_group_options(group_name, results_filter, config_name, overrides)
        return [name for name in found if not name.startswith("_")]

    def groups(self, parent: str = "") -> list[str]:
        """List the groups of options directly below a group."""
        return self.repository.get_group_options(parent, ObjectType.GROUP)

    def is_group(self, name: str) -> bool:
        """Tell whether there is such a group."""
        return self.repository.group_exists(name)

    def is_option(self, group: str, option: str) -> bool:
        """Tell whether a group has such an option."""
        return self.repository.config_exists(f"{group}/{option}")

    def file_of(self, config: str) -> Path | None:
        """Return the file that `group/option` is read from; None for what is part of Hydra."""
        for source in self.repository.get_sources():
            if source.is_config(config):
                if isinstance(source, (ExperimentSource, ProjectSource)):
                    return source.file_of(config)
                return Path(source.path, f"{config.removesuffix('.yaml')}.yaml") if source.scheme() == "file" else None
        return None

    def used_files(self) -> list[tuple[str, Path]]:
        """List name and file of every configuration read in the last composition, in the order of reading."""
        names = dict.fromkeys(self.repo.asked if self.repo is not None else ())
        pairs = [(name, self.file_of(name)) for name in names]
        return [(name, path) for name, path in pairs if path is not None]

    def choices(self, cfg: DictConfig) -> dict[str, str]:
        """Return the option chosen for every group of the last composition; several are written as typed: `[a,b]`.

        Hydra keeps no record of several options, so these are told from the files that were merged.
        """
        recorded = cfg.hydra.runtime.choices.items()
        found = {str(group): str(option) for group, option in recorded if option is not None}
        several: dict[str, dict[str, None]] = {}
        for default in self.defaults:
            group, _, option = str(default.config_path).partition("/")
            # What an option is based on was not chosen, and a file that starts with `_` is no option.
            is_base = str(default.parent).startswith(f"{group}/") or option.rpartition("/")[2].startswith("_")
            if option and not is_base and group != "hydra" and group not in {key.partition("@")[0] for key in found}:
                several.setdefault(group, {})[option] = None
        return {**found, **{group: as_typed(list(options)) for group, options in several.items()}}

    def layers(self) -> list[tuple[Path, str]]:
        """List file and package of every layer of the last composition, the strongest last."""
        found = []
        for default in self.defaults:
            path = self.file_of(default.config_path) if default.config_path else None
            if path is not None:
                found.append((path, "" if default.package in (None, "_global_") else str(default.package)))
        return found

    def failing(self, overrides: Sequence[str]) -> list[tuple[str, str]]:
        """List the overrides that can't be applied to the tree of the last composition, each with the reason."""
        failed = []
        for text, override in ((text, self.parse(text)) for text in overrides):
            is_value = override.package is None and not self.is_group(override.key_or_group) and not is_param(override)
            reason = apply_override(self.forced(override), self.base) if is_value and self.base is not None else None
            failed += [(text, reason)] if reason is not None else []
        return failed

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = OverridesParser.create().parse_overrides(overrides)
        self.repo = _Recording(self.repository)
        self._params = {key: text for override in parsed if is_param(override) for key, text in _params_of(override)}
        return [self.forced(override) for override in parsed if not is_param(override)], self.repo

    def forced(self, override: Override) -> Override:
        """Let an override set a key that is in no file; all keys are judged later, wherever they come from."""
        key = override.key_or_group
        is_choice = self.is_group(key) and not isinstance(override.value(), dict)
        is_field = key.startswith(("hydra.launcher.", "hydra.sweeper.")) and key.count(".") == 2
        closed = override.is_hydra_override() and (is_field or not key.startswith(_ANY_KEY_BELOW))
        if not (override.is_delete() or is_choice or closed or override.package is not None):
            override.type = OverrideType.FORCE_ADD
        return override

    def load_configuration(self, *args: Any, **options: Any) -> DictConfig:
        """Compose as Hydra does."""
        try:
            return super().load_configuration(*args, **options)
        except KeyError as error:
            raise ValueError(f"hydra.job.env_copy: {error} is not set in the environment") from None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        confine()

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Compose a job for one of Hydra's launchers, with the folder that we have chosen for it."""
        overrides = [self.typed.get(text, text) for text in sweep_overrides]
        cfg = super().load_sweep_config(master_config, overrides)
        if tuple(overrides) in self.subdirs:
            cfg.hydra.sweep.subdir = self.subdirs[tuple(overrides)]
        return cfg

    @staticmethod
    def _embed_result_config(ret: ConfigResult, package_override: str | None) -> ConfigResult:
        package = ret.header["package"] if package_override is None else package_override
        return replace(ret, config=copy_below(package, ret.config))  # a copy, as a file may be named twice

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: Any) -> DictConfig:
        self.defaults = defaults
        try:
            # A notebook may change what is stored, also as a schema of a file.
            read, store = [repo.load_config(one.config_path) for one in defaults], repo.get_schema_source().store.repo
            key = str((defaults, store, [it.header if "read" in it.header else it for it in read]))
            if len(_MERGED) > 32:
                _MERGED.clear()
            _MERGED[key] = _MERGED.get(key) or merge(self._load_single_config(one, repo).config for one in defaults)
            self.base = copy_node(_MERGED[key])
        except Exception:  # which Hydra tells with the name of the file
            self.base = super()._compose_config_from_defaults_list(defaults, repo)
        if self._params:  # which Hydra cannot apply: it takes dots for levels
            with open_dict(self.base):
                self.base.hydra.sweeper.params = {**(self.base.hydra.sweeper.get("params") or {}), **self._params}
        return self.base


def apply_override(override: Override, cfg: DictConfig) -> str | None:
    """Change `cfg` by one value override; the reason when that is not possible."""
    try:
        ConfigLoaderImpl._apply_overrides_to_config([override], cfg)
    except (HydraException, OmegaConfBaseException) as error:
        return str(error.__cause__ or error)
    return None


def is_param(override: Override) -> bool:
    """Tell whether an override adds to what a sweeper tries: `hydra.sweeper.params.KEY=VALUES`."""
    return f"{override.key_or_group}.".startswith(f"{PARAMS}.") and not override.is_delete()


def _params_of(override: Override) -> Iterator[tuple[str, str]]:
    """Yield each key that an override gives a sweeper, and its values as they are typed."""
    key, value = override.key_or_group[len(PARAMS) + 1 :], override.value()
    if not key:
        yield from ((str(name), str(item)) for name, item in (value if isinstance(value, dict) else {}).items())
    else:
        typed = override.input_line.partition("=")[2] if override.input_line else ""
        yield key, value if isinstance(value, str) else typed


def split_sweep(loader: ConfigLoader, overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every job that Hydra's basic sweeper makes of `overrides`.

    Raises:
        ValueError: A sweep that can't be enumerated.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    try:
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
        for text, override in zip(overrides, parsed):
            if not override.is_sweep_override():
                loader.typed[f"{override.get_key_element()}={override.get_value_element_as_str()}"] = text
        jobs = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
        return [[loader.typed.get(text, text) for text in job] for job in jobs]
    except HydraException as error:
        raise ValueError(str(error)) from error


def set_hydra_config(cfg: DictConfig) -> None:
    """Make `HydraConfig.get()` answer with this configuration."""
    OmegaConf.set_readonly(cfg.hydra, True)
    own: Any = copy_only(cfg, "hydra")
    own._get_node("hydra")._set_parent(cfg)  # for interpolations that lead out of the node
    HydraConfig.instance().cfg = own


def select_value(whole: DictConfig, key: str) -> Any:
    """Return a value of a composition with Hydra's node, which may refer to that node; None where it is missing."""
    setup_globals()  # which makes `${hydra:…}` and `${now:…}` known
    set_hydra_config(whole)
    return OmegaConf.select(whole, key)


def hydra_app(loader: ConfigLoader) -> Any:
    """Make Hydra's application object around our loader, the only one of the process."""
    from hydra._internal.hydra import Hydra
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    app = Hydra(task_name=APP, config_loader=loader)
    GlobalHydra.instance().initialize(app)
    return app


def run_multirun(loader: ConfigLoader, overrides: list[str], task: Callable[[DictConfig], Any]) -> Any:
    """Hand a sweep to Hydra: its sweeper and launcher as configured; logging is left alone."""
    confine()
    try:
        return hydra_app(loader).multirun(
            config_name=loader.config_name, task_function=task, overrides=overrides, with_log_configuration=False
        )
    except InstantiationException as error:
        what, fix = f"the sweeper or launcher cannot be built: {str(error).splitlines()[0]}", "see its own manual"
        raise UserError(what, key="hydra.launcher", fix=fix, family="hydra") from error


def hydra_node(cfg: DictConfig) -> DictConfig:
    """Return only Hydra's node of a composition, without its long help texts."""
    from hydra._internal.hydra import Hydra

    return Hydra.get_sanitized_hydra_cfg(cfg)


def make_loader(
    overrides: Sequence[str] = (),
    *,
    config_dir: str | None = None,
    config_name: str = "config",
    project: Path | None = None,
) -> ConfigLoader:
    """Make the loader over the folder of `--config-dir`, the user's project and what is shipped, in this order.

    Args:
        overrides: What was typed, in which `trust` may name plugins of the project for Hydra, and `hydra.searchpath`
            further places.
        config_dir: One more folder of options, searched first.
        config_name: File to start from, which may name further places, too.
        project: The user's project; found from the environment and the working directory when left out.

    Raises:
        UserError: `config_dir`, the project's folder or a further place does not exist.
    """
    root = project.resolve() if project is not None else project_root()
    make_importable(root)
    extra = find_config_dir(config_dir)
    own = root / "conf" if root else None
    experiments = [root / "experiments" if root else None, shipped_experiments()]
    adding = own if own is not None and adds(own, [shipped_conf()]) else None
    named = typed_list(overrides, "trust")
    folders = _existing([extra, own, shipped_conf()])
    files = [folder / f"{config_name.removesuffix('.yaml')}.yaml" for folder in folders]
    primary = next((file for file in files if file.is_file()), None)
    return ConfigLoader(folders, _existing(experiments), adding, named, search_path(overrides, primary), config_name)


def _existing(folders: Sequence[Path | None]) -> list[Path]:
    return [folder for folder in dict.fromkeys(folders) if folder is not None and folder.is_dir()]


def search_path(overrides: Sequence[str], primary: Path | None) -> list[str]:
    """Return the places that `hydra.searchpath` names, on the command line or else in the file to start from.

    Raises:
        UserError: One of them is no folder.
    """
    places: Any = typed_list(overrides, _SEARCHED)
    if not any(text.lstrip("+").startswith(f"{_SEARCHED}=") for text in overrides) and primary is not None:
        with suppress(OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException):  # told when it is composed
            content = file_content(primary)[1]
            is_set = isinstance(content, dict) and "searchpath" in (content.get("hydra") or ())
            places = OmegaConf.select(OmegaConf.create(content), _SEARCHED) if is_set else None
    places = [str(place) for place in places] if isinstance(places, (list, ListConfig)) else []
    for place in places:
        scheme, _, rest = place.rpartition("://")
        if scheme not in ("", "file", "pkg") or (scheme != "pkg" and not Path(rest).is_dir()):
            fix = "file://FOLDER or pkg://package.folder"
            raise UserError("there is no such folder", key=_SEARCHED, received=place, fix=fix, family="file")
    return places
