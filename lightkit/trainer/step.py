"""One optimizer step: forward and backward of the batches of its window, then the update of the weights."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lightkit.common.modules import mapped
from lightkit.diagnostics.spans import NoSpans
from lightkit.trainer.guard import Guard
from lightkit.trainer.learner import Learner
from lightkit.trainer.tasks import loss_weight


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
        self.loss, self.samples, self.outputs = torch.zeros(()), 1, None  # type: Tensor, int, Any
        self._results: list[Any] = []

    def begin(self) -> None:
        """See `Stepper.begin`."""
        self._results = []

    def micro(self, batch: Any, *, position: int, size: int, window: int, more: bool) -> bool:
        """See `Stepper.micro`. Randomness is a function of where in the run the batch stands.

        Of several processes each has its part of the batch, and their gradients are averaged.
        """
        learner, engine = self._learner, self._learner.engine
        first, own = engine.ranks.own(size)
        share = own * engine.ranks.replicas / window
        with engine.accumulating(learner.network, more):
            engine.seed(learner.state.epoch, position + first)
            with self._span("forward"), engine.autocast():
                step = learner.task.step(learner.network, batch, learner.criterion)
            self.loss, self.samples = step.loss, own
            with self._span("checks"):
                fine = self._guard.passes(step.loss)
            if not fine:
                engine.waste(step.loss)
                return False
            with self._span("backward"):
                engine.backward(step.loss if share == 1.0 else step.loss * share)
        weight = loss_weight(step, learner.criterion)
        found = (step.preds, step.target, step.loss, own, step.metric_kwargs, weight, step.log)
        self._results.append(mapped(torch.Tensor.detach, found))
        self.outputs = self._results[-1][0]
        return True

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
            norm = learner.engine.step(learner.optimizer, want_norm=want_norm)
            learner.average.update()
            return norm
