"""What the network is worth beside answers that need none: always the same one, or one without inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding, Status
from lightkit.doctor.training.loss import Objective, class_axis
from lightkit.doctor.training.probing import batches_of, fitted
from lightkit.doctor.training.trials import (
    FEWEST_EPOCHS,
    Course,
    evaluated,
    explained,
    same,
    train_briefly,
    without_inputs,
)

BASELINES = "baselines"
_BETTER = 0.03
"""Share of the loss of a baseline by which a network has to be below it to have used its inputs."""
_ENOUGH_STEPS = 100
"""Optimizer steps after which a network that learns at all is better than one without inputs."""
_FEWEST_STEPS = 10
"""Optimizer steps below which nothing is said of what a network could know."""
_STEPS_OF_NORMS = 30
"""Optimizer steps below which the averages of a batch norm are still those that it began with."""
_FEWEST_JUDGED, _FEWEST_UNUSUAL = 12, 30
"""Rows to judge by, and those whose target is not the usual one, of fewer of which nothing bad is said."""
_GREW = 0.3
"""Share of the first loss by which that of a network without inputs has grown where the steps are too large."""
_FEWEST_ROWS = 20
_FITTED_ROWS, _FIT_STEPS, _FIT_NUMBERS = 1024, 100, 4_000_000
"""Training targets to which a constant answer is fitted, steps of that, and most numbers of the outputs in a step."""


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Train the network as it is and without inputs, and compare both with the best answer that needs no network."""
    sample = run.sample
    objective: Objective | str = "there are too few rows"
    if not sample.has_inputs:
        objective = "samples are no pairs of a tensor and a target, so there are no inputs to take away"
    elif sample.train.total >= _FEWEST_ROWS and min(len(sample.data.rows[name]) for name in sample.splits) >= 8:
        objective = Objective.of(run)
    if isinstance(objective, str):
        yield Finding(BASELINES, "skipped", objective)
        return
    faults = [finding for finding in (objective.find_leak(), *objective.find_wrong_sign()) if finding.is_bad]
    if faults:
        yield Finding(BASELINES, "skipped", f"what {faults[0].check!r} found decides what is learnt")
        return
    split = next((name for name in ("val", "test") if name in sample.splits), "train")
    plain = train_briefly(run, split, same)
    blank = train_briefly(run, split, without_inputs, steps=plain.steps)
    judged = _compared(sample, split, plain, blank, constant_loss(run, objective, split))
    yield explained(run, split, judged, plain.steps) if judged.status == "warning" else judged


