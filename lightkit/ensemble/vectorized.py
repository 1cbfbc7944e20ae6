"""Training many alike members at once: their weights are stacked, and one step of the loop is a step of each.

The loop is the one of every run. Nothing is shared but the schedule of the rate, which is the same for all: losses,
gradient norms, values, what is best, early stopping and averages are each member's own, and so are its rows, their
order, augmentation and dropout. A member that ends early leaves the stack; one whose loss or weights are no longer
finite leaves it too, to be trained alone.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightkit.checkpoint import content
from lightkit.device.precision import clear_gradients
from lightkit.diagnostics.spans import NoSpans
from lightkit.ensemble.slices import member_contents
from lightkit.ensemble.stacked import Computation, StackedLoader, StackedModel, StackedTask, seeders
from lightkit.loggers.base import Logger
from lightkit.metrics import SplitMetrics
from lightkit.metrics.stacked import StackedMetrics
from lightkit.trainer import Trainer
from lightkit.trainer.average import Ema, NoAverage
from lightkit.trainer.guard import Guard
from lightkit.trainer.learner import Learner
from lightkit.trainer.report import Clock, Reporter
from lightkit.trainer.services import Services
from lightkit.trainer.state import State


class RowLog(Logger):
    """Keeps what a member logs, to be written when it has ended."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Keep a row."""
        self.rows.append({"step": step, "epoch": epoch, "time": round(time.time(), 3), **values})


