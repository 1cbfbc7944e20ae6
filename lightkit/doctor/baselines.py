"""What the network is worth beside answers that need none: always the same one, and those of a network without inputs.

Shapes in this file: B samples of a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightkit.assembly import Learner
from lightkit.common.randomness import mix
from lightkit.data.loaders import Loader
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import batches_of, compute

BASELINES, SHUFFLED = "baselines", "shuffled labels"
_SECONDS, _SHARE = 3.0, 0.12
"""Longest time for one training, and the share of the time left that it may take."""
_MOST_STEPS, _FEWEST_EPOCHS, _LEAST_STEPS = 150, 5, 60
_WARMUP = 0.1
"""Share of the steps over which the learning rate rises."""
_JUDGED_ROWS = 256
_BETTER = 0.03
"""Share of the loss of a baseline by which a network has to be below it to have used its inputs."""
_TOO_GOOD = 0.1
"""The same, from which an answer is too good for what it can know; of few rows more, as chance helps there."""
_ENOUGH_STEPS = 100
"""Optimizer steps after which a network that learns at all is better than one without inputs."""
_FEWEST_STEPS = 10
"""Optimizer steps below which nothing is said of what a network could know."""
_FEWEST_ROWS, _FEW_ROWS = 20, 100

Change = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Changes inputs and targets of a batch, with its number."""


@dataclass(frozen=True)
class Course:
    """How a short training went."""

    steps: int
    """Optimizer steps taken."""
    train_loss: float
    """Mean loss of the last fifth of the steps."""
    loss: float
    """Mean loss on the rows that are judged by."""
    answers: int
    """How many targets these have."""
    accuracy: float | None
    """Share of right answers there; None where the task has no classes."""
    last: Tensor | None = field(default=None, compare=False)
    """What the network gave for the last batch that it was judged by."""

    def beats(self, loss: float, by: float) -> bool:
        """Tell whether this is below another loss by a share of it, and by so much more as chance may give."""
        return self.loss < loss - (by + 0.5 * self.answers**-0.5) * abs(loss) - 1e-6

    def told(self) -> str:
        """Put the result in words."""
        right = "" if self.accuracy is None else f", {self.accuracy:.0%} right"
        return f"{self.loss:.3g}{right}"


def check(patient: Patient) -> Iterator[Finding]:
    """Train the network as it is, without inputs, and with targets that belong to other rows; compare the three."""
    sample = patient.sample
    why = _cannot(sample)
    if why:
        yield Finding(BASELINES, "skipped", why)
        yield Finding(SHUFFLED, "skipped", why)
        return
    split = next((name for name in ("val", "test") if name in sample.splits), "train")
    plain = _course(patient, split, _same)
    blank = _course(patient, split, _without_inputs, steps=plain.steps)
    constant = _constant_loss(patient, split, plain)
    yield _compared(sample, split, plain, blank, constant)
    if patient.seconds_left() < 1 or plain.steps < _FEWEST_STEPS:
        yield Finding(SHUFFLED, "skipped", "there was no time for enough steps")
        return
    # Targets of other rows can be known of no row, so training rows serve as well where there are few others.
    many = split if len(sample.data.rows[split]) >= _FEW_ROWS else "train"
    shuffled = _course(patient, many, _with_others_targets, steps=min(plain.steps, _ENOUGH_STEPS))
    yield _judged_shuffled(shuffled, blank, constant if many == split else _constant_loss(patient, many, plain))


def _cannot(sample: DataSample) -> str:
    """Say why there is nothing to compare; empty where there is."""
    train = sample.train
    if not sample.has_inputs:
        return "samples are no pairs of a tensor and a target, so there are no inputs to take away"
    if train.total < _FEWEST_ROWS or min(len(sample.data.rows[name]) for name in sample.splits) < 8:
        return "there are too few rows"
    return ""


