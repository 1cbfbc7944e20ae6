"""Hydra's own settings: which of them lightkit acts on, and what to use in the place of the others.

Whatever a user sets below `hydra` either holds or is refused before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightkit.common.errors import UserError
from lightkit.config.doors import is_plugin
from lightkit.config.loader import ConfigLoader, select_value
from lightkit.config.origins import Key, Sources, command_line, dotted, entries, shown, words_of

_FILLED_IN = "leave it out: Hydra fills it in"


@dataclass(frozen=True)
class Setting:
    """What becomes of a setting of Hydra's.

    Attributes:
        fix: What to use instead; empty where the setting holds.
        plugin: It holds all the same where a sweeper or launcher of Hydra's runs the jobs.
        as_it_is: Values, or options of the group, that say what lightkit does anyway.
        mode: It is for a sweep, or for a single run, only; typed for the other one it is refused.
    """

    fix: str = ""
    plugin: bool = False
    as_it_is: tuple[Any, ...] = ()
    mode: str = ""

    def holds(self, plugin: bool) -> bool:
        """Tell whether something comes of the setting, where a plugin of Hydra's runs the jobs or not."""
        return not self.fix or (self.plugin and plugin)


SETTINGS: Mapping[str, Setting] = {
    "mode": Setting(),
    "searchpath": Setting(),
    "run": Setting(mode="run"),
    "sweep": Setting(mode="sweep"),
    "sweeper": Setting(mode="sweep"),
    "sweeper.max_batch_size": Setting(
        "leave it out: jobs start as soon as there is room", plugin=True, as_it_is=(None,)
    ),
    "launcher": Setting(mode="sweep"),
    "hydra_help": Setting(),
    "env": Setting(),
    "output": Setting(),
    "job.env_set": Setting(),
    "job.env_copy": Setting(),
    "job.config": Setting(),
    "callbacks": Setting("trainer.callbacks.NAME, whose code is called while a run trains", plugin=True),
    "hydra_logging": Setting(
        "leave it out: a sweep tells what it does by itself", plugin=True, as_it_is=("none", "disabled")
    ),
    "job_logging": Setting(
        "logger=OPTION (`lightkit config logger` lists the choices); messages are in run.log of the run's folder",
        as_it_is=("none",),
    ),
    "verbose": Setting(
        "logging.basicConfig(level=…) in code of your own; messages of lightkit are in run.log of the run's folder",
        as_it_is=(False,),
    ),
    "output_subdir": Setting(
        "leave it out: config.yaml and overrides.yaml are in the run's folder itself", as_it_is=(None,)
    ),
    "job.chdir": Setting(
        "leave it out: the working directory stays, and what a run writes goes to its folder", as_it_is=(False, None)
    ),
    "job.name": Setting("name=NAME, which names the run and its folder"),
    "job.config_name": Setting("--config-name NAME"),
    "job.num": Setting(_FILLED_IN),
    "job.id": Setting(_FILLED_IN),
    "job.override_dirname": Setting(f"{_FILLED_IN}; hydra.job.config.override_dirname changes its form"),
    "overrides": Setting(_FILLED_IN),
    "runtime": Setting(_FILLED_IN),
    "help": Setting("leave it out: `lightkit train --help` has a text of its own"),
    "": Setting("its settings one by one: hydra.KEY=VALUE"),
}
"""Every setting by its name below `hydra`; what is not here counts as the node around it, and `""` is all of them."""
_BASIC = ("basic", "vectorized", None)
_STUDY = "optuna"
"""The sweeper that is lightkit's own, where no launcher of Hydra's is chosen."""
_TARGETS = {
    "sweeper": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "launcher": "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
}
_DEFAULT = ("default", None)
"""Options of Hydra's groups that nobody has chosen, but for sweeper and launcher."""


def setting_of(name: str) -> tuple[str, Setting]:
    """Return the name and the meaning of the setting that a key below `hydra` belongs to."""
    while name and name not in SETTINGS:
        name = name.rpartition(".")[0]
    return name, SETTINGS[name]


