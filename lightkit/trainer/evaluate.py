"""One pass over a split without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lightkit.trainer.interrupt import Interrupt
from lightkit.trainer.services import NoProfiler
from lightkit.trainer.tasks import Criterion, Task

_END, _PLAIN = object(), NoProfiler()


class Meter(Protocol):
    """What collects the results of batches: metrics of a split, figures, predictions."""

    def update(
        self,
        preds: Tensor | None,
        target: Tensor | None,
        loss: Tensor,
        size: int,
        kwargs: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take in one batch of `size` samples."""


class EvalContext(Protocol):
    """What evaluation needs of an engine: moving, precision, and the processes that share the batches."""

    ranks: Any
    """See `lightkit.device.ranks.Ranks`."""

    def move(self, batch: Any) -> Any:
        """The batch on the device."""

    def prefetch(self, batches: Any) -> Any:
        """The same batches, perhaps on the device already."""

    def autocast(self) -> Any:
        """Context manager of the forward pass."""


def evaluate(
    model: nn.Module,
    loader: Any,
    meters: Iterable[Meter],
    *,
    task: Task,
    criterion: Criterion,
    context: EvalContext,
    each: Callable[[int], None] | None = None,
    interrupt: Interrupt | None = None,
    span: Callable[[str], AbstractContextManager[None]] = _PLAIN.span,
) -> None:
    """Run the model over a whole split in eval mode and without gradients.

    The mode of the model is put back afterwards, module by module: a frozen part that was in eval stays there.

    Args:
        model: The network as trained, wrapped or not.
        loader: Batches of the split; always read in the same order.
        meters: Collectors that get every batch.
        task: How a batch becomes a loss and metric inputs.
        criterion: The loss.
        context: Device placement and precision.
        each: Called with the number of finished batches after each of them.
        interrupt: Tells when a signal asked to end; it ends the wait for a batch.
        span: Names the stretches of time.

    Raises:
        AskedToEnd: A signal came while a batch was waited for.
    """
    awaited = interrupt or Interrupt()
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            left, done, batches = loader.num_samples, 0, iter(context.prefetch(loader.epoch(0)))
            while True:
                with span("data"):
                    batch = awaited.wait(batches, _END)
                    if batch is _END:
                        break
                    batch = context.move(batch)
                size = min(loader.batch_size, left)
                left -= size
                with span("forward"), context.autocast():
                    step = task.step(model, batch, criterion)
                with span("metrics"):
                    for meter in meters:
                        meter.update(step.preds, step.target, step.loss, context.ranks.own(size)[1], step.metric_kwargs)
                done += 1
                if each is not None:
                    each(done)
    finally:
        for module, training in modes:
            module.training = training
