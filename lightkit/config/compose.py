"""From overrides to a checked configuration."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lightkit.common.collecting import uncollected
from lightkit.common.errors import UserError, UserErrors
from lightkit.config.check import complete, problems, sweep_options
from lightkit.config.defaults import check_defaults, chosen_twice, circle, clashes, misspelled_words, unreadable_value
from lightkit.config.direction import fill_mode
from lightkit.config.former import move_former
from lightkit.config.hydra_settings import check_hydra, fill_choices, fill_values
from lightkit.config.loader import COMPOSE_ERRORS, ConfigLoader, make_loader, set_hydra_config
from lightkit.config.members import MemberEntries, drop_left_over
from lightkit.config.merging import copy_only
from lightkit.config.named_files import kind_of_target
from lightkit.config.origins import Sources, parts_of, shown
from lightkit.config.overrides import Rewritten, idle_lines, rewrite, undeletable
from lightkit.config.sources import GROUP
from lightkit.config.tree import all_keys

_warn_once = cache(logging.getLogger(__name__).warning)
_ABSENT = re.compile(r"Could not override '([^']+)'\. No match in the defaults list")
_PRESENT = re.compile(r"Multiple values for (\S+?)\.(?:\s|$)")


@dataclass(frozen=True)
class Composed:
    """A checked configuration.

    Args:
        cfg: The configuration, complete and read-only, without Hydra's node.
        overrides: The overrides as typed.
        choices: Option chosen for every group; several are written as they are typed, `[head,lora]`.
        sources: Tells where a value comes from: `sources.find("optim.lr")`.
        hydra_cfg: The same with Hydra's node (`hydra_cfg.hydra.run.dir`); None for a configuration read from a run.
        sweep: How a sweep is to run it, which is not in `cfg`.
        dated: Keys whose values tell the time of composing.
        replicate: Those of the overrides, the last ones, that tell it from the other replicates of its job.
    """

    cfg: DictConfig
    overrides: list[str]
    choices: dict[str, str]
    sources: Sources
    hydra_cfg: DictConfig | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)
    dated: tuple[str, ...] = ()
    replicate: tuple[str, ...] = ()


def compose(
    overrides: Sequence[str] = (),
    *,
    config_dir: str | None = None,
    config_name: str = "config",
    project: Path | None = None,
    sweep: bool | None = None,
    number: int | None = None,
) -> Composed:
    """Compose the configuration and check all of it.

    Args:
        overrides: What was typed after the command: `optim=sgd`, `optim.lr=0.1`, `~metrics.val.f1`, `experiment=wine`.
        config_dir: One more folder of options, searched first.
        config_name: File to start from.
        project: The user's project; found from the environment and the working directory when left out.
        sweep: It is for a sweep, or for one run, in which settings of Hydra's for the other have no place.
        number: Number of the job in its sweep, as `${hydra:job.num}` tells it.

    Raises:
        UserErrors: Everything that is wrong, in one report.
    """
    loader = make_loader(overrides, config_dir=config_dir, config_name=config_name, project=project)
    return compose_with(loader, overrides, sweep=sweep, number=number)


@uncollected()
def compose_with(
    loader: ConfigLoader,
    overrides: Sequence[str],
    *,
    sweep: bool | None = None,
    number: int | None = None,
) -> Composed:
    """Compose as `compose` does, with a loader at hand, for composing many times.

    Raises:
        UserErrors: Everything that is wrong, in one report.
    """
    rewritten = rewrite(loader, overrides)
    cfg, errors = _resolved(loader, rewritten), rewritten.errors
    if number is not None:
        cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
    sources = Sources(loader.layers(), rewritten.values)
    errors += misspelled_words(loader)
    errors += check_hydra(cfg, sources, loader, sweep=sweep)
    choices = loader.choices(cfg)
    task = without_hydra(cfg)
    fill_choices(task, choices)
    dated = fill_values(task, cfg, loader.time)
    drop_left_over(task, sources)
    for line in move_former(task):
        _warn_once(line)
    fill_mode(task)
    hooks = cfg.hydra.get("callbacks")  # the one place where Hydra itself calls any `_target_`, as it is written
    hooks = OmegaConf.to_container(hooks) if OmegaConf.is_config(hooks) else None
    members = MemberEntries(task, sources, loader, partial(_with_options, loader, rewritten))
    found = problems(task, sources, hooks=hooks, starting=True)
    found += members.check(partial(problems, starting=True), found)
    if GROUP not in rewritten.skipped:  # without the experiment that was meant, other keys are valid than with it
        errors += [error for error in found if not _is_below(error.key, rewritten.skipped)]
    if errors:
        from lightkit.config.describe import name_options

        name_options(errors, loader)
        raise UserErrors(errors)
    for line in idle_lines(rewritten, task):
        _warn_once(line)
    set_hydra_config(cfg)
    options = sweep_options(task)
    return Composed(
        members.write(_give_name(complete(task), choices)), list(overrides), choices, sources, cfg, options, dated
    )


def _with_options(loader: ConfigLoader, rewritten: Rewritten, choices: Sequence[str]) -> tuple[DictConfig, Sources]:
    """Compose once more, with other options of groups than were typed, and tell where the values come from.

    Raises:
        UserErrors: There is no such composition.
    """
    groups = {text.partition("=")[0] for text in choices}
    kept = [text for text in rewritten.texts if text.lstrip("+~").partition("=")[0] not in groups]
    cfg = _resolved(loader, Rewritten([*kept, *choices]))
    task = without_hydra(cfg)
    fill_choices(task, loader.choices(cfg))
    fill_values(task, cfg, loader.time)
    return task, Sources(loader.layers(), rewritten.values)


def compose_hydra(overrides: Sequence[str]) -> tuple[DictConfig, Sources]:
    """Compose what a new run in this project would have, with Hydra's node, unchecked, and with its sources.

    Args:
        overrides: Overrides of Hydra's own settings, such as `hydra.run.dir=FOLDER`.

    Raises:
        UserErrors: It cannot be composed.
    """
    loader = make_loader(overrides)
    rewritten = rewrite(loader, overrides)
    cfg = _load(loader, rewritten)
    sources = Sources(loader.layers(), rewritten.values)
    errors = [*rewritten.errors, *check_hydra(cfg, sources, loader)]
    if errors:
        raise UserErrors(errors)
    return cfg, sources


def load_choices(loader: ConfigLoader, choices: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """Compose options of groups over the defaults, unchecked, for another configuration to take them over.

    Args:
        loader: Knows the groups and options.
        choices: `logger=quiet`, `data=wine`.

    Returns:
        The composition, and the groups that the choices decide: an option of data chooses loss and metrics, too.

    Raises:
        UserErrors: There is no such option, or it can't be composed.
    """
    rewritten = rewrite(loader, choices)
    cfg = _load(loader, rewritten)
    if rewritten.errors:
        raise UserErrors(rewritten.errors)
    groups = [text.lstrip("+").partition("=")[0] for text in choices]
    groups += ["loss", "metrics"] if "data" in groups else []
    task = without_hydra(cfg)
    fill_choices(task, loader.choices(cfg))
    return task, list(dict.fromkeys(groups))


def _give_name(cfg: DictConfig, choices: dict[str, str]) -> DictConfig:
    """Call a run without a name after its experiment, or after what it trains on what."""
    if cfg.get("name") is None and ({"data", "model"} <= choices.keys() or GROUP in choices):
        parts = [choices[GROUP]] if GROUP in choices else [choices["data"], choices["model"]]
        with open_dict(cfg), read_write(cfg):
            cfg.name = "_".join(part.strip("[]") for part in parts).replace("/", "_").replace(",", "_")
    return cfg


def without_hydra(cfg: DictConfig) -> DictConfig:
    """Return the part of a composition that belongs to lightkit."""
    return copy_only(cfg, *(key for key in cfg if key != "hydra"))


def _is_below(key: str | None, nodes: Sequence[str]) -> bool:
    parts = [str(part) for part in parts_of(key or "")]
    return any(parts[: len(node.split("."))] == node.split(".") for node in nodes)


def _resolved(loader: ConfigLoader, rewritten: Rewritten) -> DictConfig:
    """Compose, and once more where an option stands for others by the kind of the data's target (`by_task`).

    Raises:
        UserErrors: There is no composition.
    """
    texts, errors = list(rewritten.texts), list(rewritten.errors)
    cfg = _load(loader, rewritten)
    chosen = choices_by_task(cfg)
    if not chosen:
        return cfg
    groups = {text.partition("=")[0] for text in chosen}
    kept = [text for text in texts if text.lstrip("+~").partition("=")[0] not in groups]
    rewritten.texts, rewritten.errors[:] = [*chosen, *kept], errors
    rewritten.toggled.clear()
    return _load(loader, rewritten)


def choices_by_task(cfg: DictConfig) -> list[str]:
    """Return the options, as `loss=mse`, of the groups that leave this to the kind of the data's target.

    Args:
        cfg: A composition.
    """
    nodes = {str(group): node for group, node in cfg.items_ex(resolve=False) if isinstance(node, DictConfig)}
    open_ones = {group: node["by_task"] for group, node in nodes.items() if "by_task" in [*node.keys()]}
    task = kind_of_target(cfg) if open_ones else None
    return [f"{group}={options.get(str(task)) or next(iter(options.values()))}" for group, options in open_ones.items()]


def _load(loader: ConfigLoader, rewritten: Rewritten) -> DictConfig:
    """Let Hydra compose. Overrides it can't apply are noted among what is wrong with them, and left out.

    Raises:
        UserErrors: There is no composition.
    """
    try:
        return loader.compose(rewritten.texts)
    except RecursionError as error:
        wrong = [circle(loader) or _composition_error(loader, error)]
        raise UserErrors([*rewritten.errors, *wrong]) from None
    except (*COMPOSE_ERRORS, yaml.YAMLError) as error:
        if _toggle_plus(rewritten, str(error)):
            return _load(loader, rewritten)
        failing = loader.failing(rewritten.texts)
        if not failing:
            wrong = check_defaults(loader) or [_composition_error(loader, error)]
            raise UserErrors([*rewritten.errors, *wrong]) from None
    names = all_keys(loader.base)
    rewritten.errors += [undeletable(text, reason, names) for text, reason in failing]
    bad = {text for text, _ in failing}
    rewritten.texts = [text for text in rewritten.texts if text not in bad]
    return _load(loader, rewritten)


def _toggle_plus(rewritten: Rewritten, message: str) -> bool:
    """Add or take away the plus of a group, which Hydra wants exactly when no defaults list names the group."""
    wanted = _ABSENT.search(message)
    unwanted = _PRESENT.search(message)
    for position, text in enumerate(rewritten.texts):
        group = text.partition("=")[0]
        if position in rewritten.toggled or group not in (wanted and wanted[1], unwanted and f"+{unwanted[1]}"):
            continue
        rewritten.toggled.add(position)
        rewritten.texts[position] = text[1:] if group.startswith("+") else f"+{text}"
        return True
    return False


def _composition_error(loader: ConfigLoader, error: Exception) -> UserError:
    if isinstance(error, yaml.MarkedYAMLError):
        return _syntax_error(loader, error)
    if not loader.repository.config_exists(loader.config_name):
        choices = [name for name in loader.options("") if "/" not in name]
        what, name = "no such file to start from", loader.config_name
        return UserError(what, key="--config-name", received=name, choices=choices, family="file")
    files, message = loader.used_files(), f"{error}\n{error.__cause__ or ''}"
    known = clashes(files, message) or chosen_twice(files, message) or unreadable_value(files, message)
    if known is not None:
        return known
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    made = UserError("the configuration can't be composed: " + " ".join(lines[:3]), family="unreadable-configuration")
    made.__cause__ = error
    return made


def _syntax_error(loader: ConfigLoader, error: yaml.MarkedYAMLError) -> UserError:
    mark, files = error.problem_mark or error.context_mark, [path for _, path in loader.used_files()]
    origin = f"{shown(Path(mark.name))}:{mark.line + 1}" if mark is not None else None
    if mark is not None and mark.name.startswith("<") and files:
        origin = f"near {shown(files[-1])}:{mark.line + 1}"
    what, fix = f"not valid YAML: {error.problem or error.context}", "check the indentation, the colons and the quotes"
    return UserError(what, origin=origin, fix=f"{fix} of this line", family="unreadable-configuration")
