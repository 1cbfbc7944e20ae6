"""Short trainings: of one small batch, which a network can learn by heart, and of a fresh network on other rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from lightkit.assembly import Learner
from lightkit.common.modules import mapped
from lightkit.common.randomness import mix
from lightkit.data.loaders import Loader
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, sized
from lightkit.doctor.training.probing import (
    Heard,
    batches_of,
    compute,
    fitted,
    in_process,
    own_rates,
    plain_batch,
    seeded,
    train_step,
    warmed,
    without_dropout,
)

NAME = "one batch"
_ROWS = 16
_STEPS, _WARMUP = 300, 20
_FEWEST = 40
"""Steps below which a try that ran out of time says nothing."""
_SECONDS, _SHARE = 5.0, 0.2
"""Longest time for one try, and the share of the time left that it may take."""
_ENOUGH, _SOME, _NONE = 0.9, 0.3, 0.05
"""Shares of the way from the first loss down to the lowest one."""
_RATE = 3e-3
_FREE_STEPS, _FREE_RATE = 300, 0.3
_CAUSES = ("training step", "kept graph", "optimizer", "unregistered layers", "loss", "outputs", "signal", "ReLUs")
"""Checks whose findings say why nothing is learnt."""


@dataclass(frozen=True)
class Try:
    """How one attempt to learn a batch by heart went."""

    losses: list[float]
    """The loss before each step, and at the end."""
    floor: float
    """The lowest loss that any outputs could give."""
    spread: float
    """How much the outputs differ from sample to sample at the end, as a share of their size."""

    @property
    def progress(self) -> float:
        """The share of the way down that was covered at the best moment; below 0 where it never fell."""
        span = self.losses[0] - self.floor
        fallen = self.losses[0] - min(loss for loss in [*self.losses, math.inf] if not math.isnan(loss))
        return fallen / span if span > 0 else 1.0

    @property
    def diverged(self) -> bool:
        """Tell whether the loss grew instead, or is no number."""
        end = self.losses[-1]
        return not math.isfinite(end) or end > self.losses[0] + 0.5 * abs(self.losses[0]) + 1e-6

    @property
    def is_short(self) -> bool:
        """Tell whether time ran out before it could say anything."""
        return len(self.losses) <= _FEWEST and self.progress < _ENOUGH and not self.diverged

    def __str__(self) -> str:
        """Say what happened."""
        lowest = f", of {self.floor:.3g} that is possible" if abs(self.floor) > 0.01 * abs(self.losses[0]) else ""
        steps = sized(len(self.losses) - 1, "step")
        return f"the loss went from {self.losses[0]:.3g} to {self.losses[-1]:.3g} in {steps}{lowest}"

    @property
    def numbers(self) -> dict[str, Any]:
        """Return it as plain values."""
        first, *_, last = self.losses
        taken = {"first": first, "last": last, "lowest_possible": self.floor, "steps": len(self.losses) - 1}
        return {**taken, "progress": self.progress}


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Train on a few rows with the optimizer of the run, and where that does not do, with Adam."""
    learner = run.learner()
    if learner.task.parts:
        yield Finding(NAME, "skipped", "the losses of several optimizers need not fall")
        return
    each_alone = not getattr(learner.criterion, "compares_samples", False)
    rows = run.rows(_ROWS if each_alone else 4 * _ROWS, seconds=_SECONDS / _FEWEST)
    own = attempt(learner, rows, seconds=_seconds(run))
    if own.progress >= _ENOUGH and not own.diverged:
        rate = own_rates(learner)[0]
        measured = f"{rows} rows are learnt by heart: {own}, with the optimizer of the run at its rate {rate:g}"
        yield Finding(NAME, "ok", measured, numbers=own.numbers)
        return
    other = run.learner()
    trained = [each for each in other.model.parameters() if each.requires_grad]
    usual = attempt(other, rows, seconds=_seconds(run), optimizer=Adam(trained, lr=_RATE))
    frozen = len(trained) < len([*other.model.parameters()])
    yield run.excused(_judged(run, learner, rows, (own, usual), frozen=frozen), _CAUSES)


