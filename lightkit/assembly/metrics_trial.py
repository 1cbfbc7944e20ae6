"""All metrics on a few samples before the run begins: one that cannot be computed must not cost a training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from lightkit.assembly.dry_run import attempt, copies, is_small, unnoticed
from lightkit.common.errors import UserError
from lightkit.data import Data, Loader
from lightkit.data.loaders import small_batch, whole_batch
from lightkit.device import Engine
from lightkit.trainer.tasks import Criterion, StepOutput, Supervised, Task

Parts = tuple[nn.Module, Task, Criterion]


class Tried(NamedTuple):
    """Metrics of a split that have counted something, and the values that came out."""

    meter: Any
    values: dict[str, float]


def try_metrics(
    data: Data,
    model: nn.Module,
    task: Task,
    criterion: Criterion,
    engine: Engine,
    metrics: Mapping[str, Any],
    *,
    monitor: str,
) -> dict[str, Tried]:
    """Update and compute metrics made anew for each split, with the outputs for two of its samples.

    What fails there, or does not give the monitored value, is tried once more on the whole split, as its evaluation
    would do it: only what fails there too is refused. Nothing is left behind: no random number, no count, no buffer.
    Where no outputs are to be had (the samples cannot be read here, the model wants more of them, or the task gives
    none), nothing is said.

    Args:
        data: The data.
        model: The network on its device, unwrapped.
        task: How a batch becomes inputs of the metrics.
        criterion: The loss.
        engine: Device and precision.
        metrics: The metrics by split; not changed.
        monitor: Name of the value that decides what is best.

    Returns:
        What came out, by split; nothing of those without outputs.

    Raises:
        UserError: A metric does not take what the model gives, or cannot be computed.
    """
    if not metrics or any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        return {}
    with unnoticed(engine.device):
        own = copies(model, task, criterion) if is_small(model) else None
        parts: Parts = own or (model, task, criterion)
        found = {}
        for split, loader in data.loaders().items():
            # In training, a task of the user's may give something else than outside of it.
            training = split == "train" and type(task) is not Supervised
            if split in metrics and (own or not training):
                found[split] = _tried(loader, metrics[split], parts, engine, training=training, monitor=monitor)
    return {split: tried for split, tried in found.items() if tried is not None}


def _tried(loader: Loader, meter: Any, parts: Parts, engine: Engine, *, training: bool, monitor: str) -> Tried | None:
    """Compute metrics of two samples of the split, or else of all of it; return None where there are no outputs."""
    model = parts[0]
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        few = _first(loader, parts, engine)
        if few is None or (not few.log and (few.preds is None or few.target is None)):
            return None
        with suppress(UserError):
            tried = _counted(meter.anew(), [(few, 2)], engine)
            if monitor in tried.values or not monitor.startswith(f"{meter.prefix}/"):
                return tried
        return _counted(meter.anew(), _all(loader, parts, engine), engine)
    finally:
        for module, mode in modes:
            module.training = mode


def _counted(meter: Any, steps: Iterable[tuple[StepOutput, int]], engine: Engine) -> Tried:
    for step, size in steps:
        meter.update(step.preds, step.target, step.loss, engine.ranks.own(size)[1], step.metric_kwargs, log=step.log)
    return Tried(meter, meter.compute())


def _first(loader: Loader, parts: Parts, engine: Engine) -> StepOutput | None:
    """Return the outputs for a small batch, or else for a whole one; None where both fail."""
    for read in (small_batch, whole_batch):
        step, error = attempt(lambda read=read: _step(read(loader), parts, engine))  # type: ignore[misc]
        if error is None:
            return step if isinstance(step, StepOutput) else None
    return None


def _all(loader: Loader, parts: Parts, engine: Engine) -> Iterator[tuple[StepOutput, int]]:
    """Yield outputs and size of each batch of the split, up to one that fails: that is for the run to report."""
    left, read = loader.num_samples, loader.epoch(0)
    with closing(engine.prefetch(read)) as batches:
        for batch in batches:
            step, error = attempt(lambda batch=batch: _step(batch, parts, engine))  # type: ignore[misc]
            if error is not None:
                return
            yield step, min(loader.batch_size, left)
            left -= loader.batch_size


def _step(batch: Any, parts: Parts, engine: Engine) -> StepOutput:
    model, task, criterion = parts
    with torch.no_grad(), engine.autocast():
        return task.step(model, engine.move(batch), criterion)