def _course(patient: Patient, split: str, change: Change, *, steps: int | None = None) -> Course:
    """Train a fresh network for a little while, and measure its loss on another split.

    Args:
        patient: The run.
        split: The split to judge by.
        change: What to do to each batch, there too.
        steps: Optimizer steps; None goes by the time there is.
    """
    learner = patient.learner()
    seconds = max(0.5, min(_SECONDS, _SHARE * patient.seconds_left()))
    until = time.monotonic() + seconds * (1.0 if steps is None else 1.5)  # the same steps, though the machine be busy
    train = learner.data.train
    # Not what the schedule makes of it: a warm-up begins far below.
    rates = [float(group.get("initial_lr", group["lr"])) for group in learner.optimizer.param_groups]
    per_epoch = max(len(train), 1)
    wanted = steps or min(_MOST_STEPS, max(_LEAST_STEPS, _FEWEST_EPOCHS * per_epoch))
    losses = list[float]()
    learner.network.train()
    for number, batch in enumerate(_training_batches(learner, wanted)):
        for group, rate in zip(learner.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (number + 1) / max(1.0, _WARMUP * wanted))
        step = compute(learner, change(*batch, number), key=number)
        learner.engine.backward(step.loss)
        learner.engine.step(learner.optimizer)
        losses.append(float(step.loss.detach()))
        if time.monotonic() > until or not math.isfinite(losses[-1]):
            break
    tail = losses[-max(1, len(losses) // 5) :]
    return _measured(learner, split, change, steps=len(losses), train_loss=sum(tail) / len(tail))


def _training_batches(learner: Learner, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield training batches of several epochs, augmented as in training, without mixup and in this process."""
    train = learner.data.train
    size = min(train.batch_size, train.num_samples)
    changes: dict[str, Any] = {"num_workers": 0, "persistent_workers": False, "pin_memory": False, "drop_last": True}
    loader = train.with_rows(train.rows, batch_size=size, **changes)
    loader.mixup = None
    done, epoch = 0, 0
    while done < count:
        for batch in loader.epoch(epoch):
            yield learner.engine.move(batch)
            done += 1
            if done == count:
                return
        epoch += 1


def _evaluated(learner: Learner, split: str) -> Loader:
    """Return a loader of some rows of a split, drawn at random, without augmentation."""
    loader = learner.data.evaluation(split)
    assert loader is not None, "asked before"
    generator = torch.Generator().manual_seed(mix("doctor", "judged"))
    rows = loader.rows[torch.randperm(len(loader.rows), generator=generator)[:_JUDGED_ROWS]]
    size = min(len(rows), max(loader.batch_size, 16))
    return loader.with_rows(rows, batch_size=size, num_workers=0, persistent_workers=False, pin_memory=False)


def _measured(learner: Learner, split: str, change: Change, *, steps: int, train_loss: float) -> Course:
    """Measure loss and right answers of a network on a split."""
    total, right, rows, answers, last = 0.0, 0, 0, 0, None
    learner.network.eval()
    learner.engine.seed_validation(0)
    loader = _evaluated(learner, split)
    with torch.no_grad():
        for number, (first, second) in enumerate(batches_of(learner, loader)):
            x, y = change(first, second, number)
            with learner.engine.autocast():
                step = learner.task.step(learner.network, (x, y), learner.criterion)
            total += float(step.loss) * len(x)
            rows, answers = rows + len(x), answers + (y.numel() if not y.is_floating_point() else len(y))
            last = step.preds
            if _has_classes(learner, last, y):
                assert last is not None, "just looked at"
                right += int((last.argmax(1) == y).sum())
    accuracy = right / rows if _has_classes(learner, last, y) else None
    return Course(steps, train_loss, total / rows, answers, accuracy, last)


def _has_classes(learner: Learner, preds: Tensor | None, y: Tensor) -> bool:
    info = learner.data.info
    return info.task == "multiclass" and preds is not None and preds.ndim == 2 and preds.shape[1] == info.num_classes


def _same(x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
    return x, y


def _without_inputs(x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Put zeros in the place of all inputs."""
    return torch.zeros_like(x), y


def _with_others_targets(x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Give each sample the target of another one of its batch."""
    generator = torch.Generator().manual_seed(mix("doctor", "shuffled", number))
    return x, y[torch.randperm(len(y), generator=generator).to(y.device)]


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
        for _, y in batches_of(learner, _evaluated(learner, split)):
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
    if plain.beats(limit, _BETTER) or _more_right(plain, blank):
        return Finding(BASELINES, "ok", measured, numbers=numbers)
    epochs = plain.steps / max(len(sample.data.train), 1)
    if plain.steps < _ENOUGH_STEPS and epochs < _FEWEST_EPOCHS:
        return Finding(BASELINES, "skipped", f"{measured}; so few steps say nothing", numbers=numbers)
    if plain.loss < limit - _BETTER * abs(limit):
        return Finding(BASELINES, "ok", f"{measured}; of so few rows that may be chance", numbers=numbers)
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
