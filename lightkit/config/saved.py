"""The configuration of a run as a file: written resolved, read back, also in an older format, and checked again."""

from __future__ import annotations

import copy
import io
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightkit.common import run_files
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.reading import UnreadableError, parse_mapping, read_text
from lightkit.config.check import complete, problems, sweep_options
from lightkit.config.compose import Composed, choices_by_task, load_choices
from lightkit.config.describe import changed_keys
from lightkit.config.direction import fill_mode, forget_mode
from lightkit.config.finetuning import pattern_places
from lightkit.config.former import move_former
from lightkit.config.loader import ConfigLoader, apply_override, make_loader
from lightkit.config.member_values import at, with_values
from lightkit.config.members import NO_ENSEMBLE, MemberEntries
from lightkit.config.origins import Sources, command_line, dotted, shown
from lightkit.config.overrides import is_choice, rewrite, undeletable
from lightkit.config.policy import Trust, changed_around, reset_user_only
from lightkit.config.project import make_importable, project_root
from lightkit.config.provenance import BY_OVERRIDE, RunSignature, foreign_targets, is_ours, sign_run
from lightkit.config.sources import GROUP
from lightkit.config.tree import as_yaml, public
from lightkit.processes.files import write_whole

_FORMAT = re.compile(r"^# Format \d+ of lightkit's configurations", re.MULTILINE)
_ALWAYS = ("data", "model", "optim", "trainer", "metrics")
"""Sections that every configuration has: one without them was cut off."""
_AROUND = ("checkpoint", "device", "logger")
"""Groups that say where a run computes and what it writes, not what it learns."""
_GIVEN_UP = (("kind", "prefix"), ("softmax", "own"))
"""Keys of `finetune.prefix` that earlier versions had, with the value for what is the only way now."""
_LOG = logging.getLogger(__name__)
_HEAD = "# The whole configuration of this run. Values from the environment are still read from there.\n"


def save(cfg: DictConfig, folder: Path) -> Path:
    """Write `folder/config.yaml`, from which the run can be repeated, signed as one that this project wrote.

    Everything is resolved but what comes from environment variables (`${oc.env:TOKEN}`): such text may be a secret.
    """
    return save_text(to_yaml(cfg), folder)


def save_text(text: str, folder: Path, sign: Callable[[str], RunSignature | None] | None = None) -> Path:
    """Write `folder/config.yaml` from what `to_yaml` gave, signed by what `signer` gave."""
    path = folder / run_files.CONFIG
    sign_run(folder, text, sign)  # before: a run that is killed in between is still known, by the older signature
    write_whole(path, _HEAD + text)
    return path


def to_yaml(cfg: DictConfig) -> str:
    """Write the configuration as YAML, resolved but for what comes from the environment; a line tells the format."""
    return as_yaml(public(cfg))


def from_yaml(text: str) -> dict[str, Any]:
    """Read what `to_yaml` wrote, in this or an older format; what comes from the environment stays a reference."""
    return as_meant(text, cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.create(text))))


def load_run(
    run: Path,
    overrides: Sequence[str] = (),
    *,
    trust: Sequence[str] = (),
    known: bool = False,
    fix: str = BY_OVERRIDE,
    new: bool = False,
) -> Composed:
    """Load the configuration a run was started with, changed by value overrides and checked again.

    A run that this project wrote is taken as it stands. Any other may come from anybody: what its file grants counts
    for nothing, and a `_target_` beyond those of lightkit and its packages must be named by the user, by an override
    `trust=[package]` or the argument `trust`; this goes for modules of the project, and for what `conf/` trusts, too.

    Args:
        run: Folder of the run.
        overrides: `trainer.epochs=50`, `~metrics.val.f1`, `device=cpu`, and with `new` options of any group.
        trust: What the user has named otherwise, in a configuration that leads to this run.
        known: The user answers for the run, as if this project had written it.
        fix: How the user names what is to be trusted, for the message.
        new: The configuration is for a run that is yet to begin, of which the options of groups can be chosen anew.

    Raises:
        UserErrors: Everything that is wrong, in one report.
        UserError: There is no readable configuration in the folder.
    """
    path, folder = Path(run) / run_files.CONFIG, Path(run).resolve()
    make_importable(project_root())
    text, tree = _stored(path)
    loader, errors, known = make_loader(), list[UserError](), known or is_ours(folder, text)
    if text.startswith(_HEAD):  # one without it was made by hand, and means what it says
        tree = as_meant(text, tree)
    offered, in_project = _trust_entries(tree), project_trust()
    reset_user_only(tree, changed_around(overrides) if known else None)
    tree["trust"] = [*dict.fromkeys([*(_trust_entries(tree) + in_project if known else ()), *trust])]
    cfg = OmegaConf.create(tree)
    chosen = [text for text in overrides if is_choice(loader, text) and (new or _group(text) in _AROUND)]
    overrides = [text for text in overrides if text not in chosen]
    errors += _choose(cfg, loader, chosen, overrides) if new else _set_around(cfg, loader, chosen)
    values = [text for text in overrides if _apply(cfg, loader, text, errors)]
    for line in move_former(cfg):
        _LOG.warning(line)
    sources = Sources([(path, "")], [(text.lstrip("+").partition("=")[0], text) for text in values])
    if sources.on_command_line(("metrics", "monitor")) and not sources.on_command_line(("metrics", "mode")):
        forget_mode(cfg)
    fill_mode(cfg)
    trusted = Trust.of_run(folder, () if known else (*offered, *in_project))
    foreign = None if known else foreign_targets(cfg, folder, trusted, fix=fix)
    members = MemberEntries(cfg, sources, loader, lambda choices: (_with_choices(cfg, loader, choices), sources))
    errors += problems(cfg, sources, trusted, starting=new)
    errors += members.check(lambda one, where: problems(one, where, trusted, starting=new), errors)
    errors += [foreign] if foreign else []
    if errors:
        raise UserErrors(errors)
    sweep = sweep_options(cfg)
    return Composed(members.write(complete(cfg)), [*chosen, *overrides], {}, sources, sweep=sweep)


