"""What a run says of itself: the lines it starts with, those it ends with, and what it shows of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

import lightkit.monitor.usage as usage
import lightkit.trainer.report as summary
from lightkit.assembly import Learner
from lightkit.common.failures import in_short
from lightkit.common.modules import is_shard, mapped
from lightkit.common.text import counted
from lightkit.data import Data
from lightkit.data.placed import PLACED, found_in, overlaid
from lightkit.loggers import Logger
from lightkit.loggers.tensorboard import stretched
from lightkit.trainer import State
from lightkit.trainer.interrupt import Interrupted


def introduce(
    cfg: DictConfig, folder: Path, parts: Learner, logger: Logger, *, step: int, notes: Sequence[str]
) -> None:
    """Log the lines that a run starts with.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        parts: The parts of the run.
        logger: Takes them.
        step: Step the run goes on from; 0 for a new one.
        notes: What else there is to say.
    """
    for line in [*introduction(cfg, folder, parts.data), _model_line(cfg, parts)]:
        logger.message(line)
    parts.engine.notes.hand_to(logger.message)
    for line in [*([f"resumed at step {step}"] if step else []), *notes]:
        logger.message(line)
    if not step:
        _show_inputs(parts, logger, images=cfg.logger.tensorboard.images, graph=cfg.logger.tensorboard.graph)


def introduction(cfg: DictConfig, folder: Path, data: Data, method: str = "") -> list[str]:
    """Return the lines that a run starts with, before there is a model.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        data: Its data.
        method: What makes one model of several; empty for one model.
    """
    facts = dict(data.describe())
    splits = ", ".join(f"{name} {facts[name].partition(' rows')[0]}" for name in data.loaders())
    kind, classes = f"{facts['task']}, input {facts['input']}", data.info.num_classes
    if data.info.task == "custom":
        kind = "samples of their own kind" + (f", {classes} class{'es' * (classes != 1)}" if classes else "")
    made_by = f"{method}, " if method else ""
    head = [f"run     {cfg.name}, {made_by}seed {cfg.seed}, in {folder}", f"data    {kind}, {splits}"]
    return [*head, *(f"        {note}" for note in (*data.notes, *about_limits(cfg, data)))]


def about_limits(cfg: DictConfig, data: Data) -> list[str]:
    """Return a line about each split of which only a part is evaluated.

    Args:
        cfg: The configuration.
        data: The data of the run.
    """
    limits = {name: cfg.data.split.get(f"{name}_limit") for name in ("val", "test")}
    hit = {name: limit for name, limit in limits.items() if limit is not None and len(data.rows.get(name, ())) == limit}
    return [
        f"only a part of {name} is evaluated: {counted(limit, 'row')} (data.split.{name}_limit)"
        for name, limit in hit.items()
    ]


def introduce_members(cfg: DictConfig, parts: Learner, tell: Callable[[str], None], *, notes: Sequence[str]) -> None:
    """Tell what all models of a run have in common, or else the first of them.

    Args:
        cfg: The configuration of the run.
        parts: The parts of its first model.
        tell: Takes the lines.
        notes: What else there is to say.
    """
    for line in [_model_line(cfg, parts), *parts.engine.notes.lines, *notes]:
        tell(line)


def _model_line(cfg: DictConfig, parts: Learner) -> str:
    count = sum(parameter.numel() for parameter in parts.model.parameters())
    where = parts.engine.describe(parts.optimizer)
    return f"model   {cfg.model['_target_'].rpartition('.')[2]}, {count:,} parameters on {where}"


def _show_inputs(parts: Learner, logger: Logger, *, images: int, graph: bool) -> None:
    """Log training images and the graph of the model, where asked for."""
    if not images and not graph:
        return
    batch = next(iter(parts.data.train.epoch(0)))
    x = batch[0] if isinstance(batch, (tuple, list)) else batch
    if not isinstance(x, Tensor):
        logger.message("logger.tensorboard: neither training images nor a graph, as the inputs are no tensors")
        return
    if images and x.ndim == 4:
        logger.images("train/images", x[:images], step=0)
    if graph and any(map(is_shard, parts.model.parameters())):  # all processes would have to compute it, at once
        logger.message("logger.tensorboard.graph: not drawn, as each process holds a part of the model only")
    elif graph:
        try:
            logger.graph(parts.model, parts.engine.move(x[:1]))
        except Exception as error:  # a task of one's own may call the model with something else
            logger.message(
                f"logger.tensorboard.graph: not drawn, as the model does not take a sample: {in_short(error)}"
            )


class Overlays:
    """Shows the first pictures of each validation: plain, with their targets, and with what the model found.

    Args:
        parts: The parts of the run.
        logger: Takes the pictures.
        count: How many of the first batch, at most; none of data without masks or boxes.
    """

    def __init__(self, parts: Learner, logger: Logger, count: int) -> None:
        self._parts, self._logger = parts, logger
        self._count = count if parts.data.info.task in PLACED and parts.engine.ranks.main else 0
        self._found = list[Any]()

    def reset(self) -> None:
        """Forget what was found: a validation begins."""
        self._found = []

    def update(self, preds: Any, *_more: Any) -> None:
        """Take in what was found in the first pictures; see `Meter.update`."""
        if len(self._found) < self._count:
            self._found += [mapped(Tensor.cpu, found_in(one)) for one in preds[: self._count - len(self._found)]]

    def validated(self, step: int, epoch: float) -> None:
        """Draw the pictures."""
        data = self._parts.data
        if not self._found or data.val is None:
            return
        with closing(data.val.epoch(0)) as batches:
            samples = [*zip(*data.val.unweighted(next(batches)), self._found)]
        for number, (image, *within) in enumerate(samples):
            image = image if data.normalizer is None else image * data.normalizer.scale + data.normalizer.shift
            plain = (255 * stretched(image[None])[0]).to(torch.uint8).expand(3, -1, -1)
            drawn = [overlaid(plain, each, data.info.class_names) for each in (None, *within)]
            self._logger.images(f"val/found/{number}", torch.cat(drawn, 2)[None], step=step)


def farewell(stop: Interrupted, folder: Path, *, saved: bool) -> str:
    """Word the last line of a run that a signal has ended."""
    if not saved:
        return f"ended by {stop}; nothing is saved, as checkpoints are off"
    return f"ended by {stop}, saved; go on with: lightkit resume {folder}"


def pausing(cfg: DictConfig, folder: Path, state: State, reason: str) -> str:
    """Word the last line of a run that goes on later."""
    best = "" if state.best_value is None else f"; best {cfg.metrics.monitor} {state.best_value:.4g}"
    where = f"paused at step {state.step}, epoch {state.epoch} ({reason}){best}"
    return f"{where}; go on with: lightkit resume {folder} trainer.stop_at=null"


def conclude(
    cfg: DictConfig, folder: Path, data: Data, state: State, logger: Logger, *, system: Mapping[str, Any]
) -> None:
    """Log the status, the closing table, and how the machine was used.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        data: Its data.
        state: The counters and values at the end.
        logger: Takes all that.
        system: What was seen of the machine.
    """
    values = summary.final_values(state, data.more)
    logger.end("finished")
    columns, rows = summary.final_table(values, state.best if state.best_step != state.step else {})
    logger.table(_title(cfg, state, tested="test" in columns), columns, rows)
    ended = [f"ended   {state.stop_reason}"] if state.stop_reason is not None else []
    limits = [f"part    {line}" for line in about_limits(cfg, data)]
    for line in [*ended, *limits, *usage.lines(dict(system)), f"folder  {folder}"]:
        logger.message(line)


def _title(cfg: DictConfig, state: State, *, tested: bool) -> str:
    monitor = cfg.metrics.monitor
    best = "" if state.best_value is None else f"; best {monitor} {state.best_value:.4g} at step {state.best_step}"
    kept = cfg.checkpoint.enabled and cfg.checkpoint.keep_best > 0 and state.best_step is not None
    weights = "the best" if cfg.trainer.test == "best" and kept else "the last"
    steps = f"{state.step} step{'s' * (state.step != 1)}"
    return f"result after {steps}{best}" + (f"; tested with {weights} weights" if tested else "")
