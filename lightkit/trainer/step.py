"""One optimizer step: forward and backward of the batches of its window, then the update of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.modules import mapped
from lightkit.common.stepping import needs_closure
from lightkit.device import Engine
from lightkit.device.stepping import Clip, ClipNorm
from lightkit.diagnostics.spans import NoSpans
from lightkit.metrics.split import AllBut, detached
from lightkit.trainer.average import NoAverage
from lightkit.trainer.guard import Guard
from lightkit.trainer.learner import Learner
from lightkit.trainer.tasks import StepOutput, Task, loss_weight


class Stepper(Protocol):
    """What the loop asks for at each step; one that trains many models at once may take the place of `PlainStepper`."""

    loss: Tensor
    """Loss of the newest batch."""
    samples: int
    """Samples of that batch that this process computed."""
    outputs: Any
    """Outputs for that batch, as metrics get them."""

    def begin(self) -> None:
        """Begin a window: what was computed for one that did not come to its update is forgotten."""

    def micro(self, batch: Any, *, position: int, size: int, window: int, more: bool) -> bool:
        """Compute the gradients of one batch and add them to those of its window.

        Args:
            batch: The batch on the device.
            position: Position of its first sample in the epoch.
            size: Its samples, over all processes.
            window: Samples of the optimizer step.
            more: Whether further batches of the window follow.

        Returns:
            Whether the gradients may be used.
        """

    def update(self, *, usable: bool, want_norm: bool) -> Tensor | None:
        """Step over the gathered gradients, or throw them away.

        Args:
            usable: Whether every batch of the window gave gradients that may be used.
            want_norm: Whether the norm of the gradients is asked for.

        Returns:
            The norm of the gradients before clipping, where it is wanted or free; NaN where they were thrown away.
        """


class PlainStepper:
    """Steps over one model.

    Args:
        learner: The model and what trains it.
        guard: Tells whether a loss may be used.
        spans: Names the stretches of time.
    """

    def __init__(self, learner: Learner, guard: Guard, spans: NoSpans) -> None:
        self._learner, self._guard, self._span = learner, guard, spans.span
        self._precision = learner.engine.precision
        self.loss, self.samples, self.outputs = torch.zeros(()), 1, None  # type: Tensor, int, Any
        self._results: list[Any] = []

    def begin(self) -> None:
        """See `Stepper.begin`."""
        self._results = []

    def micro(self, batch: Any, *, position: int, size: int, window: int, more: bool) -> bool:
        """See `Stepper.micro`."""
        step, fine = self._compute(batch, position=position, size=size, window=window, more=more)
        self.loss, self.samples = step.loss, self._learner.engine.ranks.own(size)[1]
        if not fine:
            return False
        weight = loss_weight(step, self._learner.criterion, AllBut)
        found = (step.preds, step.target, step.loss, self.samples, step.metric_kwargs, weight, step.log)
        self._results.append([mapped(detached, part) for part in found])
        self.outputs = self._results[-1][0]
        return True

    def _compute(self, batch: Any, *, position: int, size: int, window: int, more: bool) -> tuple[StepOutput, bool]:
        """Add the gradients of a batch; returns what it gave, and whether the gradients may be used.

        Randomness is a function of where in the run the batch stands. Of several processes each has its part of the
        batch, and their gradients are averaged.
        """
        learner, engine = self._learner, self._learner.engine
        first, own = engine.ranks.own(size)
        share = own * engine.ranks.replicas / window
        with engine.accumulating(learner.network, more):
            engine.seed(learner.state.epoch, position + first)
            with self._span("forward"), engine.autocast():
                step = self._step(batch)
            with self._span("checks"):
                fine = self._guard.passes(step.loss)
            if not fine:
                engine.waste(step.loss)
                return step, False
            with self._span("backward"):
                self._precision.backward(step.loss if share == 1.0 else step.loss * share)
        return step, True

    def _step(self, batch: Any) -> StepOutput:
        """Compute the loss of a batch."""
        learner = self._learner
        return learner.task.step(learner.network, batch, learner.criterion)

    def update(self, *, usable: bool, want_norm: bool) -> Tensor | None:
        """See `Stepper.update`."""
        learner, results = self._learner, self._results
        self._results = []
        with self._span("metrics"):  # not before: metrics know of whole steps only
            for found in results:
                learner.metrics["train"].update(*found)
        with self._span("optimizer"):
            if not usable:
                learner.engine.discard(learner.optimizer)
                return torch.full((), torch.nan)  # what a step is logged with must not be that of another one
            norm = self._take(want_norm=want_norm)
            learner.average.update()
            return norm

    def _take(self, *, want_norm: bool) -> Tensor | None:
        """Let the optimizer step; returns the norm of the gradients before clipping, where it is wanted or free."""
        return self._learner.engine.step(self._learner.optimizer, want_norm=want_norm)


class ClosureStepper(PlainStepper):
    """Steps of an optimizer that asks for loss and gradients again, at other weights, such as L-BFGS and SAM.

    Its first question is answered by what the batches of the window have given already. For the others they are kept
    on the device and computed anew, with the same random numbers. Buffers such as running averages stay as the first
    pass has left them, and metrics and logged loss are those of the first pass.
    """

    def __init__(self, learner: Learner, guard: Guard, spans: NoSpans) -> None:
        super().__init__(learner, guard, spans)
        self.begin()

    def begin(self) -> None:
        """See `Stepper.begin`."""
        super().begin()
        self._window: list[tuple[Any, dict[str, Any]]] = []
        self._total, self._fine = torch.zeros((), device=self._learner.engine.device), True

    def update(self, *, usable: bool, want_norm: bool) -> Tensor | None:
        """See `Stepper.update`."""
        norm = super().update(usable=usable, want_norm=want_norm)
        self.begin()  # the batches need no memory any more
        return norm

    def micro(self, batch: Any, **place: Any) -> bool:
        """See `Stepper.micro`."""
        self._window.append((batch, place))
        return super().micro(batch, **place)

    def _compute(self, batch: Any, **place: Any) -> tuple[StepOutput, bool]:
        """See `PlainStepper._compute`; the losses of a window are added up."""
        step, self._fine = super()._compute(batch, **place)
        ranks = self._learner.engine.ranks
        self._total = self._total + step.loss.detach() * (
            ranks.own(place["size"])[1] * ranks.replicas / place["window"]
        )
        return step, self._fine

    def _take(self, *, want_norm: bool) -> Tensor | None:
        """Let the optimizer step by a closure; a loss that is not finite in its last question is the guard's."""
        learner, engine, norms = self._learner, self._learner.engine, list[Tensor | None]()

        def closure() -> Tensor:
            if norms:
                self._compute_again()
            norms.append(engine.clip(learner.optimizer, want_norm=want_norm and not norms))
            return self._total if engine.ranks.size == 1 else torch.tensor(engine.ranks.mean(self._total, 1))

        learner.optimizer.step(closure)  # type: ignore[arg-type]
        engine.discard(learner.optimizer)
        if not self._fine:
            batch, place = self._window[-1]
            self._guard.refuse(learner, batch, place["position"])
        return norms[0]

    def _compute_again(self) -> None:
        """Compute loss and gradients of the window at the weights of now; none where a loss is not finite."""
        learner, fine = self._learner, True
        kept = [(buffer, buffer.detach().clone()) for buffer in learner.model.buffers()]
        learner.engine.precision.discard(learner.optimizer)
        self._total = torch.zeros_like(self._total)
        for batch, place in self._window:
            fine = self._compute(batch, **place)[1] and fine
        self._fine = fine
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
        if not fine:
            learner.engine.precision.discard(learner.optimizer)