def _choose(
    cfg: DictConfig, loader: ConfigLoader, choices: Sequence[str], values: Sequence[str] = ()
) -> Sequence[UserError]:
    """Put the options of groups in the place of what the run had; those of data bring what suits its target along."""
    if not choices:
        return ()
    try:
        composed, groups = load_choices(loader, choices)
    except UserErrors as found:
        return found.errors
    for group in groups:
        cfg[group] = OmegaConf.to_container(composed[group], resolve=False)
    meant = copy.deepcopy(cfg)
    for text in values:
        if text.startswith("data."):
            _apply(meant, loader, text, [])  # what is wrong with it is told where the run gets it
    return _choose(cfg, loader, choices_by_task(meant))


def _set_around(cfg: DictConfig, loader: ConfigLoader, choices: Sequence[str]) -> Sequence[UserError]:
    """Set what options of device, logger and checkpoint decide for a run that has begun; the rest stays as it was."""
    try:
        composed, groups = load_choices(loader, choices) if choices else (cfg, [])
    except UserErrors as found:
        return found.errors
    for key in (key for group in groups for key in changed_keys(loader, group)):
        OmegaConf.update(cfg, key, OmegaConf.select(composed, key), merge=False)
    return ()


def _group(choice: str) -> str:
    return choice.lstrip("+").partition("=")[0]


def _with_choices(cfg: DictConfig, loader: ConfigLoader, choices: Sequence[str]) -> DictConfig:
    """Return the configuration of a run with options of groups for one of its members.

    Raises:
        UserErrors: There are no such options, or not for a run that has begun.
    """
    changed = copy.deepcopy(cfg)
    experiment = next((text for text in choices if text.startswith(f"{GROUP}=")), None)
    if experiment is not None:
        what = "an experiment is chosen when an ensemble begins"
        fix = "the values that are meant, by their keys"
        raise UserErrors([UserError(what, key=GROUP, received=experiment, fix=fix, family="contradiction")])
    errors = _choose(changed, loader, choices)
    if errors:
        raise UserErrors(errors)
    return changed


def with_values_of(run: Path, cfg: DictConfig, keys: Sequence[str]) -> DictConfig:
    """Return a configuration with the values that an earlier run has at some keys; as it is where there is no run.

    Args:
        run: Folder of the run.
        cfg: A composed configuration.
        keys: Keys in full.
    """
    path = Path(run) / run_files.CONFIG
    if not keys or not path.is_file():
        return cfg
    stored = OmegaConf.create(_stored(path)[1])
    return with_values(cfg, {key: OmegaConf.select(stored, key) for key in keys})


def saved_group(run: Path, group: str) -> Any:
    """Return what the file of a run says about a group, as plain values that nobody has checked.

    Raises:
        UserError: There is no readable configuration in the folder.
    """
    return _stored(Path(run) / run_files.CONFIG)[1].get(group)


def project_trust() -> tuple[str, ...]:
    """Return what `conf/config.yaml` of the user's project trusts."""
    root = project_root()
    path = root / "conf" / "config.yaml" if root is not None else None
    return _trust_entries(_parsed(path, _text(path), of_run=False)) if path is not None and path.is_file() else ()


def _trust_entries(tree: Any) -> tuple[str, ...]:
    """Return `trust` as it is written, without resolving anything."""
    entries = tree.get("trust")
    return tuple(item for item in entries if isinstance(item, str)) if isinstance(entries, list) else ()


