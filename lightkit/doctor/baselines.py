"""What the network is worth beside answers that need none: always the same one, or one without inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.course import (
    FEWEST_EPOCHS,
    Course,
    evaluated,
    explained,
    same,
    train_briefly,
    without_inputs,
)
from lightkit.doctor.training.objective import Objective, class_axis
from lightkit.doctor.training.probing import batches_of

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


def check(patient: Patient) -> Iterator[Finding]:
    """Train the network as it is and without inputs, and compare both with the best answer that needs no network."""
    sample = patient.sample
    objective: Objective | str = _cannot(sample) or Objective.of(patient)
    if isinstance(objective, str):
        yield Finding(BASELINES, "skipped", objective)
        return
    faults = [found for found in (objective.find_leak(), *objective.find_wrong_sign()) if found.is_bad]
    if faults:
        yield Finding(BASELINES, "skipped", f"what {faults[0].check!r} found decides what is learnt")
        return
    split = next((name for name in ("val", "test") if name in sample.splits), "train")
    plain = train_briefly(patient, split, same)
    blank = train_briefly(patient, split, without_inputs, steps=plain.steps)
    judged = _compared(sample, split, plain, blank, constant_loss(patient, objective, split))
    yield explained(patient, split, judged, plain) if judged.status == "warning" else judged


def _cannot(sample: DataSample) -> str:
    """Say why there is nothing to compare; empty where there is."""
    train = sample.train
    if not sample.has_inputs:
        return "samples are no pairs of a tensor and a target, so there are no inputs to take away"
    if train.total < _FEWEST_ROWS or min(len(sample.data.rows[name]) for name in sample.splits) < 8:
        return "there are too few rows"
    return ""


def constant_loss(patient: Patient, objective: Objective, split: str) -> float | None:
    """Return the loss of the best answer that is the same for all rows; None where there is none such.

    It is fitted to targets of training by the loss of the run, with its weights and what it ignores, once for all
    positions of a sequence and once for each.

    Args:
        patient: The run.
        objective: What its loss is given.
        split: The split to measure it on.
    """
    learner, y = objective.learner, patient.sample.train.y
    if (
        getattr(learner.criterion, "compares_samples", False)
        or y is None
        or not torch.equal(objective.target, objective.y)
    ):
        return None
    shape = objective.preds.shape[1:]
    y = y[: max(1, min(_FITTED_ROWS, _FIT_NUMBERS // max(math.prod(shape), 1)))].to(objective.y.device)
    found = list[float]()
    try:
        for start in _constants(objective, y):
            answer = _fitted(learner.criterion, start, y)
            if answer is not None:
                found.append(_loss_of_constant(objective, split, answer))
    except Exception:  # a loss of one's own may take anything
        return None
    return min((loss for loss in found if math.isfinite(loss)), default=None)


def _constants(objective: Objective, y: Tensor) -> Iterator[Tensor]:
    """Yield outputs for one sample that may be good for all: shares of classes as logits, mean and median."""
    preds, task = objective.preds, objective.learner.data.info.task
    if not y.is_floating_point() and preds.ndim == y.ndim + 1:
        axis = class_axis(preds, objective.y)
        for each in (y, y.reshape(-1, *[1] * (y.ndim - 1))) if y.ndim > 1 else (y,):
            inside = (each >= 0) & (each < preds.shape[axis])
            counts = torch.nn.functional.one_hot(each * inside, preds.shape[axis]) * inside[..., None]
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


def _fitted(criterion: Any, start: Tensor, y: Tensor) -> Tensor | None:
    """Make a constant answer better by the loss itself; None where that goes on for ever, as of a loss without end."""
    free = nn.Parameter(start.detach().clone().contiguous())
    size = float(y.float().std()) if y.is_floating_point() and y.numel() > 1 else 1.0
    optimizer = torch.optim.Adam([free], lr=0.1 * max(size, 1e-6))
    losses, best, answer = list[float](), math.inf, start
    for _ in range(_FIT_STEPS):
        loss = criterion(free.expand(len(y), *free.shape), y)
        losses.append(float(loss.detach()))
        if losses[-1] < best:
            best, answer = losses[-1], free.detach().clone()
        if not loss.requires_grad or not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    falling = len(losses) == _FIT_STEPS and losses[-20] - best > 0.1 * abs(losses[0] - best) + 1e-6
    return None if falling else answer


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
    same = "" if constant is None else f", always the same answer {constant:.3g}"
    measured = f"loss on {split} after {plain.steps} steps: {plain.told()}; without inputs {blank.told()}{same}"
    numbers = {
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
        return _too_large_steps(measured, numbers, blank)
    if plain.beats(limit, _BETTER) or _more_right(plain, blank):
        return Finding(BASELINES, "ok", measured, numbers=numbers)
    epochs = plain.steps / max(len(sample.data.train), 1)
    if plain.steps < _STEPS_OF_NORMS or (plain.steps < _ENOUGH_STEPS and epochs < FEWEST_EPOCHS):
        return Finding(BASELINES, "skipped", f"{measured}; so few steps say nothing", numbers=numbers)
    if plain.loss < limit - _BETTER * abs(limit):
        return Finding(BASELINES, "ok", f"{measured}; of so few rows that may be chance", numbers=numbers)
    if plain.answers < _FEWEST_JUDGED:
        return Finding(BASELINES, "skipped", f"{measured}; so few rows say nothing", numbers=numbers)
    usual = _usual_share(sample.targets("train"))
    if usual > 0.5 and plain.answers * (1 - usual) < _FEWEST_UNUSUAL:
        told = f"{measured}; {usual:.0%} of the targets are the same, and the others are too few to judge by"
        return Finding(BASELINES, "skipped", told, numbers=numbers)
    by_heart = plain.train_loss < blank.train_loss - 3 * _BETTER * abs(blank.train_loss)
    why = (
        f"what it learns of training rows does not hold for {split}: inputs may belong to other targets"
        if by_heart
        else "it learns nothing from its inputs: they may not belong to their targets, or say nothing about them"
    )
    fix = "look at inputs beside their targets: `lightkit show data`"
    numbers = numbers | {"train_loss": plain.train_loss, "train_loss_without_inputs": blank.train_loss}
    return Finding(BASELINES, "warning", measured, why, "data.dataset", fix, numbers)


def _usual_share(y: Tensor | None) -> float:
    """Return the share of the most frequent target."""
    return 0.0 if y is None else float(y.unique(return_counts=True)[1].max()) / y.numel()


def _too_large_steps(measured: str, numbers: dict[str, Any], blank: Course) -> Finding:
    return Finding(
        BASELINES,
        "warning",
        measured,
        why="without inputs there is one answer to find, and the loss grew instead: the steps are too large",
        key="optim.lr",
        fix="a smaller optim.lr: `lightkit find lr` measures one",
        numbers=numbers | {"first_loss": blank.first_loss, "train_loss_without_inputs": blank.train_loss},
    )


def _more_right(plain: Course, blank: Course) -> bool:
    """Tell whether one network is right more often than another, and not by chance."""
    if plain.accuracy is None or blank.accuracy is None:
        return False
    return plain.accuracy - blank.accuracy >= 0.1 + plain.answers**-0.5
