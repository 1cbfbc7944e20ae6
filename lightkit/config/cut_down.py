"""Configurations that are cut down: `trainer.smoke` (everything, but little of it) and `trainer.overfit` (few samples).

What was checked is what was asked for; what comes out is what will run, and stands in the configuration of the run. It
depends on the configuration alone, and cutting down what is cut down changes nothing. How few samples there are is up
to `lightkit.assembly.parts`, which knows the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, read_write

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
    for key, most in (("epochs", EPOCHS), ("steps", STEPS), ("accumulate", 2)):
        if trainer[key] is not None:
            trainer[key] = min(trainer[key], most)
    trainer.stop_at, trainer.find_lr = None, False
    trainer.validate_unit, trainer.validate_every, trainer.nonfinite.every = "epoch", 1, 1
    cfg.device.batch_size = None
    cfg.data.normalize_rows = min(cfg.data.normalize_rows or _ROWS, _ROWS)
    if cfg.checkpoint.every_epochs is not None:
        cfg.checkpoint.every_epochs = 1
    cfg.logger.every_steps = 1
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
    for rule in (*cfg.optim.rules, *cfg.finetune.rules):
        rule.warmup_steps = None
    gradual = cfg.finetune.gradual
    if any(gradual[unit] is not None for unit in ("every_epochs", "every_steps", "share")):
        gradual.every_epochs, gradual.every_steps, gradual.first, gradual.share = None, None, None, 0.5
    later = [entry for entry in cfg.finetune.schedule if entry.epoch or entry.step or entry.share]
    moments = _shares(later, epochs=cfg.trainer.epochs, steps=cfg.trainer.steps)
    for entry, share in zip(later, moments):
        entry.epoch, entry.step, entry.share = None, None, share


def _shares(entries: Sequence[Any], *, epochs: int | None, steps: int | None) -> list[float]:
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
    cfg.data.augment, cfg.data.mixup.alpha, cfg.data.drop_last = [], None, False
    cfg.device.batch_size = None
    trainer.epochs, trainer.steps, trainer.accumulate = None, overfit.steps, 1
    trainer.stop_at, trainer.find_lr, trainer.test = None, False, "none"
    trainer.ema.decay, trainer.early_stopping.patience = None, None
    trainer.validate_unit, trainer.validate_every = "step", overfit.steps
    cfg.checkpoint.every_epochs = cfg.checkpoint.every_steps = None
    cfg.scheduler = dict(_CONSTANT)
    cfg.finetune.distill.teacher = None
    if "label_smoothing" in cfg.loss:
        cfg.loss.label_smoothing = 0.0
    for node in (cfg.optim, *cfg.optim.rules, *cfg.finetune.rules, cfg.finetune.head):
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
