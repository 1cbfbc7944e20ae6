"""How a member of an ensemble differs from its run: values by key, and how they are applied and told apart.

An entry of `ensemble.members` is a mapping: `optim.lr: 0.01` sets a value, `optim: {lr: 0.01}` does the same, a mapping
with a `_target_` takes the place of the whole node, and `~trainer.callbacks.swa: null` removes. What is removed goes
first, then come whole nodes, then values; of two that say the same the later counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, ListConfig, OmegaConf, read_write

from lightkit.common.text import slug
from lightkit.config.merging import as_written, from_plain

REMOVE = "~"
NAME = "name"
_LONGEST = 40
_MISSING = object()
Tree = dict[str, Any]


def member_values(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a member by key, such as `{"optim.lr": 0.01, "model": {"_target_": …}}`.

    Args:
        entry: One of `ensemble.members`, as it stands in a configuration that was composed or read.

    Returns:
        Keys of values, of whole nodes, and with `~` in front of what is removed; `with_values` applies them.
    """
    plain = OmegaConf.to_container(entry) if isinstance(entry, DictConfig) else entry
    return {".".join(place): value for place, value in flat(cast(Tree, plain)).items()}


def with_values(cfg: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """Return a read-only copy of a configuration with other values.

    Args:
        cfg: The configuration; interpolations stay as they are written.
        values: Values by key. A mapping with a `_target_` replaces the node, any other mapping is merged with it.

    Raises:
        KeyError: There is nothing at a key to remove.
    """
    tree = cast(Tree, as_written(cfg))
    apply(tree, flat(values))
    try:
        made = from_plain(tree)  # in a part of the time that OmegaConf takes
    except (LookupError, TypeError):  # other values, such as tuples and paths
        made = OmegaConf.create(tree)
    made._set_flag(["readonly", "struct"], [True, True])
    return made


def member_label(entry: Mapping[str, Any], index: int) -> str:
    """Return a name for the folder of a member: `00-mlp`, `01-cnn-lr=0.01`, `02` for one like the run itself.

    Args:
        entry: Its entry of `ensemble.members`, or `{}`.
        index: Its position, counted from 0.
    """
    said = entry.get(NAME) or label(flat(entry))
    text = slug(str(said))[: _LONGEST - 3].strip("-.,") if said else ""
    return f"{index:02d}-{text}" if text else f"{index:02d}"


def label(values: Mapping[tuple[str, ...], Any], options: Iterable[str] = ()) -> str:
    """Say in short how a member differs: options of groups, then values, `cnn-lr=0.01`; empty where it does not."""
    parts = [*options]
    for place, value in values.items():
        if is_node(value):
            parts.append(str(value["_target_"]).rpartition(".")[2].lower())
        elif value is not None and not isinstance(value, dict) and place != (NAME,):
            shown = ",".join(map(str, value)) if isinstance(value, list) else value
            parts.append(f"{place[-1]}={shown}")
    return slug("-".join(parts))[: _LONGEST - 3].strip("-.,") if parts else ""


def is_node(value: Any) -> bool:
    """Tell whether a value is a whole node, which replaces another one."""
    return isinstance(value, dict) and "_target_" in value


def flat(entry: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return the values of an entry by place; those of a mapping by their own places, but for whole nodes."""
    found = dict[tuple[str, ...], Any]()
    for name, value in entry.items():
        place = tuple(str(name).split("."))
        is_open = isinstance(value, dict) and value and not is_node(value)
        # A key with a dot, such as a pattern of names, is no place of its own.
        if is_open and not any("." in str(inner) for inner in value):
            found |= {(*place, *inner): item for inner, item in flat(value).items()}
        else:
            found[place] = value
    return found


def nested(entry: Mapping[str, Any]) -> Tree:
    """Return what an entry sets as a tree."""
    tree = Tree()
    apply(tree, {place: value for place, value in flat(entry).items() if not place[0].startswith(REMOVE)})
    return tree


def apply(tree: Tree, values: Mapping[tuple[str, ...], Any]) -> None:
    """Change a configuration of plain values.

    Args:
        tree: The configuration; changed in place.
        values: As `flat` returns them.

    Raises:
        KeyError: There is nothing at a place to remove.
    """
    for place in values:
        if place[0].startswith(REMOVE):
            node = at(tree, (place[0][len(REMOVE) :], *place[1:])[:-1])
            del cast(Tree, node if isinstance(node, dict) else {})[place[-1].removeprefix(REMOVE)]
    rest = [(place, value) for place, value in values.items() if not place[0].startswith(REMOVE)]
    for place, value in sorted(rest, key=lambda item: not is_node(item[1])):
        _set(tree, place, value)


def at(tree: Any, place: Iterable[str]) -> Any:
    """Return what stands at a place; None where there is nothing."""
    for part in place:
        if isinstance(tree, list):
            tree = tree[int(part)] if _is_index(part, tree) else None
        else:
            tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _set(tree: Any, place: tuple[str, ...], value: Any) -> None:
    first, *rest = place
    key: Any = int(first) if isinstance(tree, list) else first
    inner = at(tree, [first])
    if rest and not isinstance(inner, dict) and not (isinstance(inner, list) and _is_index(rest[0], inner)):
        inner = tree[key] = {}  # whatever was there: the check says what belongs there
    if rest:
        _set(inner, tuple(rest), value)
    elif isinstance(value, dict) and isinstance(inner, dict) and not is_node(value):
        for name, item in value.items():
            _set(inner, (str(name),), item)
    else:
        tree[key] = value


def _is_index(part: str, items: list[Any]) -> bool:
    """Tell whether a part of a key is the position of one of these items."""
    return part.isdigit() and int(part) < len(items)


def difference(before: Any, after: Any, place: tuple[str, ...] = ()) -> Tree:
    """Return the values by which a configuration differs from another one, by key: applied to that they give it.

    Args:
        before: The other configuration as plain values.
        after: The configuration.
        place: The key that both are the values of.
    """
    both = isinstance(before, dict) and isinstance(after, dict)
    key = ".".join(place)
    if not both:
        return {} if type(before) is type(after) and before == after else {key: after}
    # Nothing may be left of the arguments of another target, nor of names that are gone.
    replaced = not before.keys() <= after.keys() or before.get("_target_") != after.get("_target_")
    if place and (replaced or any("." in str(name) for name in after)) and before != after:
        return {key: after} if is_node(after) else {REMOVE + key: None, key: after}
    found = Tree()
    for name, value in after.items():
        found |= difference(before.get(name, _MISSING), value, (*place, str(name)))
    return found


EPOCHS = 2
"""Epochs of a smoke run: the end of one, and the way into the next."""
STEPS = 4
"""Optimizer steps of a smoke run that counts them."""
_ROWS = 256
"""Rows that a scaling is fitted on."""
_MEMBERS = 2
"""Members, folds and cycles of an ensemble."""
_DROPOUT = re.compile(r"(^|_)drop(out|_rate|_path)?(_|$|\d)")
_CONSTANT = {"_target_": "lightkit.optim.Constant", "warmup_steps": 0, "warmup_epochs": 0.0}
_SINGLE = {"_target_": "lightkit.ensemble.methods.NoEnsemble", "members": [], "meta": {}}


def cut_down(cfg: DictConfig) -> None:
    """Cut a complete configuration down where `trainer.smoke` or `trainer.overfit` asks for it, in place."""
    if cfg.trainer.smoke:
        _shorten(cfg)
    elif cfg.trainer.overfit.samples is not None:
        _simplify(cfg)


def _shorten(cfg: DictConfig) -> None:
    """Leave a little of everything that takes time, and nothing that waits for a later step than there will be."""
    trainer = cfg.trainer
    for key, most in (("epochs", EPOCHS), ("steps", STEPS), ("epoch_steps", STEPS), ("accumulate", 2)):
        if trainer[key] is not None:
            trainer[key] = min(trainer[key], most)
    trainer.stop_at, trainer.find_lr = None, False
    trainer.swa.from_epoch = trainer.swa.from_epoch and 1
    trainer.early_stopping.from_epoch = 1
    trainer.validate_unit, trainer.validate_every, trainer.nonfinite.every = "epoch", 1, 1
    cfg.trainer.find_batch_size = None
    cfg.data.normalize_rows = min(cfg.data.normalize_rows or _ROWS, _ROWS)
    if cfg.checkpoint.every_epochs is not None:
        cfg.checkpoint.every_epochs = 1
    cfg.logger.every_steps = 1
    cfg.logger.tensorboard.histograms = cfg.logger.tensorboard.histograms and 1
    if cfg.scheduler.get("warmup_steps") or cfg.scheduler.get("warmup_epochs"):
        cfg.scheduler.warmup_steps = 1
        if "warmup_epochs" in cfg.scheduler:
            cfg.scheduler.warmup_epochs = 0.0
    _hasten(cfg)
    ensemble = cfg.ensemble
    for key, most in (("size", _MEMBERS), ("folds", _MEMBERS), ("repeats", 1), ("rounds", 3), ("cycle_epochs", 1)):
        if isinstance(ensemble.get(key), int):
            ensemble[key] = min(ensemble[key], most)


def limit_copies(cfg: DictConfig) -> None:
    """Leave two copies of a member in a smoke run that does not say how many; of unlike members, each may fail."""
    ensemble = cfg.ensemble
    if cfg.trainer.smoke and "size" in ensemble and ensemble.size is None and ensemble.get("resample") != "folds":
        with read_write(cfg):
            ensemble.size = _MEMBERS


def _hasten(cfg: DictConfig) -> None:
    """Let what begins to train later do so within the run, in the same order."""
    for rule in cfg.optim.rules:
        rule.warmup_steps = None
    gradual = cfg.finetune.gradual
    if any(gradual[unit] is not None for unit in ("every_epochs", "every_steps", "share")):
        gradual.every_epochs, gradual.every_steps, gradual.first, gradual.share = None, None, None, 0.5
    later = [entry for entry in cfg.finetune.schedule if entry.epoch or entry.step or entry.share]
    for entry, share in zip(later, _shares(later)):
        entry.epoch, entry.step, entry.share = None, None, share


def _shares(entries: Sequence[Any]) -> list[float]:
    """Return a share of the run for each entry of a schedule, in the order of their moments.

    Moments of different units cannot be told apart without the data: these come in the order in which they are listed.
    """
    units = [next(unit for unit in ("epoch", "step", "share") if entry[unit]) for entry in entries]
    alike = len(set(units)) <= 1
    values = [entry[unit] if alike else place for place, (entry, unit) in enumerate(zip(entries, units))]
    order = sorted(set(values))
    return [round((order.index(value) + 1) / (len(order) + 1), 6) for value in values]


def _simplify(cfg: DictConfig) -> None:
    """Take away what keeps a model from learning a few samples by heart, or keeps its loss above zero."""
    trainer, overfit = cfg.trainer, cfg.trainer.overfit
    cfg.ensemble = {**_SINGLE, "member": OmegaConf.to_container(cfg.ensemble.member)}
    cfg.data.batch_size = min(cfg.data.batch_size, overfit.samples)
    cfg.data.augment, cfg.data.sampler, cfg.data.drop_last = [], None, False
    cfg.data.mixup.alpha = cfg.data.mixup.cutmix_alpha = None
    cfg.trainer.find_batch_size = None
    trainer.epochs, trainer.steps, trainer.epoch_steps, trainer.accumulate = None, overfit.steps, None, 1
    trainer.stop_at, trainer.find_lr, trainer.test = None, False, "none"
    trainer.ema.decay = trainer.swa.from_epoch = None
    trainer.early_stopping.patience = trainer.early_stopping.target = None
    trainer.validate_unit, trainer.validate_every = "step", overfit.steps
    cfg.checkpoint.every_epochs = cfg.checkpoint.every_steps = None
    cfg.scheduler = dict(_CONSTANT)
    cfg.finetune.distill.teacher = None
    if "label_smoothing" in cfg.loss:
        cfg.loss.label_smoothing = 0.0
    for node in (cfg.optim, *cfg.optim.rules, cfg.finetune.head):
        if node.get("weight_decay") is not None:
            node.weight_decay = 0.0
    for holder, key in [*_dropouts(cfg.model), *_dropouts(cfg.finetune.lora), *_dropouts(cfg.finetune.adapter)]:
        holder[key] = 0.0
    _hasten(cfg)


def _dropouts(node: Any) -> Iterator[tuple[DictConfig, str]]:
    """Yield the places of numbers below a node that say how much is dropped: `dropout`, `drop_rate`, `attn_drop`."""
    if isinstance(node, ListConfig):
        for item in node:
            yield from _dropouts(item)
    elif isinstance(node, DictConfig):
        for key, value in node.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and _DROPOUT.search(str(key)):
                yield node, str(key)
            else:
                yield from _dropouts(value)
