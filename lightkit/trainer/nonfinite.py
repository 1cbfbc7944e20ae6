"""Which tensor of a run is not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.nesting import tensors
from lightkit.common.shards import is_shard
from lightkit.trainer.learner import Learner


def first_bad(learner: Learner, batch: Any, position: int) -> str:
    """The first tensor that is not finite: a parameter, an input, or a module's output in the order of computation."""
    for name, parameter in learner.model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name} is not finite"
    for index, tensor in enumerate(tensors(batch)):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return f"tensor {index} of the batch is not finite"
    return _first_output(learner, batch, position)


def bad_parameter(model: nn.Module) -> str | None:
    """Name of the first trained parameter that is not finite; the whole model costs one wait for the device."""
    trained = [(name, weight.detach()) for name, weight in model.named_parameters() if weight.requires_grad]
    sums = [weight.sum() for _, weight in trained]
    if not trained or bool(torch.isfinite(sum(map(_everywhere, sums), start=torch.zeros(())))):
        return None
    return next((name for name, weight in trained if not torch.isfinite(_everywhere(weight)).all()), None)


def _everywhere(value: Tensor) -> Tensor:
    """A tensor of which each process may hold a part; then all of them ask."""
    found: Tensor = value.full_tensor() if is_shard(value) else value  # type: ignore[attr-defined]
    return found


def _first_output(learner: Learner, batch: Any, position: int) -> str:
    bad: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if any(t.is_floating_point() and not torch.isfinite(t).all() for t in tensors(output)):
                bad.append(name)

        return hook

    model = learner.model  # compiled code would not call the hooks
    hooks = [part.register_forward_hook(look(name or "the model")) for name, part in model.named_modules()]
    try:
        learner.engine.seed(learner.state.epoch, position)
        with torch.no_grad(), learner.engine.autocast():
            learner.task.step(model, batch, learner.criterion)
    finally:
        for handle in hooks:
            handle.remove()
    return f"the output of {bad[0]} is the first that is not finite" if bad else "the model's outputs are finite"
