"""Running a network on a few samples before training: ways to do it, and what that tells of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from lightkit.assembly.dry_run import unnoticed
from lightkit.assembly.origin import depths_of_run
from lightkit.assembly.parts import build_loss
from lightkit.config import instantiate
from lightkit.data import Data, DataInfo
from lightkit.data.loaders import small_batch
from lightkit.device import Engine
from lightkit.finetune.tracing import Forward, running_order
from lightkit.optim.layers import layer_depths, order_notes
from lightkit.trainer.tasks import Retrieval, Supervised, Task, logits

Depths = Callable[[nn.Module], dict[str, int]]
"""Gives the layer of each parameter of a network."""
_CPU = torch.device("cpu")
_SAMPLES = 2
_FEW = 16
"""Tokens that are tried first: a large language model takes long for a whole sample."""


def find_depths(
    model: nn.Module, ways: Sequence[Forward], *, run: Path | None = None
) -> tuple[Depths, tuple[str, ...]]:
    """Find out in which order the layers of a network run.

    Args:
        model: The network, before fine-tuning changes anything.
        ways: Ways to run it on samples.
        run: Folder of a run that has begun, which keeps the order that it had.

    Returns:
        What gives the layer of each parameter, and notes on layers of which the order is not known.
    """
    kept = depths_of_run(run, model) if run else None
    if kept is not None:
        return lambda changed: {name: kept.get(name, 0) for name, _ in changed.named_parameters()}, ()
    order, why = running_order(model, ways)
    return partial(layer_depths, order=order), tuple(order_notes(model, order, why))


def forwards(
    task: DictConfig,
    loss: DictConfig,
    info: DataInfo,
    engine: Engine,
    data: Data | None = None,
    *,
    whole: bool = False,
) -> list[Forward]:
    """List ways to run a network, in the order in which to try them.

    With the usual tasks that is on made-up inputs of the shape that the data tell, as numbers or as tokens; the others
    know by themselves what their model takes and which of its outputs count, and need a batch.

    Args:
        task: The node of the task.
        loss: The node of the loss.
        info: Facts about the data.
        engine: Device and seeds.
        data: The data, for a batch of two of their samples; None goes without.
        whole: Only samples of the size that they have in training, those of the data first.
    """
    made_up = [_unnoticed(_on(make)) for make in _inputs(info, whole=whole)]
    batch = list[Forward]()
    if data is not None:
        train = data.train

        def by_task(model: nn.Module) -> Tensor:
            """Return the outputs that the task hands to the metrics, or else its loss."""
            made: Task = instantiate(task, key="trainer.task", expected=Task)
            criterion = build_loss(loss, info, engine)
            if isinstance(criterion, nn.Module):
                criterion.to(_CPU)
            step = made.step(model, small_batch(train), criterion)
            return step.loss if step.preds is None else step.preds

        batch.append(_unnoticed(by_task))
    usual = {f"{kind.__module__}.{kind.__qualname__}" for kind in (Supervised, Retrieval)}
    first = task["_target_"] in usual and not whole
    return [*made_up, *batch] if first else [*batch, *made_up]


def _inputs(info: DataInfo, *, whole: bool) -> list[Callable[[], Tensor]]:
    """Make functions that make up samples of the shape that the data has."""
    if info.vocab_size is not None:
        most = info.context_length or (info.input_shape or (1,))[0]
        sizes = [(_SAMPLES, length) for length in ([most] if whole else sorted({min(most, _FEW), most}))]
        return [partial(torch.clone, torch.arange(a * b).view(a, b) % info.vocab_size) for a, b in sizes]
    if not info.input_shape:
        return []
    shape = (_SAMPLES, *info.input_shape)
    numbers = torch.Generator().manual_seed(0)
    return [
        lambda: torch.rand(shape, generator=numbers).requires_grad_().clone(),
        lambda: torch.zeros(shape, dtype=torch.long),
    ]


def _on(make: Callable[[], Tensor]) -> Forward:
    return lambda model: _first(model(make()))


def _first(output: Any) -> Tensor:
    """Return the tensor that a loss would take, or the first of several."""
    output = logits(output)
    while isinstance(output, (Mapping, tuple, list)):
        output = next(iter(output.values() if isinstance(output, Mapping) else output))
    return output


def _unnoticed(forward: Forward) -> Forward:
    def quiet(model: nn.Module) -> Tensor:
        with unnoticed(_CPU):
            return forward(model)

    return quiet
