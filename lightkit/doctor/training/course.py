"""A short training of a fresh network, and what it knows afterwards.

Shapes in this file: B samples of a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lightkit.assembly import Learner
from lightkit.common.randomness import mix
from lightkit.data.loaders import Loader
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import batches_of, compute

_SECONDS, _SHARE = 3.0, 0.12
"""Longest time for one training, and the share of the time left that it may take."""
_MOST_STEPS, FEWEST_EPOCHS, _LEAST_STEPS = 150, 5, 60
"""A training takes some epochs of small data; of large ones it ends within the first."""
_WARMUP = 0.1
"""Share of the steps over which the learning rate rises."""
_JUDGED_ROWS = 256
"""Most rows of the other split."""

Change = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Changes inputs and targets of a batch, with its number."""


@dataclass(frozen=True)
class Course:
    """How a short training went."""

    steps: int
    """Optimizer steps taken."""
    first_loss: float
    """Loss of the first step."""
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


def train_briefly(
    patient: Patient, split: str, change: Change, *, steps: int | None = None, rate: float = 1.0, decay: bool = True
) -> Course:
    """Train a fresh network for a little while, and measure its loss on another split.

    Args:
        patient: The run.
        split: The split to judge by.
        change: What to do to each batch, there too.
        steps: Optimizer steps; None goes by the time there is.
        rate: What the learning rate is multiplied by.
        decay: Let the weights decay as the run does.
    """
    learner = patient.learner()
    seconds = max(0.5, min(_SECONDS, _SHARE * patient.seconds_left()))
    until = time.monotonic() + seconds * (1.0 if steps is None else 1.5)  # the same steps, though the machine be busy
    train = learner.data.train
    # Not what the schedule makes of it: a warm-up begins far below.
    rates = [rate * float(group.get("initial_lr", group["lr"])) for group in learner.optimizer.param_groups]
    for group in learner.optimizer.param_groups if not decay else ():
        group["weight_decay"] = 0.0
    per_epoch = max(len(train), 1)
    wanted = steps or min(_MOST_STEPS, max(_LEAST_STEPS, FEWEST_EPOCHS * per_epoch))
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
    return _measured(learner, split, change, losses=losses)


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


def evaluated(learner: Learner, split: str) -> Loader:
    """Return a loader of some rows of a split, drawn at random, without augmentation."""
    loader = learner.data.evaluation(split)
    assert loader is not None, "asked before"
    generator = torch.Generator().manual_seed(mix("doctor", "judged"))
    rows = loader.rows[torch.randperm(len(loader.rows), generator=generator)[:_JUDGED_ROWS]]
    size = min(len(rows), max(loader.batch_size, 16))
    return loader.with_rows(rows, batch_size=size, num_workers=0, persistent_workers=False, pin_memory=False)


def _measured(learner: Learner, split: str, change: Change, *, losses: list[float]) -> Course:
    """Measure loss and right answers of a network on a split, after steps with these losses."""
    total, right, rows, answers, last = 0.0, 0, 0, 0, None
    learner.network.eval()
    learner.engine.seed_validation(0)
    loader = evaluated(learner, split)
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
    tail = losses[-max(1, len(losses) // 5) :]
    return Course(len(losses), losses[0], sum(tail) / len(tail), total / rows, answers, accuracy, last)


def _has_classes(learner: Learner, preds: Tensor | None, y: Tensor) -> bool:
    info = learner.data.info
    return info.task == "multiclass" and preds is not None and preds.ndim == 2 and preds.shape[1] == info.num_classes


def same(x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Leave a batch as it is."""
    return x, y


def without_inputs(x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Put zeros in the place of all inputs."""
    return torch.zeros_like(x), y


_BETTER = 0.1
"""Share of the loss by which another rate has to be better than what learnt nothing."""
_CAUSES = (
    "training step",
    "kept graph",
    "optimizer",
    "unregistered layers",
    "shared memory of weights",
    "norm layers",
    "evaluation",
    "batch size",
    "outputs",
    "loss",
    "signal",
    "gradients",
    "ReLUs",
    "activations",
    "target scale",
    "one batch",
)
"""Checks whose findings say why nothing is learnt, before the data are blamed."""
_RATES = {
    0.1: "a tenth of",
    10.0: "ten times",
    0.01: "a hundredth of",
    100.0: "a hundred times",
    0.001: "a thousandth of",
    1000.0: "a thousand times",
}


def explained(patient: Patient, split: str, judged: Finding, plain: Course) -> Finding:
    """Say why nothing was learnt, where that can be shown; otherwise return the judgement as it is.

    Args:
        patient: The run.
        split: The split that was judged by.
        judged: What was found.
        plain: How the training went.
    """
    cause = patient.cause(*_CAUSES)
    if cause is not None:
        told = f"{judged.measured}; what {cause.check!r} found is reason enough"
        return replace(judged, status="note", measured=told, why="", key="", fix="")
    limit = min(judged.numbers[name] for name in ("loss", "without_inputs", "constant") if _is_number(judged, name))
    optim, steps = patient.cfg.optim, plain.steps
    if float(optim.get("weight_decay") or 0.0) > 0.05:
        course = train_briefly(patient, split, same, steps=steps, decay=False)
        if course.beats(limit, _BETTER):
            return replace(
                judged,
                measured=f"{judged.measured}; without weight decay {course.told()}",
                why=f"a weight decay of {optim.weight_decay:g} pulls the weights to 0 faster than they learn",
                key="optim.weight_decay",
                fix="optim.weight_decay=0.01",
            )
    rate = float(optim.get("lr") or 0.0)
    for factor, words in _RATES.items():
        if not rate or patient.seconds_left() < 1:
            break
        course = train_briefly(patient, split, same, steps=steps, rate=factor)
        if math.isfinite(course.loss) and course.beats(limit, _BETTER):
            size = "large: a smaller" if factor < 1 else "small: a larger"
            return replace(
                judged,
                measured=f"{judged.measured}; at {words} the rate, {factor * rate:g}, {course.told()}",
                why=f"the steps are too {size} optim.lr learns in as many steps",
                key="optim.lr",
                fix=f"optim.lr={factor * rate:g}, or what `lightkit find lr` measures",
            )
    return judged


def _is_number(judged: Finding, name: str) -> bool:
    value = judged.numbers.get(name)
    return value is not None and math.isfinite(value)