def _seconds(run: ExaminedRun) -> float:
    return max(0.5, min(_SECONDS, _SHARE * run.seconds_left()))


def attempt(learner: Learner, rows: int, *, seconds: float, optimizer: Optimizer | None = None) -> Try:
    """Train on the same rows until their loss is near the lowest possible, or time or steps are over.

    Args:
        learner: What is trained.
        rows: Training rows.
        seconds: Time for it.
        optimizer: In the place of the learner's own one.
    """
    batch, until = plain_batch(learner, rows), time.monotonic() + seconds
    heard = Heard(learner.criterion)
    without_dropout(learner.network)
    losses = [float(compute(learner, mapped(torch.clone, batch), heard).loss.detach())]
    floor = lowest_loss(learner, heard.calls) if math.isfinite(losses[0]) else 0.0
    steps = warmed(learner.optimizer, own_rates(learner), _WARMUP) if optimizer is None else iter(range(_STEPS))
    for _ in islice(steps, _STEPS):
        train_step(learner, mapped(torch.clone, batch), optimizer=optimizer)
        with torch.no_grad():
            losses.append(float(compute(learner, mapped(torch.clone, batch)).loss))
        low = losses[0] - losses[-1] >= (0.5 + 0.5 * _ENOUGH) * (losses[0] - floor)
        if low or not math.isfinite(losses[-1]) or time.monotonic() > until:
            break
    with torch.no_grad():
        preds = compute(learner, batch).preds
    if not isinstance(preds, Tensor) or len(preds) < 2:
        return Try(losses, floor, 1.0)
    values = preds.detach().float()
    return Try(losses, floor, float((values - values.mean(0)).abs().mean() / values.abs().mean().clamp_min(1e-12)))


def lowest_loss(learner: Learner, calls: list[tuple[Tensor, Tensor]]) -> float:
    """Return the lowest loss that outputs of this shape could give: with smoothed labels that is not 0.

    Args:
        learner: Its loss is meant.
        calls: What the loss was given.
    """
    if len(calls) != 1 or not isinstance(calls[0][0], Tensor) or isinstance(learner.criterion, nn.NLLLoss):
        return 0.0
    preds, target = calls[0][0].detach().float(), calls[0][1]
    rate = _FREE_RATE * max(1.0, float(preds.std()) if preds.numel() > 1 else 1.0)
    losses, _ = fitted(lambda free: learner.criterion(free, target), preds, rate=rate, steps=_FREE_STEPS, enough=1e-4)
    return min((loss for loss in losses if math.isfinite(loss)), default=0.0)


def _judged(run: ExaminedRun, learner: Learner, rows: int, tries: tuple[Try, Try], *, frozen: bool) -> Finding:
    """Say what it means that the optimizer of the run did not learn the batch."""
    own, usual = tries
    rate = own_rates(learner)[0]
    numbers: dict[str, Any] = {**own.numbers, "adam": usual.numbers, "lr": rate}
    measured = f"with the optimizer of the run at its rate {rate:g} {own}"
    measured += f"; with Adam at {_RATE:g} to {min(usual.losses):.3g}"
    if usual.progress >= _SOME and own.diverged and not learner.optimizer.param_groups[0].get("maximize"):
        why = "the steps are too large: instead of falling the loss grows"
        fix = f"optim.lr={float(f'{rate / 10:.1g}'):g} or less: `lightkit find lr` measures one"
        return Finding(NAME, "error", measured, why, "optim.lr", fix, numbers)
    best = max((own, usual), key=lambda each: each.progress)
    if own.is_short or (usual.is_short and usual.progress < _SOME):
        few = f"there was time for {sized(len(best.losses) - 1, 'step')} only"
        return Finding(NAME, "skipped", few, numbers=numbers)
    if usual.progress >= _SOME and own.progress < _NONE:
        why = "the run would hardly learn: its steps are too small, or something holds the weights back"
        return Finding(NAME, "warning", measured, why, *_culprit(run, learner, rate), numbers)
    measured = f"of {rows} rows {best}, with {'Adam' if best is usual else 'the optimizer of the run'}"
    falling = len(best.losses) > 20 and best.losses[-1] < 0.98 * best.losses[-10]
    falling |= learner.data.info.task == "language_modeling"  # alike pieces of text go on in several ways
    if best.progress >= _ENOUGH or (best.progress >= _SOME and falling) or (frozen and best.progress >= _NONE):
        return Finding(NAME, "ok", measured, numbers=numbers)
    why = "a network that cannot learn a few rows by heart cannot learn from many: model and loss do not work together"
    why += "; its outputs are the same for every sample" if best.spread < 1e-3 else ""
    fix = "look at what forward returns, at the targets that the loss gets, and at the initial weights"
    return Finding(NAME, "error" if best.progress < _SOME else "warning", measured, why, "model", fix, numbers)