class PartsStepper(ClosureStepper):
    """Steps of several optimizers by name, each by the loss that the task has for it, one after the other.

    The first one steps by the batches of the window as they come. They are kept on the device, and the others compute
    their losses of them at the weights that it has left, with the same random numbers. While the loss of one is
    computed, the parameters of the others need no gradient. The loss of the run is that of the first; all of them are
    logged as `loss_NAME`.
    """

    norms: Mapping[str, float] = MappingProxyType({})
    """Norms of the gradients of the other optimizers in the newest step, by the names they are logged under."""

    def __init__(self, learner: Learner, guard: Guard, spans: NoSpans) -> None:
        super().__init__(learner, guard, spans)
        self._parts: Mapping[str, Any] = learner.optimizer.named  # type: ignore[attr-defined]
        self._first = self._name = next(iter(self._parts))

    def micro(self, batch: Any, **place: Any) -> bool:
        """See `Stepper.micro`."""
        with self._alone(self._first):
            return super().micro(batch, **place)

    def _step(self, batch: Any) -> StepOutput:
        learner, name = self._learner, self._name
        step: Any = learner.task.part(name, learner.network, batch, learner.criterion)
        if not isinstance(step, StepOutput):
            raise UserError(f"the loss of {name} is missing", key="trainer.task", fix="part() returns a StepOutput")
        return step._replace(log={**(step.log or {}), f"loss_{name}": step.loss})

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Let the parameters of one optimizer need gradients, and no others."""
        groups = [group["params"] for group in self._learner.optimizer.param_groups if group["part"] != name]
        resting = [each for params in groups for each in params if each.requires_grad]
        precision = self._learner.engine.precision
        self._name, self._precision = name, precision if name == self._first else precision.beside(name)
        for each in resting:
            each.requires_grad_(False)
        try:
            yield
        finally:
            for each in resting:
                each.requires_grad_(True)

    def _take(self, *, want_norm: bool) -> Tensor | None:
        """Let each optimizer step that is due; returns the norm of the gradients of the first one."""
        learner, norms = self._learner, dict[str, Any]()

        def one(name: str) -> None:
            part = self._parts[name]
            if (learner.state.step + 1) % part.every == 0:
                with self._alone(name):
                    if name != self._first:
                        self._compute_again()
                    clip = part.clip or learner.engine.clip
                    norms[name] = self._precision.step(part.optimizer, clip=clip, want_norm=want_norm)

        learner.optimizer.step(one)  # type: ignore[arg-type]
        learner.engine.compiler.next_step()
        first = norms.pop(self._first)
        self.norms = {f"grad/norm_{name}": float(norm) for name, norm in norms.items() if norm is not None}
        return first

    def _compute_again(self) -> None:
        """Compute the loss of the window for another optimizer; one that is not finite is the guard's."""
        for batch, place in self._window:
            step, fine = self._compute(batch, **place)
            if not fine:
                self._guard.refuse(self._learner, batch, place["position"])
            log = mapped(torch.Tensor.detach, step.log)
            self._learner.metrics["train"].update(None, None, step.loss.detach(), self.samples, None, 0, log)