@dataclass
class Member:
    """One of several members that train together: what it has to itself. Callbacks take it for their trainer."""

    name: str
    """Its name."""
    learner: Learner
    """As it was built; the weights in training are those of the stack."""
    history: RowLog = field(default_factory=RowLog)
    """What it has logged."""
    best: dict[str, Any] | None = None
    """Content of its checkpoint of the best monitored value; None before the first."""
    last: dict[str, Any] | None = None
    """Content of its last checkpoint; None until it has ended."""
    lost: str | None = None
    """Why it has to be trained alone; None while it has not."""
    improved: bool = False
    """Whether the newest monitored value is the best so far."""

    def __post_init__(self) -> None:
        learner = self.learner
        self.model, self.optimizer, self.state = learner.model, learner.optimizer, learner.state
        self.clock = SharedClock()
        self.report = Reporter(self.history, self.state, learner.timetable, self.clock)

    def stop(self, reason: str) -> None:
        """End its training with the epoch under way."""
        self.state.stop_reason = reason

    def log(self, values: Mapping[str, float]) -> None:
        """Log values of its own."""
        self.report.values(dict(values))

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the weights in training."""
        callbacks = {name: part.state_dict() for name, part in self.learner.callbacks.items()}
        return {
            "state": self.state.state_dict(),
            "callbacks": {name: state for name, state in callbacks.items() if state},
            "rows": list(self.history.rows),
            "best": self.best,
            "last": self.last,
            "lost": self.lost,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.state.load_state_dict(saved["state"])
        for name, state in saved["callbacks"].items():
            self.learner.callbacks[name].load_state_dict(state)
        self.history.rows = list(saved["rows"])
        self.best, self.last, self.lost = saved["best"], saved["last"], saved["lost"]


class SharedClock(Clock):
    """Tells all members what the clock of the loop has read."""

    def __init__(self) -> None:
        super().__init__(lambda: self.machine)
        self.speed: dict[str, float] = {}
        self.machine: Mapping[str, float] = {}

    def read(self, samples: int) -> dict[str, float]:
        """See `Clock.read`."""
        return self.speed


class Stack:
    """The members in training, and the parts that train them at once.

    Args:
        members: Alike: see `lightkit.ensemble.alike.refusal`.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members, self.active = list(members), list(members)
        learners = [member.learner for member in members]
        first = learners[0]
        self.model = StackedModel([learner.model for learner in learners])
        self.computation = Computation(self.model, first.network, first.task, first.criterion)
        self.loader = StackedLoader([learner.data.train for learner in learners])
        optimizer = stacked_optimizer(first, self.model)
        scheduler = copy.copy(first.scheduler)
        scheduler.optimizer = optimizer
        kept = first.average.decay if isinstance(first.average, Ema) else None
        self.learner = replace(
            first,
            data=replace(first.data, train=self.loader),  # type: ignore[arg-type]
            model=self.model,
            network=self.model,
            task=StackedTask(self.computation),
            optimizer=optimizer,
            scheduler=scheduler,
            metrics={split: StackedMetrics(own, len(members)) for split, own in _metrics(first).items()},  # type: ignore[misc]
            average=NoAverage() if kept is None else Ema(self.model, kept),
            callbacks={},
            store=None,
            state=State(),
        )

    def gather(self) -> dict[str, Any]:
        """Return the state of all members in training, in the layout of a checkpoint with stacked tensors."""
        learner = self.learner
        return content.gather(
            model=self.model,
            optimizer=learner.optimizer,
            scheduler=learner.scheduler,
            precision=learner.engine.precision,
            callbacks={},
            metrics={"train": learner.metrics["train"]},
            state=learner.state,
            ema=learner.average if isinstance(learner.average, Ema) else None,
        )

    def contents(self, members: Sequence[Member]) -> list[dict[str, Any]]:
        """Return the content of an ordinary checkpoint of some members in training, with tensors of its own."""
        rows = [self.active.index(member) for member in members]
        metrics: Any = self.learner.metrics["train"]
        own = [
            {
                "callbacks": {name: part.state_dict() for name, part in member.learner.callbacks.items()},
                "metrics": {"train": metrics.state_of(row)},
                "state": member.state.state_dict(),
            }
            for row, member in zip(rows, members)
        ]
        return member_contents(self.gather(), rows, own, like=members[0].learner.model) if members else []

    def finite(self) -> list[bool]:
        """Tell of each member in training whether its weights are finite."""
        sums = [weight.detach().reshape(len(weight), -1).sum(1) for weight in self.model.parameters()]
        return torch.isfinite(torch.stack([part.double() for part in sums])).all(0).tolist()

    def leave(self, members: Sequence[Member]) -> None:
        """Take members out of training."""
        kept = [row for row, member in enumerate(self.active) if member not in members]
        self.active = [self.active[row] for row in kept]
        if not kept:
            return  # the tensors stay as they are: nothing computes with them any more
        rows = torch.tensor(kept, device=next(self.model.parameters()).device)
        learner = self.learner
        self.model.keep(rows)
        self.loader.keep(kept)
        for metrics in learner.metrics.values():
            metrics.keep(rows)  # type: ignore[union-attr]
        for values in learner.optimizer.state.values():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.ndim:
                    values[name] = value.index_select(0, rows)
        if isinstance(learner.average, Ema):
            learner.average.keep_rows(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on with the same bits."""
        return {
            "stack": self.gather(),
            "active": [member.name for member in self.active],
            "members": {member.name: member.state_dict() for member in self.members},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a state, of the same members."""
        for member in self.members:
            member.load_state_dict(saved["members"][member.name])
        self.leave([member for member in self.members if member.name not in saved["active"]])
        learner = self.learner
        content.apply(
            saved["stack"],
            model=self.model,
            optimizer=learner.optimizer,
            scheduler=learner.scheduler,
            precision=learner.engine.precision,
            callbacks={},
            metrics={"train": learner.metrics["train"]},
            state=learner.state,
            ema=learner.average if isinstance(learner.average, Ema) else None,
        )


def stacked_optimizer(learner: Learner, model: StackedModel) -> Optimizer:
    """Build the optimizer of a member anew, over the stacked parameters; it works element by element."""
    optimizer = learner.optimizer
    names = {parameter: name for name, parameter in learner.model.named_parameters()}
    groups = [
        {**group, "params": [model.weights[names[parameter]] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    known = inspect.signature(type(optimizer)).parameters
    return type(optimizer)(groups, **{name: value for name, value in optimizer.defaults.items() if name in known})


def _metrics(learner: Learner) -> dict[str, SplitMetrics]:
    return {split: part for split, part in learner.metrics.items() if isinstance(part, SplitMetrics)}


class VectorStepper:
    """Makes one optimizer step of every member at once; see `lightkit.trainer.step.Stepper`.

    Args:
        stack: The members.
        spans: Names the stretches of time.
    """

    def __init__(self, stack: Stack, spans: NoSpans) -> None:
        self._stack, self._span = stack, spans.span
        self._engines = [member.learner.engine for member in stack.active]
        self.loss, self.samples = torch.zeros(len(stack.active)), 1

    def micro(self, batch: Any, *, position: int, size: int, window: int, more: bool) -> bool:
        """See `Stepper.micro`."""
        stack, learner = self._stack, self._stack.learner
        if len(self._engines) != len(stack.active):
            self._engines = [member.learner.engine for member in stack.active]
        seeds = seeders(self._engines, learner.state.epoch, position)
        with self._span("forward"), learner.engine.autocast():
            losses, preds, target = stack.computation(batch, seeds=seeds)
        self.loss, self.samples = losses.detach(), size
        with self._span("backward"):
            total = losses.sum()
            learner.engine.backward(total if size == window else total * (size / window))
        with self._span("metrics"):
            learner.metrics["train"].update(preds, target, losses, size)
        return True

    def update(self, *, usable: bool, want_norm: bool) -> Tensor | None:
        """See `Stepper.update`; returns the norms of all members, `(M,)`."""
        learner = self._stack.learner
        with self._span("optimizer"), torch.no_grad():
            norms = learner.engine.clip.each(learner.optimizer, want_norm=want_norm)
            learner.engine.precision.update(learner.optimizer)
            clear_gradients(learner.optimizer)
            learner.average.update()
            return norms


class NoGuard(Guard):
    """Lets everything pass: a member whose loss is not finite is found by itself, and leaves the stack."""

    def check_weights(self, learner: Learner) -> None:
        """See `Guard.check_weights`."""


class VectorTrainer(Trainer):
    """The loop over a stack of members; what it logs, judges and keeps is each member's own.

    Args:
        stack: The members, fresh or restored.
        services: See `Trainer`; the logger only shows the progress of all.
        monitor: See `Trainer`.
        mode: See `Trainer`.
    """

    def __init__(self, stack: Stack, services: Services, *, monitor: str, mode: str) -> None:
        stepper, guard = VectorStepper(stack, services.spans), NoGuard(torch.device("cpu"))
        super().__init__(stack.learner, services, monitor=monitor, mode=mode, guard=guard, stepper=stepper)
        self.stack, self._counted = stack, self._samples()

    def _samples(self) -> int:
        return self.state.epoch * self.timetable.epoch_samples + self.state.samples_done

    def _log_step(self) -> None:
        """Log values of this very step, for each member its own."""
        with self._span("logging"):
            before, self._counted = self._counted, self._samples()
            speed, machine = self._clock.read(self._counted - before), self._clock.vitals()
            losses = self.stepper.loss.tolist()
            norms = [float("nan")] * len(losses) if self._norm is None else self._norm.tolist()
            for member, loss, norm in zip(self.stack.active, losses, norms):
                self._follow(member)
                member.clock.speed, member.clock.machine = speed, machine
                member.report.step(loss, norm, self._rates, {})

    def _follow(self, member: Member) -> None:
        """Let the counters of a member be those of the loop."""
        mine, own = self.state, member.state
        own.epoch, own.samples_done, own.step = mine.epoch, mine.samples_done, mine.step
        own.validated_step, own.closed_step = mine.validated_step, mine.closed_step

    def _take_epoch(self, values: Any) -> bool:
        """Log and judge the training values of an epoch, of each member its own."""
        for member, own in zip(self.stack.active, values):
            self._follow(member)
            member.report.values(own)
            if self.monitor in own:
                member.improved = member.state.keep_best(own[self.monitor], own, mode=self.mode)
            self._call_of(member, "on_epoch", own)
        self._show_mean(values)
        return any(member.improved for member in self.stack.active)

    def _take(self, values: Any) -> bool:
        """Log and judge the values of a validation, of each member its own; then let those go that have ended."""
        self.state.validated_step = self.state.step
        for member, own in zip(self.stack.active, values):
            self._follow(member)
            member.report.values(own)
            if self.monitor.startswith("val/"):
                member.improved = member.state.keep_best(own[self.monitor], own, mode=self.mode)
            self._call_of(member, "on_validation", own)
        self._show_mean(values)
        improved = any(member.improved for member in self.stack.active)
        self._settle()
        return improved

    def _call_of(self, member: Member, hook: str, values: Mapping[str, float]) -> None:
        for callback in member.learner.callbacks.values():
            getattr(callback, hook)(member, values)

    def _show_mean(self, values: Sequence[Mapping[str, float]]) -> None:
        """Keep the means over the members for whoever watches."""
        if values:
            self.state.last |= {name: sum(own[name] for own in values) / len(values) for name in values[0]}

    def _settle(self) -> None:
        """Keep the weights of members at their best and at their end; at the end of an epoch these leave the stack."""
        stack, state = self.stack, self.state
        closes = self.finished or state.samples_done == 0
        for member, fine in zip(stack.active, stack.finite()):
            self._follow(member)
            member.state.closed_step = state.step if closes else state.closed_step
            member.lost = member.lost or (None if fine else f"a weight is no longer finite at step {state.step}")
        sound = [member for member in stack.active if member.lost is None]
        ended = [member for member in sound if closes and (self.finished or member.state.stop_reason)]
        kept = [member for member in sound if member.improved or member in ended]
        for member, saved in zip(kept, stack.contents(kept)):
            member.best = saved if member.improved else member.best
            member.last = saved if member in ended else None
        for member in stack.active:
            member.improved = False
        if closes and not self.finished:
            gone = [member for member in stack.active if member.lost or member in ended]
            if gone:
                stack.leave(gone)
            if not stack.active:
                self.stop("all members have ended")
