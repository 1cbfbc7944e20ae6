"""Whether the network can learn one small batch by heart: if not, model, loss and optimizer do not work together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from lightkit.assembly import Learner
from lightkit.common.nesting import mapped
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import Heard, compute, plain_batch, sized, without_dropout

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
_CAUSES = ("training step", "kept graph", "optimizer", "unregistered layers", "loss", "outputs", "signal", "ReLUs")
"""Checks whose findings say why nothing is learnt."""
_FREE_STEPS, _FREE_RATE = 300, 0.3


@dataclass(frozen=True)
class Try:
    """How one attempt went."""

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
    def told(self) -> str:
        """Return what happened, in words."""
        lowest = f", of {self.floor:.3g} that is possible" if abs(self.floor) > 0.01 * abs(self.losses[0]) else ""
        steps = sized(len(self.losses) - 1, "step")
        return f"the loss went from {self.losses[0]:.3g} to {self.losses[-1]:.3g} in {steps}{lowest}"


def check(patient: Patient) -> Iterator[Finding]:
    """Train on a few rows with the optimizer of the run, and where that does not do, with Adam."""
    learner = patient.learner()
    alone = not getattr(learner.criterion, "compares_samples", False)
    rows = patient.rows(_ROWS if alone else 4 * _ROWS, seconds=_SECONDS / _FEWEST)
    own = attempt(learner, rows, seconds=_seconds(patient))
    rate = own_rates(learner)[0]
    if own.progress >= _ENOUGH and not own.diverged:
        measured = f"{rows} rows are learnt by heart: {own.told}, with the optimizer of the run at its rate {rate:g}"
        yield Finding(NAME, "ok", measured, numbers=_numbers(own))
        return
    other = patient.learner()
    trained = [each for each in other.model.parameters() if each.requires_grad]
    usual = attempt(other, rows, seconds=_seconds(patient), optimizer=Adam(trained, lr=_RATE))
    frozen = any(not each.requires_grad for each in other.model.parameters())
    judged, cause = _judged(patient, learner, rows, (own, usual), frozen=frozen), patient.cause(*_CAUSES)
    if cause is not None and judged.is_bad:
        told = f"{judged.measured}; what {cause.check!r} found is reason enough"
        judged = replace(judged, status="note", measured=told, why="", key="", fix="")
    yield judged


def _seconds(patient: Patient) -> float:
    return max(0.5, min(_SECONDS, _SHARE * patient.seconds_left()))


def attempt(learner: Learner, rows: int, *, seconds: float, optimizer: Optimizer | None = None) -> Try:
    """Train on the same rows until their loss is near the lowest possible, or time or steps are over.

    Args:
        learner: What is trained.
        rows: Training rows.
        seconds: Time for it.
        optimizer: In the place of the learner's own one.
    """
    batch = plain_batch(learner, rows)
    stepping = optimizer or learner.optimizer
    rates = own_rates(learner) if optimizer is None else None
    until = time.monotonic() + seconds
    heard = Heard(learner.criterion)
    without_dropout(learner.network)
    losses = [float(compute(learner, mapped(torch.clone, batch), heard).loss.detach())]
    floor = lowest_loss(learner, heard.calls) if math.isfinite(losses[0]) else 0.0
    for number in range(_STEPS):
        if rates is not None:
            for group, rate in zip(stepping.param_groups, rates, strict=True):
                group["lr"] = rate * min(1.0, (number + 1) / _WARMUP)
        learner.engine.backward(compute(learner, mapped(torch.clone, batch)).loss)
        learner.engine.step(stepping)
        with torch.no_grad():
            losses.append(float(compute(learner, mapped(torch.clone, batch)).loss))
        low = losses[0] - losses[-1] >= (0.5 + 0.5 * _ENOUGH) * (losses[0] - floor)
        if low or not math.isfinite(losses[-1]) or time.monotonic() > until:
            break
    with torch.no_grad():
        preds = compute(learner, batch).preds
    return Try(losses, floor, _spread(preds))


def own_rates(learner: Learner) -> list[float]:
    """Return the learning rate of each group without what the schedule makes of it: a warm-up begins far below."""
    return [float(group.get("initial_lr", group["lr"])) for group in learner.optimizer.param_groups]


def _spread(preds: Tensor | None) -> float:
    if preds is None or len(preds) < 2:
        return 1.0
    values = preds.detach().float()
    return float((values - values.mean(0)).abs().mean() / values.abs().mean().clamp_min(1e-12))


def lowest_loss(learner: Learner, calls: list[tuple[Tensor, Tensor]]) -> float:
    """Return the lowest loss that outputs of this shape could give: with smoothed labels that is not 0.

    Args:
        learner: Its loss is meant.
        calls: What the loss was given.
    """
    criterion = learner.criterion
    if len(calls) != 1 or not isinstance(calls[0][0], Tensor) or isinstance(criterion, nn.NLLLoss):
        return 0.0
    preds, target = calls[0]
    free = nn.Parameter(preds.detach().float().clone())
    optimizer = Adam([free], lr=_FREE_RATE * max(1.0, float(free.detach().std()) if free.numel() > 1 else 1.0))
    best = math.inf
    for _ in range(_FREE_STEPS):
        loss = criterion(free, target)
        best = min(best, float(loss.detach()))
        if 0 <= best < 1e-4 or not loss.requires_grad:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return best if math.isfinite(best) else 0.0


def _judged(patient: Patient, learner: Learner, rows: int, tries: tuple[Try, Try], *, frozen: bool) -> Finding:
    """Say what it means that the optimizer of the run did not learn the batch."""
    own, usual = tries
    rate = own_rates(learner)[0]
    numbers: dict[str, Any] = {**_numbers(own), "adam": _numbers(usual), "lr": rate}
    with_own = f"with the optimizer of the run at its rate {rate:g} {own.told}"
    if usual.progress >= _SOME and own.diverged and not learner.optimizer.param_groups[0].get("maximize"):
        measured = f"{with_own}; with Adam at {_RATE:g} to {min(usual.losses):.3g}"
        why = "the steps are too large: instead of falling the loss grows"
        smaller = float(f"{rate / 10:.1g}")
        fix = f"optim.lr={smaller:g} or less: `lightkit find lr` measures one"
        return Finding(NAME, "error", measured, why, "optim.lr", fix, numbers)
    best = max((own, usual), key=lambda each: each.progress)
    if _is_short(own) or (_is_short(usual) and usual.progress < _SOME):
        measured = f"there was time for {sized(len(best.losses) - 1, 'step')} only"
        return Finding(NAME, "skipped", measured, numbers=numbers)
    if usual.progress >= _SOME and own.progress < _NONE:
        measured = f"{with_own}; with Adam at {_RATE:g} to {min(usual.losses):.3g}"
        why = "the run would hardly learn: its steps are too small, or something holds the weights back"
        key, fix = _culprit(patient, learner, rate)
        return Finding(NAME, "warning", measured, why, key, fix, numbers)
    told = f"of {rows} rows {best.told}, with {'Adam' if best is usual else 'the optimizer of the run'}"
    falling = len(best.losses) > 20 and best.losses[-1] < 0.98 * best.losses[-10]
    falling |= learner.data.info.task == "language_modeling"  # alike pieces of text go on in several ways
    if best.progress >= _ENOUGH or (best.progress >= _SOME and falling) or (frozen and best.progress >= _NONE):
        return Finding(NAME, "ok", told, numbers=numbers)
    why = "a network that cannot learn a few rows by heart cannot learn from many: model and loss do not work together"
    if best.spread < 1e-3:
        why += "; its outputs are the same for every sample"
    fix = "look at what forward returns, at the targets that the loss gets, and at the initial weights"
    return Finding(NAME, "error" if best.progress < _SOME else "warning", told, why, "model", fix, numbers)


def _is_short(tried: Try) -> bool:
    return len(tried.losses) <= _FEWEST and tried.progress < _ENOUGH and not tried.diverged


def _culprit(patient: Patient, learner: Learner, rate: float) -> tuple[str, str]:
    """Name the key that most likely keeps the weights where they are."""
    group = learner.optimizer.param_groups[0]
    if group.get("maximize"):
        return "optim.maximize", "optim.maximize=false"
    if float(group.get("weight_decay") or 0.0) * rate > 1e-2:
        return "optim.weight_decay", "optim.weight_decay=0.01"
    for name in ("clip_norm", "clip_value"):
        if (patient.cfg.trainer[name] or math.inf) < 1e-3:
            return f"trainer.{name}", f"trainer.{name}=1.0"
    return "optim.lr", "a larger rate: `lightkit find lr` measures one"


def _numbers(tried: Try) -> dict[str, Any]:
    return {
        "first": tried.losses[0],
        "last": tried.losses[-1],
        "lowest_possible": tried.floor,
        "steps": len(tried.losses) - 1,
        "progress": tried.progress,
    }