def _stored(path: Path) -> tuple[str, dict[str, Any]]:
    """Read the configuration of a run as text and as plain values; each of its checkpoints holds it, too.

    Args:
        path: Its `config.yaml`; where that is missing or damaged, the newest checkpoint that is whole is read.

    Raises:
        UserError: Neither can be read.
    """
    try:
        text = _text(path)
        tree = _parsed(path, text)
        missing = [name for name in _ALWAYS if name not in tree] if text.startswith(_HEAD) else []
        if tree and not missing:
            return text, tree
        what = f"only a part of a configuration, without {', '.join(missing)}" if missing else "empty"
        raise UserError(what, key=shown(path), family="unreadable-configuration")
    except UserError as error:
        found = _of_checkpoint(path.parent / run_files.CHECKPOINTS)
        if found is None:
            raise
        checkpoint, text = found
        why = error.what.splitlines()[0] if path.is_file() else "missing"
        _LOG.warning("%s is damaged or missing (%s): its content is taken from %s", path, why, checkpoint.name)
        return _HEAD + text, _parsed(checkpoint, text)


def _of_checkpoint(folder: Path) -> tuple[Path, str] | None:
    """Return the newest whole checkpoint in a folder, with the configuration in it; None where there is none."""
    if not folder.is_dir():
        return None
    from lightkit.checkpoint.store import CheckpointStore  # takes seconds, as it imports PyTorch

    with suppress(UserError, OSError):
        path, content = CheckpointStore(folder).load_newest() or (folder, {})
        if isinstance(text := content.get("config"), str) and text:
            return path, text
    return None


def _text(path: Path) -> str:
    if not os.path.lexists(path):
        what = "not the folder of a run: it has no config.yaml"
        raise UserError(what, key=shown(path.parent), fix="lightkit runs", family="no-such-run")
    try:
        return read_text(path)
    except (FileNotFoundError, UnreadableError) as error:
        raise UserError(f"can't be read: {error}", key=shown(path), family="unreadable-configuration") from error


def _parsed(path: Path, text: str, *, of_run: bool = True) -> dict[str, Any]:
    """Read the configuration in a file as plain values, with interpolations as they are written."""
    try:
        if of_run:  # which anybody may have written, but with no more of YAML than runs write
            parse_mapping(text)
        cfg = OmegaConf.load(io.StringIO(text))
    except (UnreadableError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"can't be read: {error}", key=shown(path), family="unreadable-configuration") from error
    if not isinstance(cfg, DictConfig):
        raise UserError("holds no configuration", key=shown(path), family="unreadable-configuration")
    tree: Any = OmegaConf.to_container(cfg)
    return tree


def _apply(cfg: DictConfig, loader: ConfigLoader, text: str, errors: list[UserError]) -> bool:
    """Change the configuration by one override; True when it set a value."""
    checked = rewrite(loader, [text])
    errors += checked.errors
    for rewritten in checked.texts:
        override, origin = loader.forced(loader.parse(rewritten)), command_line(text)
        key, is_value = override.key_or_group, isinstance(override.value(), dict) or override.is_delete()
        if loader.is_group(key) and not is_value:
            what = "the options of a run are fixed once it has started"
            fix = f"set single values ({key}.KEY=VALUE), or start a new run with lightkit train"
            errors.append(UserError(what, key=key, origin=origin, fix=fix, family="contradiction"))
            return False
        reason = apply_override(override, cfg)
        if reason is not None:
            errors.append(undeletable(text, reason, [dotted((str(name),)) for name in cfg]))
            return False
    return bool(checked.values)


def as_meant(text: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a kept configuration with the meaning it had when it was written.

    Args:
        text: The file.
        tree: Its content as plain values; changed in place.
    """
    moved = [line for line in move_former(tree) if line.startswith("finetune.")]
    if moved and not tree["finetune"].get("train"):  # these keys alone made a fine-tuning, with a group for the head
        tree["finetune"]["train"] = ["*"]
    if tree.get("ensemble") == {}:  # of a time without ensembles
        tree["ensemble"] = dict(NO_ENSEMBLE)
    prefix = at(tree, ("finetune", "prefix"))
    if isinstance(prefix, dict):
        tree["finetune"]["prefix"] = {name: value for name, value in prefix.items() if (name, value) not in _GIVEN_UP}
    if _FORMAT.search(text):
        return tree
    for key, patterns, _ in list(pattern_places(tree)):
        if patterns and key[0] != "resume" and "ranks" not in key:
            holder = at(tree, map(str, key[:-1]))
            holder[key[-1]] = _widened(patterns)
    ranks = at(tree, ("finetune", "lora", "ranks"))
    if isinstance(ranks, dict):
        tree["finetune"]["lora"]["ranks"] = {_widened(pattern): rank for pattern, rank in ranks.items()}
    return tree


def _widened(patterns: Any) -> Any:
    if isinstance(patterns, list):
        return [_widened(pattern) for pattern in patterns]
    named = isinstance(patterns, str) and patterns and not patterns.startswith(("*", "@", "re:"))
    return f"*{patterns}" if named else patterns