def _culprit(run: ExaminedRun, learner: Learner, rate: float) -> tuple[str, str]:
    """Name the key that most likely keeps the weights where they are, and what to do about it."""
    group = learner.optimizer.param_groups[0]
    if group.get("maximize"):
        return "optim.maximize", "optim.maximize=false"
    if float(group.get("weight_decay") or 0.0) * rate > 1e-2:
        return "optim.weight_decay", "optim.weight_decay=0.01"
    for name in ("clip_norm", "clip_value"):
        if (run.cfg.trainer[name] or math.inf) < 1e-3:
            return f"trainer.{name}", f"trainer.{name}=1.0"
    return "optim.lr", "a larger rate: `lightkit find lr` measures one"


_COURSE_SECONDS, _COURSE_SHARE = 3.0, 0.12
"""Longest time for the training of a fresh network, and the share of the time left that it may take."""
_MOST_STEPS, FEWEST_EPOCHS, _LEAST_STEPS = 150, 5, 60
"""A training takes some epochs of small data; of large ones it ends within the first."""
_COURSE_WARMUP = 0.1
"""Share of the steps over which the learning rate rises."""
_JUDGED_ROWS = 256
"""Most rows of the other split."""

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Changes inputs and targets of a batch."""


@dataclass(frozen=True)
class Course:
    """How the short training of a fresh network went."""

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

    def beats(self, loss: float, by: float) -> bool:
        """Tell whether this is below another loss by a share of it, and by so much more as chance may give."""
        return self.loss < loss - (by + 0.5 * self.answers**-0.5) * abs(loss) - 1e-6

    def __str__(self) -> str:
        """Say how it ended."""
        return f"{self.loss:.3g}" + ("" if self.accuracy is None else f", {self.accuracy:.0%} right")


def train_briefly(
    run: ExaminedRun, split: str, change: Change, *, steps: int | None = None, rate: float = 1.0, decay: bool = True
) -> Course:
    """Train a fresh network for a little while, and measure its loss on another split.

    Args:
        run: The run.
        split: The split to judge by.
        change: What to do to each batch, there too.
        steps: Optimizer steps; None goes by the time there is.
        rate: What the learning rate is multiplied by.
        decay: Let the weights decay as the run does.
    """
    learner = run.learner()
    seconds = max(0.5, min(_COURSE_SECONDS, _COURSE_SHARE * run.seconds_left()))
    until = time.monotonic() + seconds * (1.0 if steps is None else 1.5)  # the same steps, though the machine be busy
    for group in learner.optimizer.param_groups if not decay else ():
        group["weight_decay"] = 0.0
    train = learner.data.train
    wanted = steps or min(_MOST_STEPS, max(_LEAST_STEPS, FEWEST_EPOCHS * max(len(train), 1)))
    loader = in_process(learner, train, train.rows, batch_size=min(train.batch_size, train.num_samples), drop_last=True)
    loader.mixup = None
    rates, losses = [rate * own for own in own_rates(learner)], list[float]()
    learner.network.train()
    batches = (batch for epoch in range(wanted) for batch in batches_of(learner, loader, epoch))
    for number, batch in zip(islice(warmed(learner.optimizer, rates, _COURSE_WARMUP * wanted), wanted), batches):
        losses.append(train_step(learner, change(*batch), key=number))
        if time.monotonic() > until or not math.isfinite(losses[-1]):
            break
    return _measured(learner, split, change, losses)


def evaluated(learner: Learner, split: str) -> Loader:
    """Return a loader of some rows of a split, drawn at random, without augmentation."""
    loader = learner.data.evaluation(split)
    assert loader is not None, "asked before"
    generator = torch.Generator().manual_seed(mix("doctor", "judged"))
    rows = loader.rows[torch.randperm(len(loader.rows), generator=generator)[:_JUDGED_ROWS]]
    return in_process(learner, loader, rows, batch_size=min(len(rows), max(loader.batch_size, 16)))


def _measured(learner: Learner, split: str, change: Change, losses: list[float]) -> Course:
    """Measure loss and right answers of a network on a split, after steps with these losses."""
    info, accuracy = learner.data.info, None
    total, right, rows, answers = 0.0, 0, 0, 0
    learner.network.eval()
    seeded(learner, 0)
    with torch.no_grad():
        for batch in batches_of(learner, evaluated(learner, split)):
            x, y = change(*batch)
            step = compute(learner, (x, y), key=None)
            total += float(step.loss) * len(x)
            rows, answers = rows + len(x), answers + (len(y) if y.is_floating_point() else y.numel())
            if info.task == "multiclass" and step.preds is not None and step.preds.shape[1:] == (info.num_classes,):
                right += int((step.preds.argmax(1) == y).sum())
                accuracy = right / rows
    tail = losses[-max(1, len(losses) // 5) :]
    return Course(len(losses), losses[0], sum(tail) / len(tail), total / rows, answers, accuracy)


def same(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Leave a batch as it is."""
    return x, y


