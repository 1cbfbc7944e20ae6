"""What the network is worth beside answers that need none: always the same one, or one without inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lightkit.assembly import Learner
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.course import (
    FEWEST_EPOCHS,
    Course,
    evaluated,
    same,
    train_briefly,
    with_others_targets,
    without_inputs,
)
from lightkit.doctor.training.probing import batches_of

BASELINES, SHUFFLED = "baselines", "shuffled labels"
_BETTER = 0.03
"""Share of the loss of a baseline by which a network has to be below it to have used its inputs."""
_TOO_GOOD = 0.1
"""The same, from which an answer is too good for what it can know; of few rows more, as chance helps there."""
_ENOUGH_STEPS = 100
"""Optimizer steps after which a network that learns at all is better than one without inputs."""
_FEWEST_STEPS = 10
"""Optimizer steps below which nothing is said of what a network could know."""
_STEPS_OF_NORMS = 30
"""Optimizer steps below which the averages of a batch norm are still those that it began with."""
_FEWEST_JUDGED = 12
"""Rows to judge by, of fewer of which nothing bad is said."""
_GREW = 1.3
"""Times the first loss to which that of a network without inputs has grown where the steps are too large."""
_FEWEST_ROWS, _FEW_ROWS = 20, 100


def check(patient: Patient) -> Iterator[Finding]:
    """Train the network as it is, without inputs, and with targets that belong to other rows; compare the three."""
    sample = patient.sample
    why = _cannot(sample)
    if why:
        yield Finding(BASELINES, "skipped", why)
        yield Finding(SHUFFLED, "skipped", why)
        return
    split = next((name for name in ("val", "test") if name in sample.splits), "train")
    plain = train_briefly(patient, split, same)
    blank = train_briefly(patient, split, without_inputs, steps=plain.steps)
    constant = _constant_loss(patient, split, plain)
    yield _compared(sample, split, plain, blank, constant)
    if patient.seconds_left() < 1 or plain.steps < _FEWEST_STEPS:
        yield Finding(SHUFFLED, "skipped", "there was no time for enough steps")
        return
    # Targets of other rows can be known of no row, so training rows serve as well where there are few others.
    many = split if len(sample.data.rows[split]) >= _FEW_ROWS else "train"
    shuffled = train_briefly(patient, many, with_others_targets, steps=min(plain.steps, _ENOUGH_STEPS))
    yield _judged_shuffled(shuffled, blank, constant if many == split else _constant_loss(patient, many, plain))


def _cannot(sample: DataSample) -> str:
    """Say why there is nothing to compare; empty where there is."""
    train = sample.train
    if not sample.has_inputs:
        return "samples are no pairs of a tensor and a target, so there are no inputs to take away"
    if train.total < _FEWEST_ROWS or min(len(sample.data.rows[name]) for name in sample.splits) < 8:
        return "there are too few rows"
    return ""


def _constant_loss(patient: Patient, split: str, plain: Course) -> float | None:
    """Return the loss of the best answer that is the same for all rows; None where the outputs mean something else."""
    y, preds = patient.sample.targets("train"), plain.last
    if y is None or preds is None:
        return None
    learner = patient.learner()
    if getattr(learner.criterion, "compares_samples", False):
        return None
    try:
        found = [
            _loss_of_constant(learner, split, answer.to(preds.device, torch.float32))
            for answer in _constants(patient.sample, y, preds.shape)
        ]
    except Exception:  # a loss of one's own may take anything
        return None
    finite = [loss for loss in found if math.isfinite(loss)]
    return min(finite) if finite else None


def _constants(sample: DataSample, y: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    """Yield outputs for one sample that could be best for all: shares of classes as logits, mean and median."""
    info = sample.data.info
    if info.task in ("multiclass", "language_modeling"):
        if shape[-1] == info.num_classes:
            counts = torch.bincount(y.flatten().to(torch.int64), minlength=info.num_classes).double() + 0.5
            yield (counts / counts.sum()).log()
    elif info.task in ("binary", "multilabel"):
        shares = ((y.double().sum(0) + 0.5) / (len(y) + 1)).clamp(1e-6, 1 - 1e-6)
        yield torch.logit(shares)
    elif info.task == "regression":
        yield y.double().mean(0)
        yield y.double().median(0).values


def _loss_of_constant(learner: Learner, split: str, answer: Tensor) -> float:
    """Measure the loss of one output for all samples."""
    total, counted = 0.0, 0
    with torch.no_grad():
        for _, y in batches_of(learner, evaluated(learner, split)):
            shape = (*y.shape, len(answer)) if not y.is_floating_point() else y.shape
            total += float(learner.criterion(answer.expand(shape), y)) * len(y)
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
    if constant is not None and blank.beats(constant, _TOO_GOOD):
        return Finding(
            BASELINES,
            "error",
            measured,
            why="without inputs nothing can be better than the best answer for all: the targets reach the network",
            key="trainer.task",
            fix="look for a way of the targets into the network: in the task, in the model, or in the data set",
            numbers=numbers,
        )
    known = [loss for loss in (blank.loss, constant) if loss is not None and math.isfinite(loss)]
    if not known or not math.isfinite(plain.loss):
        return Finding(BASELINES, "skipped", f"{measured}; what is no number cannot be compared", numbers=numbers)
    limit = min(known)
    grew = blank.steps >= _FEWEST_STEPS and blank.train_loss > _GREW * blank.first_loss
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
    by_heart = plain.train_loss < blank.train_loss - 3 * _BETTER * abs(blank.train_loss)
    return Finding(
        BASELINES,
        "warning",
        measured,
        why=f"what it learns of training rows does not hold for {split}: inputs may belong to other targets"
        if by_heart
        else "it learns nothing from its inputs: they may not belong to their targets, or say nothing about them",
        key="data.dataset",
        fix="look at inputs beside their targets: `lightkit show data`",
        numbers=numbers | {"train_loss": plain.train_loss, "train_loss_without_inputs": blank.train_loss},
    )


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


def _judged_shuffled(shuffled: Course, blank: Course, constant: float | None) -> Finding:
    """Say whether a network knows targets that have nothing to do with its inputs."""
    chance = blank.loss if constant is None else constant  # a network that is told the targets needs no inputs
    measured = f"with the targets of other rows the loss after {shuffled.steps} steps is {shuffled.told()}"
    measured += f", by chance {chance:.3g}"
    numbers = {"steps": shuffled.steps, "loss": shuffled.loss, "chance": chance}
    if not math.isfinite(shuffled.loss) or not math.isfinite(chance):
        return Finding(SHUFFLED, "skipped", f"{measured}; what is no number cannot be compared", numbers=numbers)
    if not shuffled.beats(chance, _TOO_GOOD):
        return Finding(SHUFFLED, "ok", measured, numbers=numbers)
    return Finding(
        SHUFFLED,
        "error",
        measured,
        why="targets that belong to other rows cannot be learned: the network is given them",
        key="trainer.task",
        fix="look for a way of the targets into the network: in the task, in the model, or in the data set",
        numbers=numbers,
    )
