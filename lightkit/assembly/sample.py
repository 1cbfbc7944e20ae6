"""Ways to run a network before anything is trained, to see what computes its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from lightkit.assembly.dry_run import unnoticed
from lightkit.assembly.parts import build_loss
from lightkit.config import instantiate
from lightkit.data import Data, DataInfo
from lightkit.data.probe import small_batch
from lightkit.device import Engine
from lightkit.finetune.tracing import Forward
from lightkit.trainer.tasks import Retrieval, Supervised, Task, logits

_CPU = torch.device("cpu")
_SAMPLES = 2
_FEW = 16
"""Tokens that are tried first: a large language model takes long for a whole sample."""


def forwards(cfg: DictConfig, info: DataInfo, engine: Engine, data: Data | None = None) -> list[Forward]:
    """List ways to run a network, in the order in which to try them.

    With the usual tasks that is on made-up inputs of the shape that the data tell, as numbers or as tokens; the others
    know by themselves what their model takes and which of its outputs count, and need a batch.

    Args:
        cfg: The configuration.
        info: Facts about the data.
        engine: Device and seeds.
        data: The data, for a batch of two of their samples; None goes without.
    """
    made_up = [_unnoticed(_on(make)) for make in _inputs(info)]
    batch = list[Forward]()
    if data is not None:
        train = data.train

        def by_task(model: nn.Module) -> Tensor:
            """Return the outputs that the task hands to the metrics, or else its loss."""
            task: Task = instantiate(cfg.trainer.task, key="trainer.task", expected=Task)
            criterion = build_loss(cfg, info, engine)
            if isinstance(criterion, nn.Module):
                criterion.to(_CPU)
            step = task.step(model, small_batch(train), criterion)
            return step.loss if step.preds is None else step.preds

        batch.append(_unnoticed(by_task))
    usual = {f"{kind.__module__}.{kind.__qualname__}" for kind in (Supervised, Retrieval)}
    return [*made_up, *batch] if cfg.trainer.task["_target_"] in usual else [*batch, *made_up]


def _inputs(info: DataInfo) -> list[Callable[[], Tensor]]:
    """Make functions that make up samples of the shape that the data has."""
    if info.vocab_size is not None:
        whole = info.context_length or (info.input_shape or (1,))[0]
        return [partial(_tokens, length, info.vocab_size) for length in sorted({min(whole, _FEW), whole})]
    if not info.input_shape:
        return []
    shape = (_SAMPLES, *info.input_shape)
    numbers = torch.Generator().manual_seed(0)
    return [
        lambda: torch.rand(shape, generator=numbers).requires_grad_().clone(),
        lambda: torch.zeros(shape, dtype=torch.long),
    ]


def _tokens(length: int, vocab_size: int) -> Tensor:
    return torch.arange(_SAMPLES * length).view(_SAMPLES, length) % vocab_size


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
