"""Training many alike members at once: their weights are stacked, and one step of the loop is a step of each.

The loop is the one of every run. Nothing is shared but the schedule of the rate, which is the same for all: losses,
gradient norms, values, what is best, early stopping and averages are each member's own, and so are its rows, their
order, augmentation and dropout. A member that ends early leaves the stack; one whose loss or weights are no longer
finite leaves it too, to be trained alone.

Shapes: M members, T tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.device.precision import clear_gradients
from lightkit.diagnostics.spans import NoSpans
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.vmapped import seeders
from lightkit.trainer import Trainer
from lightkit.trainer.audit.observations import row_fingerprints
from lightkit.trainer.audit.watch import NoWatch, WatchedModel
from lightkit.trainer.guard import Guard
from lightkit.trainer.learner import Learner
from lightkit.trainer.services import Services


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
        self.outputs: Any = None
        self._results: list[Any] = []

    def begin(self) -> None:
        """See `Stepper.begin`."""
        self._results = []

    def micro(self, batch: Any, *, position: int, size: int, window: int, more: bool) -> bool:
        """See `Stepper.micro`."""
        stack, learner = self._stack, self._stack.learner
        if len(self._engines) != len(stack.active):
            self._engines = [member.learner.engine for member in stack.active]
        seeds = seeders(self._engines, learner.state.epoch, position)
        with self._span("forward"), learner.engine.autocast():
            step = stack.computation(batch, seeds=seeds)
        self.loss, self.samples = step.loss.detach(), size
        with self._span("backward"):
            total = step.loss.sum()
            learner.engine.backward(total if size == window else total * (size / window))
        self._results.append((step.preds, step.target, self.loss, size, None, step.weight))
        return True

    def update(self, *, usable: bool, want_norm: bool) -> Tensor | None:
        """See `Stepper.update`; returns the norms of all members, `(M,)`."""
        learner, results = self._stack.learner, self._results
        self._results = []
        with self._span("metrics"):
            for found in results:
                learner.metrics["train"].update(*found)
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
        watch: See `Trainer`.
        judged: Called with the name of a member and its monitored value.
    """

    def __init__(
        self,
        stack: Stack,
        services: Services,
        *,
        monitor: str,
        mode: str,
        watch: NoWatch | None = None,
        judged: Callable[[str, float], None] = lambda name, value: None,
    ) -> None:
        stepper, guard = VectorStepper(stack, services.spans), NoGuard(torch.device("cpu"))
        super().__init__(stack.learner, services, monitor=monitor, mode=mode, guard=guard, watch=watch, stepper=stepper)
        self._rescue.computes_only = True
        self.stack, self._counted, self._judged = stack, self._samples(), judged

    def _samples(self) -> int:
        return self.state.epoch * self.timetable.epoch_samples + self.state.samples_done

    def log_step(self) -> None:
        """Log values of this very step, for each member its own."""
        with self._span("logging"):
            before, self._counted = self._counted, self._samples()
            speed, machine = self._clock.read(self._counted - before), self._clock.vitals()
            losses = self.stepper.loss.tolist()
            norms = [float("nan")] * len(losses) if self._norm is None else self._norm.tolist()
            for place, (member, loss, norm) in enumerate(zip(self.stack.active, losses, norms)):
                self._follow(member)
                member.clock.speed, member.clock.machine = speed, machine
                rates = {
                    name: self.stack.steps.rate(place, at, rate) for at, (name, rate) in enumerate(self._rates.items())
                }
                member.report.step(loss, norm, rates, {})

    def _follow(self, member: StackMember) -> None:
        """Let the counters of a member be those of the loop."""
        mine, own = self.state, member.state
        own.epoch, own.samples_done, own.step = mine.epoch, mine.samples_done, mine.step
        own.validated_step, own.closed_step = mine.validated_step, mine.closed_step

    def take_epoch(self, values: Any) -> bool:
        """Log and judge the training values of an epoch, of each member its own."""
        return self._take(values, "on_epoch", judged=self.monitor in {name for own in values for name in own})

    def take_validation(self, values: Any) -> bool:
        """Log and judge the values of a validation, of each member its own; then let those go that have ended."""
        self.state.validated_step = self.state.step
        improved = self._take(values, "on_validation", judged=self.monitor.startswith("val/"))
        self._settle()
        return improved

    def _take(self, values: Any, hook: str, *, judged: bool) -> bool:
        for member, own in zip(self.stack.active, values):
            self._follow(member)
            member.report.values(own)
            if judged:
                member.improved = member.state.keep_best(own[self.monitor], own, mode=self.mode)
                self._judged(member.name, own[self.monitor])
            for callback in member.learner.callbacks.values():
                getattr(callback, hook)(member, own)
        if values:  # for whoever watches
            self.state.last |= {name: sum(own[name] for own in values) / len(values) for name in values[0]}
        return any(member.improved for member in self.stack.active)

    def _settle(self) -> None:
        """Find members that are lost or have ended, and keep the weights that are to stay of the others.

        At the end of an epoch members that are lost or have ended leave the stack.
        """
        stack, state = self.stack, self.state
        closes = self.finished or state.samples_done == 0
        for member, finite in zip(stack.active, stack.finite()):
            self._follow(member)
            if closes:
                member.state.closed_step = state.step
            if not finite and member.lost is None:
                member.lost = f"a weight is no longer finite at step {state.step}"
        going = [member for member in stack.active if closes and member.lost is None]
        ended = [member for member in going if self.finished or member.state.stop_reason is not None]
        self._keep_weights(ended)
        if closes and not self.finished:
            if gone := [member for member in stack.active if member.lost or member in ended]:
                stack.leave(gone)
            if not stack.active:
                self.stop("all members have ended")

    def _keep_weights(self, ended: Sequence[StackMember]) -> None:
        """Keep the weights of members at their best so far, and at their end."""
        active = self.stack.active
        kept = [member for member in active if member in ended or (member.improved and member.lost is None)]
        for member, saved in zip(kept, self.stack.contents(kept)):
            member.best = saved if member.improved else member.best
            member.last = saved if member in ended else None
        for member in active:
            member.improved = False