def make_stepper(learner: Learner, guard: Guard, spans: NoSpans) -> Stepper:
    """Make what steps over one model in the way that its optimizer wants.

    Args:
        learner: The model and what trains it.
        guard: Tells whether a loss may be used.
        spans: Names the stretches of time.
    """
    usual = ClosureStepper if needs_closure(learner.optimizer) else PlainStepper
    return (PartsStepper if learner.task.parts else usual)(learner, guard, spans)


def check_parts(task: Task, optimizer: Optimizer, engine: Engine) -> None:
    """Refuse several optimizers that the task has no losses for, and what does not go with those losses.

    Raises:
        UserError: The names differ, or the model is wrapped for several devices.
    """
    named, strategy = [*getattr(optimizer, "named", ())], engine.parallel.strategy
    if sorted(named) != sorted(task.parts):
        what = f"{type(task).__name__} has losses for other optimizers"
        expected = ", ".join(task.parts) or "one optimizer; a task of your own has losses for several (Task.part)"
        facts: dict[str, Any] = {"received": ", ".join(named) or type(optimizer).__name__, "family": "contradiction"}
        raise UserError(what, key="optim.parts", expected=expected, fix="optim=several, with these names", **facts)
    if named and (strategy.several_gpus or engine.ranks.size > 1):
        what, fix = "losses of several optimizers are computed on one device", "device.parallel=none device.nproc=1"
        raise UserError(what, key="device.parallel", received=strategy.name, fix=fix, family="contradiction")


def check_closure(optimizer: Optimizer, engine: Engine) -> None:
    """Refuse what does not go with an optimizer that asks for loss and gradients again.

    Raises:
        UserError: It is one, and the losses are scaled, or gradients are clipped that it must see as they are.
    """
    if not needs_closure(optimizer):
        return
    kind = type(optimizer).__name__
    if engine.precision.name == "fp16":
        what = f"{kind} asks for gradients at several places in a step, and the loss scale of fp16 knows of one"
        raise UserError(what, key="device.precision", received="fp16", fix="bf16 or fp32", family="contradiction")
    if type(engine.clip) is not Clip and not getattr(optimizer, "clips_gradients", False):
        what = f"{kind} compares gradients with losses, and so must see them as they are"
        key = "trainer.clip_norm" if isinstance(engine.clip, ClipNorm) else "trainer.clip_value"
        raise UserError(what, key=key, fix=f"{key}=null", family="contradiction")


class NoMetrics:
    """Count nothing, in the place of metrics."""

    def update(self, *_args: Any, **_named: Any) -> None:
        """Take the outputs of a batch."""


class AnyLoss(Guard):
    """Lets every loss pass, without waiting for the device."""

    def passes(self, loss: Tensor) -> bool:
        """See `Guard.passes`."""
        return True


def trial_stepper(learner: Learner, optimizer: Optimizer | None = None) -> Stepper:
    """Make what steps over a model and leaves metrics, averages and guards alone, for whoever tries something out.

    Args:
        learner: The model and what trains it.
        optimizer: In the place of the learner's own one.
    """
    alone: Any = {"metrics": {"train": NoMetrics()}, "average": NoAverage()}
    own = replace(learner, optimizer=optimizer or learner.optimizer, **alone)
    return make_stepper(own, AnyLoss(learner.engine.device), NoSpans())