def check_hydra(
    cfg: DictConfig, sources: Sources, loader: ConfigLoader, *, sweep: bool | None = None
) -> list[UserError]:
    """Find the settings of Hydra's that somebody has set and that nothing would come of.

    Args:
        cfg: A composition with Hydra's node.
        sources: Where its values come from.
        loader: What composed it.
        sweep: It is for a sweep, or for one run; None where that does not matter.

    Returns:
        An error for each.
    """
    choices = loader.choices(cfg)
    plugin = sweep is not False and any(choices.get(f"hydra/{kind}") not in _BASIC for kind in ("sweeper", "launcher"))
    unwanted = "run" if sweep else "sweep"
    found = {error.key: error for error in _wrong_choices(cfg, loader, plugin)}
    for key, origin in sources.set_below("hydra"):
        name, setting = setting_of(dotted(key[1:]))
        if not name and key[1:] and key[1] not in cfg.hydra:
            continue  # Hydra has no such setting, which whoever applies the overrides tells
        shown_key = f"hydra.{name}".rstrip(".")
        if not setting.holds(plugin) and _written(cfg, key) not in setting.as_it_is:
            found.setdefault(
                f"hydra/{name}" if f"hydra/{name}" in found else shown_key, _refused(shown_key, origin, setting)
            )
        elif sweep is not None and setting.mode == unwanted and origin.startswith(command_line("")):
            found.setdefault(dotted(key), _other_mode(dotted(key), origin, sweep=sweep))
    return [*found.values()]


def _written(cfg: DictConfig, key: Key) -> Any:
    """Return a value as it is written; nothing is looked up for it."""
    node: Any = cfg
    for part in key:
        is_open = isinstance(node, DictConfig) and not node._is_none()
        node = node._get_node(part, validate_access=False) if is_open else None
    return node if node is None or OmegaConf.is_config(node) else node._value()


def _refused(key: str, origin: str | None, setting: Setting, received: Any = None) -> UserError:
    what = "nothing comes of this setting of Hydra's here"
    return UserError(what, key=key, received=received, origin=origin, fix=setting.fix, family="hydra")


def _other_mode(key: str, origin: str, *, sweep: bool) -> UserError:
    if sweep:
        what, fix = "this is for one run, and -m starts a sweep", key.replace("hydra.run", "hydra.sweep", 1)
    else:
        what, fix = "this is for a sweep, which wants -m", "add -m, or leave it out"
    return UserError(what, key=key, origin=origin, fix=fix, family="wrong-command")


def _wrong_choices(cfg: DictConfig, loader: ConfigLoader, plugin: bool) -> Iterator[UserError]:
    """Find options of Hydra's groups that nothing would come of."""
    launcher = cfg.hydra.runtime.choices.get("hydra/launcher")
    for group, option in cfg.hydra.runtime.choices.items():
        name = str(group).partition("@")[0].removeprefix("hydra/")
        if not str(group).startswith("hydra/"):
            continue
        kind, setting = setting_of(name.replace("/", "."))
        node = cfg.hydra.get(name)
        target = node.get("_target_") if isinstance(node, DictConfig) else None
        chosen = option not in (*_BASIC, _STUDY if launcher in _BASIC else None) or not isinstance(
            node, DictConfig | None
        )
        if name in _TARGETS and chosen:
            yield from _no_plugin(name, node, str(option))
        if name in _TARGETS and option in ("basic", None) and target not in (_TARGETS[name], None):
            fix = f"hydra/{name}=NAME with a file conf/hydra/{name}/NAME.yaml"
            what = "a plugin is chosen by its option"
            yield UserError(what, key=f"hydra.{name}._target_", received=str(target), fix=fix, family="hydra")
        is_free = setting.holds(plugin) or option in (*_DEFAULT, *setting.as_it_is)
        if not is_free and name not in _TARGETS:
            yield _refused(f"hydra/{kind}", _chosen_at(loader, cfg, str(group)), setting, str(option))