def constant_loss(run: ExaminedRun, objective: Objective, split: str) -> float | None:
    """Return the loss of the best answer that is the same for all rows; None where there is none such.

    It is fitted to targets of training by the loss of the run, with its weights and what it ignores, once for all
    positions of a sequence and once for each.

    Args:
        run: The run.
        objective: What its loss is given.
        split: The split to measure it on.
    """
    criterion, y = objective.learner.criterion, run.sample.train.y
    if getattr(criterion, "compares_samples", False) or y is None or not torch.equal(objective.target, objective.y):
        return None
    numbers = max(math.prod(objective.preds.shape[1:]), 1)
    y = y[: max(1, min(_FITTED_ROWS, _FIT_NUMBERS // numbers))].to(objective.y.device)
    rate = 0.1 * max(float(y.float().std()) if y.is_floating_point() and y.numel() > 1 else 1.0, 1e-6)
    constants = list[float]()
    try:
        for start in _constants(objective, y):
            losses, answer = fitted(
                lambda free: criterion(free.expand(len(y), *free.shape), y), start, rate=rate, steps=_FIT_STEPS
            )
            # As of a loss without end, which falls for ever.
            falling = (
                len(losses) == _FIT_STEPS and losses[-20] - min(losses) > 0.1 * abs(losses[0] - min(losses)) + 1e-6
            )
            constants += [] if falling else [_loss_of_constant(objective, split, answer)]
    except Exception:  # a loss of one's own may take anything
        return None
    return min((loss for loss in constants if math.isfinite(loss)), default=None)


def _constants(objective: Objective, y: Tensor) -> Iterator[Tensor]:
    """Yield outputs for one sample that may be good for all: shares of classes as logits, mean and median."""
    preds, task = objective.preds, objective.learner.data.info.task
    if not y.is_floating_point() and preds.ndim == y.ndim + 1:
        axis = class_axis(preds, objective.y)
        for each in (y, y.reshape(-1, *[1] * (y.ndim - 1))) if y.ndim > 1 else (y,):
            inside = (each >= 0) & (each < preds.shape[axis])
            counts = functional.one_hot(each * inside, preds.shape[axis]) * inside[..., None]
            shares = counts.float().sum(0) + 0.5
            logits = (shares / shares.sum(-1, keepdim=True)).log().movedim(-1, axis - 1)
            yield logits.expand(preds.shape[1:])
    elif preds.shape[1:] == y.shape[1:]:
        y = y.float()
        if task in ("binary", "multilabel"):
            yield torch.logit(((y.sum(0) + 0.5) / (len(y) + 1)).clamp(1e-6, 1 - 1e-6))
        else:
            yield y.mean(0)
            yield y.median(0).values
    else:
        yield preds.float().mean(0)


def _loss_of_constant(objective: Objective, split: str, answer: Tensor) -> float:
    """Measure the loss of one output for all samples."""
    learner, total, counted = objective.learner, 0.0, 0
    with torch.no_grad():
        for _, y in batches_of(learner, evaluated(learner, split)):
            total += float(learner.criterion(answer.expand(len(y), *answer.shape), y)) * len(y)
            counted += len(y)
    return total / counted


def _compared(sample: DataSample, split: str, plain: Course, blank: Course, constant: float | None) -> Finding:
    """Say what the network is worth beside answers that do not look at the inputs."""
    always = "" if constant is None else f", always the same answer {constant:.3g}"
    measured = f"loss on {split} after {plain.steps} steps: {plain}; without inputs {blank}{always}"
    numbers: dict[str, Any] = {
        "steps": plain.steps,
        "loss": plain.loss,
        "without_inputs": blank.loss,
        "constant": constant,
        "accuracy": plain.accuracy,
        "accuracy_without_inputs": blank.accuracy,
    }
    known = [loss for loss in (blank.loss, constant) if loss is not None and math.isfinite(loss)]
    if not known or not math.isfinite(plain.loss):
        return Finding(BASELINES, "skipped", f"{measured}; what is no number cannot be compared", numbers=numbers)
    limit = min(known)
    grew = blank.steps >= _FEWEST_STEPS and blank.train_loss > blank.first_loss + _GREW * abs(blank.first_loss)
    if grew and plain.loss > limit:
        why = "without inputs there is one answer to find, and the loss grew instead: the steps are too large"
        numbers |= {"first_loss": blank.first_loss, "train_loss_without_inputs": blank.train_loss}
        fix = "a smaller optim.lr: `lightkit find lr` measures one"
        return Finding(BASELINES, "warning", measured, why, "optim.lr", fix, numbers)
    verdict = _no_verdict(sample, plain, blank, limit)
    if verdict is not None:
        return Finding(BASELINES, verdict[0], measured + verdict[1], numbers=numbers)
    why = "it learns nothing from its inputs: they may not belong to their targets, or say nothing about them"
    if plain.train_loss < blank.train_loss - 3 * _BETTER * abs(blank.train_loss):
        why = f"what it learns of training rows does not hold for {split}: inputs may belong to other targets"
    fix = "look at inputs beside their targets: `lightkit show data`"
    numbers |= {"train_loss": plain.train_loss, "train_loss_without_inputs": blank.train_loss}
    return Finding(BASELINES, "warning", measured, why, "data.dataset", fix, numbers)


def _no_verdict(sample: DataSample, plain: Course, blank: Course, limit: float) -> tuple[Status, str] | None:
    """Say why the network is not blamed: it is better, or too little was seen; None where it is."""
    if plain.beats(limit, _BETTER) or _more_right(plain, blank):
        return "ok", ""
    epochs = plain.steps / max(len(sample.data.train), 1)
    if plain.steps < _STEPS_OF_NORMS or (plain.steps < _ENOUGH_STEPS and epochs < FEWEST_EPOCHS):
        return "skipped", "; so few steps say nothing"
    if plain.loss < limit - _BETTER * abs(limit):
        return "ok", "; of so few rows that may be chance"
    if plain.answers < _FEWEST_JUDGED:
        return "skipped", "; so few rows say nothing"
    y = sample.targets("train")
    usual = 0.0 if y is None else float(y.unique(return_counts=True)[1].max()) / y.numel()
    if usual > 0.5 and plain.answers * (1 - usual) < _FEWEST_UNUSUAL:
        return "skipped", f"; {usual:.0%} of the targets are the same, and the others are too few to judge by"
    return None


def _more_right(plain: Course, blank: Course) -> bool:
    """Tell whether one network is right more often than another, and not by chance."""
    if plain.accuracy is None or blank.accuracy is None:
        return False
    return plain.accuracy - blank.accuracy >= 0.1 + plain.answers**-0.5
