"""Whether an evaluation gives the same twice, changes nothing, and depends on no batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.common.failures import in_short
from lightkit.common.modules import hooked, tensors
from lightkit.data.loaders import Loader
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, able, named, percent, sized
from lightkit.doctor.training.probing import (
    DROPPING,
    alike,
    batches_of,
    outputs,
    plain_loader,
    seeded,
    some_steps,
)
from lightkit.trainer.evaluate import evaluate

_ROWS = 128
_SMALLER = 3
"""Size of the smaller batches: there are more of them than metrics count at once."""
_ROUNDING = 1e-5
"""Difference of the outputs from which on a sample may fall into another class by rounding alone."""
_TOLERANCE = 1e-3
"""Share of the size of the outputs up to which they count as the same: a GPU, or another size of a sum, rounds."""


@able(as_run=True)
def check(run: ExaminedRun) -> Iterator[Finding]:
    """Evaluate a few rows again and again, after a few steps that fill the statistics of norm layers."""
    learner = run.learner()
    yield from _still_training(learner)
    if learner.task.parts:
        yield Finding("evaluation", "skipped", "a task with several optimizers may draw what it shows to the metrics")
        return
    some_steps(learner, 2, run.rows(learner.data.train.batch_size))
    split = "val" if learner.data.val is not None and learner.data.val.num_samples > 1 else "train"
    rows = min(run.rows(_ROWS), learner.data.loaders()[split].num_samples)
    rows -= (rows - 1) % _SMALLER if rows > _SMALLER else 0  # the last small batch has one row, which then weighs most
    whole = plain_loader(learner, split, rows=rows, batch_size=rows)
    before = {name: tensor.detach().clone() for name, tensor in learner.model.state_dict().items()}
    first, second = outputs(learner, whole, key=1), outputs(learner, whole, key=2)
    if not first:
        yield Finding("evaluation", "skipped", "the task hands no outputs on")
        return
    same = _difference(first, second)
    yield _repeated(learner, same, whole, inputs_differ=same > _TOLERANCE and _inputs_differ(learner, whole))
    changed = [name for name, tensor in learner.model.state_dict().items() if not torch.equal(tensor, before[name])]
    if changed:
        why = "a validation then changes what is trained and saved, and a resume no longer gives the same"
        fix = "change buffers only `if self.training`"
        measured = f"it changes {named(changed)} of the model"
        yield Finding("evaluation changes", "error", measured, why, "model", fix, {"changed": changed})
    if same <= _TOLERANCE:
        parts = plain_loader(learner, split, rows=rows, batch_size=min(_SMALLER, rows))
        try:
            smaller = outputs(learner, parts, key=1)
        except Exception as error:
            yield _neighbours(learner, whole, f"a batch of one row fails in evaluation ({in_short(error)})", {})
            return
        yield from _independent(learner, first, smaller, split, whole)


def _difference(one: list[Tensor], other: list[Tensor]) -> float:
    """Return the largest difference of outputs, as a share of their size."""
    pairs = [*zip(chain.from_iterable(one), chain.from_iterable(other), strict=True)]
    # Batches are padded to lengths of their own.
    cuts = [tuple(map(slice, map(min, a.shape, b.shape))) for a, b in pairs]
    a, b = (torch.cat([row[cut].flatten() for row, cut in zip(rows, cuts)]) for rows in zip(*pairs))
    if bool((a.isnan() != b.isnan()).any()):
        return math.inf
    a, b = a.nan_to_num(), b.nan_to_num()
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))


def _inputs_differ(learner: Learner, loader: Loader) -> bool:
    """Tell whether two readings of a loader give other inputs, so that the network is not to blame."""
    readings = []
    for key in (1, 2):
        seeded(learner, key)
        readings.append([batch[0] for batch in batches_of(learner, loader) if isinstance(batch, tuple | list)])
    pairs = zip(*readings, strict=True)
    return any(isinstance(one, Tensor) and not torch.equal(one, other) for one, other in pairs)


def _still_training(learner: Learner) -> Iterator[Finding]:
    """Find modules that `model.eval()` leaves in training mode and that compute something else there."""
    learner.network.train()
    learner.network.eval()
    left = [
        name
        for name, module in learner.model.named_modules()
        if module.training and isinstance(module, (*DROPPING, nn.modules.batchnorm._BatchNorm))
    ]
    if left:
        kinds = named([f"`{name}` ({type(learner.model.get_submodule(name)).__name__})" for name in left])
        measured = f"model.eval() leaves {kinds} in training mode"
        why = "validation and test drop values, or normalize by the batch and change its averages, as in training"
        fix = "no .train() in forward; an own `def train(self, mode=True)` ends with super().train(mode)"
        yield Finding("evaluation mode", "error", measured, why, "model", fix, {"modules": left})


def first_difference(learner: Learner, loader: Loader, rows: int | None = None) -> str:
    """Name the module at which two evaluations of the same rows part; empty where none is found.

    Args:
        learner: The model.
        loader: One batch of rows.
        rows: How many of the first ones the second evaluation gets; None gives it all.
    """
    batch = next(batches_of(learner, loader))
    if not isinstance(batch, tuple | list) or not isinstance(batch[0], Tensor):
        return ""
    seen, culprits = dict[str, list[Tensor]](), list[str]()
    count = rows or len(batch[0])

    def look(event: str, culprit: str, value: Any) -> None:
        now = [each[:count].detach().clone() for each in tensors(value) if each.ndim]
        before = seen.setdefault(event, now)
        if not all(alike(one, other, 1e-3, 1e-5) for one, other in zip(before, now, strict=False)):
            culprits.append(culprit)

    def before(name: str, _module: nn.Module, inputs: Any) -> None:
        look(f"{name} gets", name.rpartition(".")[0], inputs)  # which made what a module gets

    def after(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        look(f"{name} gives", name, output)

    with torch.no_grad(), hooked(learner.model, before, after):
        for number, size in enumerate((len(batch[0]), count)):
            seeded(learner, number)
            learner.network(batch[0][:size])
    if not culprits:
        return ""
    kind = type(learner.model.get_submodule(culprits[0])).__name__
    return f"`{culprits[0]}` ({kind})" if culprits[0] else f"forward of {kind}"


def _at(learner: Learner, loader: Loader, rows: int | None = None) -> str:
    with suppress(Exception):  # a task of one's own may call the model otherwise
        place = first_difference(learner, loader, rows)
        return f", first at {place}" if place else ""
    return ""


def _repeated(learner: Learner, difference: float, loader: Loader, *, inputs_differ: bool) -> Finding:
    rows = loader.num_samples
    name, numbers = "evaluation", {"difference": difference, "rows": rows}
    if difference <= _TOLERANCE:
        return Finding(name, "ok", f"twice the same outputs for {sized(rows, 'row')}", numbers=numbers)
    measured = f"the outputs for {sized(rows, 'row')} differ by {percent(difference)} from one time to the next"
    why = "validation then measures chance too: the best checkpoint is a lucky one, and no figure can be reproduced"
    if inputs_differ:
        fix = "no random numbers in the data set: move random transforms to data.augment, which is for training only"
        return Finding(name, "error", f"{measured}, as the inputs do", why, "data.dataset", fix, numbers)
    fix = "F.dropout(x, training=self.training), and no random numbers in forward unless self.training"
    measured += _at(learner, loader)
    return Finding(name, "error", measured, why, "model", fix, numbers)


def _neighbours(learner: Learner, whole: Loader, measured: str, numbers: dict[str, Any]) -> Finding:
    """Say that the outputs of a row depend on the other rows of its batch, and where that begins."""
    norms = [
        f"`{name}` ({type(module).__name__}) normalizes by the statistics of the batch (track_running_stats=False)"
        for name, module in learner.model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None
    ]
    measured += f": {named(norms)}" if norms else _at(learner, whole, min(_SMALLER, whole.num_samples))
    why = "a sample is judged by its neighbours in the batch: alone, or in another order, it gets another answer"
    fix = "no softmax, mean or std over dim=0; batch_first=True for (batch, time, features)"
    fix = "track_running_stats=True, or nn.LayerNorm or nn.GroupNorm" if norms else fix
    return Finding("batch size", "error", measured, why, "model", fix, numbers)


def _independent(
    learner: Learner, one: list[Tensor], parts: list[Tensor], split: str, whole: Loader
) -> Iterator[Finding]:
    name, rows = "batch size", whole.num_samples
    difference = _difference(one, parts)
    numbers: dict[str, Any] = {"difference": difference, "rows": rows}
    if difference > _TOLERANCE:
        size = percent(difference) if math.isfinite(difference) else "more than any number"
        measured = f"in batches of {min(_SMALLER, rows)} the outputs differ by {size} from those in one"
        yield _neighbours(learner, whole, measured, numbers)
        return
    sizes = min(rows, learner.data.loaders()[split].batch_size), min(_SMALLER, rows)
    large, small = numbers["metrics"] = [_metrics(learner, split, rows, size) for size in sizes]
    if getattr(learner.criterion, "compares_samples", False):
        small.pop(f"{split}/loss", None)
    flips = 0.0 if difference < _ROUNDING else 1.5 / rows
    differing = [key for key, value in large.items() if key in small and _differ(value, small[key], flips)]
    if not differing:
        measured = f"outputs and {sized(len(large), 'metric')} are the same in batches of any size"
        yield Finding(name, "ok", measured, numbers=numbers)
        return
    both = named([f"{key} ({large[key]:.4g} and {small[key]:.4g})" for key in differing])
    measured = f"in batches of {sizes[0]} and of {sizes[1]} it differs: {both}"
    if differing == [f"{split}/loss"]:
        why = "the loss of a batch is no mean over its samples, so the one of a split depends on the batches"
        yield Finding(name, "note", measured, why, "loss", numbers=numbers)
    else:
        why = "the figure depends on data.eval_batch_size: a mean over batches is no mean over samples"
        fix = "let the metric add up in update and divide in compute"
        yield Finding(name, "warning", measured, why, "metrics", fix, numbers)


def _differ(one: float, other: float, flips: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) != math.isnan(other)
    return abs(one - other) > max(1e-3 * abs(one), 1e-6) + flips


def _metrics(learner: Learner, split: str, rows: int, batch_size: int) -> dict[str, float]:
    meter = learner.metrics[split]
    meter.reset()
    seeded(learner, 1)
    loader = plain_loader(learner, split, rows=rows, batch_size=batch_size)
    evaluate(learner, loader, [meter])
    values: dict[str, float] = meter.compute()
    meter.reset()
    return values