def _no_plugin(kind: str, node: Any, option: str) -> Iterator[UserError]:
    """Find out whether a chosen sweeper or launcher is none: Hydra would end in a traceback."""
    target = node.get("_target_") if isinstance(node, DictConfig) else None
    if isinstance(target, str) and is_plugin(target):
        return
    what = f"hydra/{kind}={option} is not the configuration of a {kind}: it has no `_target_`"
    if isinstance(target, str):
        what = f"hydra/{kind}={option} is no {kind} that Hydra knows, as its class is in no package hydra_plugins here"
    received = str(target if isinstance(node, DictConfig) else node)
    fix = f"leave it out, or install the plugin: `lightkit config hydra/{kind}` lists the choices"
    yield UserError(what, key=f"hydra.{kind}", received=received, fix=fix, family="hydra")


def _chosen_at(loader: ConfigLoader, cfg: DictConfig, group: str) -> str | None:
    """Return where the option of one of Hydra's groups is chosen; None where that is not known."""
    for text in reversed(cfg.hydra.overrides.hydra):
        if str(text).lstrip("+").partition("=")[0] == group:
            return command_line(str(text))
    for _, path in reversed(loader.used_files()):
        for item in entries(path):
            if words_of(item) and words_of(item)[-1].removeprefix("/") == group:
                return f"{shown(path)}:{item.start_mark.line + 1}"
    return None


_CHOICE = re.compile(r"\$\{\s*hydra\s*:\s*runtime\.choices\.([\w/@]+)\s*\}")
_HYDRA = re.compile(r"(?<!\\)\$\{\s*hydra\s*:\s*([\w.]+)\s*\}")
_NOW = re.compile(r"(?<!\\)\$\{\s*now\s*:([^${}]*)\}")


def fill_choices(node: Any, choices: Mapping[str, str]) -> None:
    """Put the option chosen for a group where a text asks for it: `${hydra:runtime.choices.GROUP}`.

    Several options are written with commas, `head,lora`; unknown groups are left as they are.

    Args:
        node: A composed configuration, or a node of it; changed in place.
        choices: Option by group.
    """
    _fill(node, lambda text: _CHOICE.sub(lambda found: choices.get(found[1], found[0]).strip("[]"), text))


def fill_values(node: Any, whole: DictConfig, time: datetime) -> tuple[str, ...]:
    """Put the time, and single values of Hydra's own settings, where a text asks for them.

    What is not known, such as the number of a job where there is one run only, is left as it is.

    Args:
        node: A configuration without Hydra's node; changed in place.
        whole: The same with Hydra's node.
        time: What `${now:…}` tells.

    Returns:
        The keys whose values tell the time.
    """

    def known(found: re.Match[str]) -> Any:
        try:
            value = select_value(whole, f"hydra.{found[1]}")
        except (OmegaConfBaseException, RecursionError):  # it may refer to the very text
            return found[0]
        return found[0] if value is None or OmegaConf.is_config(value) else value

    def filled(text: str) -> Any:
        text = _NOW.sub(lambda found: time.strftime(found[1].strip().strip("'\"")), text)
        alone = _HYDRA.fullmatch(text)  # keeps its type
        return known(alone) if alone else _HYDRA.sub(lambda found: str(known(found)), text)

    return tuple(str(place._get_full_key(key)) for place, key, text in _fill(node, filled) if _NOW.search(text))


def job_environment(whole: DictConfig | None) -> dict[str, str]:
    """Return the variables that a run has in its environment: `hydra.job.env_set`."""
    variables = {} if whole is None else select_value(whole, "hydra.job.env_set") or {}
    return {str(name): str(variables[name]) for name in variables}


def _fill(node: Any, filled: Callable[[str], Any]) -> list[tuple[Any, Any, str]]:
    """Replace the texts of a configuration in place, by values of any type; return node, key and text of each."""
    replaced = list[tuple[Any, Any, str]]()
    keys: Sequence[Any] = list(node) if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        child: Any = node._get_node(key)
        has_items = isinstance(child, (DictConfig, ListConfig)) and not child._is_none()
        if has_items and not child._is_interpolation() and not child._is_missing():
            replaced += _fill(child, filled)
            continue
        text = child._value()
        if isinstance(text, str) and "${" in text:
            value = filled(text)
            if value != text:
                node[key] = value
                replaced.append((node, key, text))
    return replaced