def without_inputs(x: Any, y: Tensor) -> tuple[Any, Tensor]:
    """Put zeros in the place of all inputs."""
    return mapped(torch.zeros_like, x), y


_BETTER = 0.1
"""Share of the loss by which another rate has to be better than what learnt nothing."""
_ALL_CAUSES = (
    *_CAUSES,
    *("shared memory of weights", "norm layers", "evaluation", "batch size"),
    *("gradients", "activations", "target scale", NAME),
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


def explained(run: ExaminedRun, split: str, judged: Finding, steps: int) -> Finding:
    """Say why nothing was learnt in `steps`, where that can be shown; else return what was `judged` by a `split`."""
    excused = run.excused(judged, _ALL_CAUSES)
    if excused is not judged:
        return excused
    numbers, optim = judged.numbers, run.cfg.optim
    losses = (numbers.get(name) for name in ("loss", "without_inputs", "constant"))
    limit = min(loss for loss in losses if loss is not None and math.isfinite(loss))
    if float(optim.get("weight_decay") or 0.0) > 0.05:
        course = train_briefly(run, split, same, steps=steps, decay=False)
        if course.beats(limit, _BETTER):
            measured = f"{judged.measured}; without weight decay {course}"
            why = f"a weight decay of {optim.weight_decay:g} pulls the weights to 0 faster than they learn"
            key = "optim.weight_decay"
            return replace(judged, measured=measured, why=why, key=key, fix=f"{key}=0.01")
    rate = float(optim.get("lr") or 0.0)
    for factor, words in _RATES.items():
        if not rate or run.seconds_left() < 1:
            break
        course = train_briefly(run, split, same, steps=steps, rate=factor)
        if math.isfinite(course.loss) and course.beats(limit, _BETTER):
            measured = f"{judged.measured}; at {words} the rate, {factor * rate:g}, {course}"
            size = "large: a smaller" if factor < 1 else "small: a larger"
            why = f"the steps are too {size} optim.lr learns in as many steps"
            fix = f"optim.lr={factor * rate:g}, or what `lightkit find lr` measures"
            return replace(judged, measured=measured, why=why, key="optim.lr", fix=fix)
    return judged