class WatchedStack(WatchedModel):
    """What a watch reads of the members in training.

    Args:
        stack: The members.
    """

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.learner)
        self._model = stack.model
        self.members = [member.name for member in stack.active]

    @staticmethod
    def largest(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the largest absolute value of each gradient of each member, `(M,)`."""
        return [gradient.reshape(len(gradient), -1).abs().amax(1) for gradient in gradients]

    @property
    def modules(self) -> nn.Module:
        """See `WatchedModel.modules`; the layers are those of the first member."""
        return self._model.template

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """See `WatchedModel.buffers`."""
        return self._model.states

    def of_member(self, tensors: Mapping[str, Tensor], member: str) -> dict[str, Tensor]:
        """See `WatchedModel.of_member`."""
        row = self.members.index(member)
        return {name: tensor[row] for name, tensor in tensors.items()}

    def fingerprints(self, tensors: Mapping[str, Tensor]) -> StackFingerprints:
        """See `WatchedModel.fingerprints`."""
        return StackFingerprints(self.members, tensors)

    def changed(self, before: StackFingerprints, now: StackFingerprints) -> dict[str, set[str]]:
        """See `WatchedModel.changed`."""
        return before.changed(now)


class StackFingerprints:
    """Fingerprints of the tensors of each member at one moment.

    Args:
        members: Their names.
        tensors: Tensors `(M, ...)` by name, on one device.
    """

    def __init__(self, members: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        self.members = list(members)
        self._sums = {name: row_fingerprints(tensor) for name, tensor in tensors.items()}

    def changed(self, now: StackFingerprints) -> dict[str, set[str]]:
        """Return the names of the tensors that are not the same bits, for each member of `now`; waits once."""
        names = [name for name in self._sums if name in now._sums]
        if not names:
            return {member: set() for member in now.members}
        before, after = (torch.stack([moment._sums[name] for name in names]) for moment in (self, now))
        if self.members != now.members:  # some have left the stack meanwhile
            before = before[:, [self.members.index(member) for member in now.members]]
        differs = (before != after).any(2).T.tolist()
        return {member: {*compress(names, own)} for member, own in zip(now.members, differs)}
