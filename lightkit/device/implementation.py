"""Which of PyTorch's implementations of an optimizer steps: all give the same up to rounding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.modules import is_shard

NAMES = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
"""Arguments that ask for an implementation."""
FLAGS = ("fused", "foreach")
"""Arguments and group settings that tell of one; they belong to the machine, not to what was learnt."""
_KERNELS = ("cuda", "cpu")
SHARED_OUT = ("Adam", "AdamW")
"""Optimizers of PyTorch with a kernel for parameters of which each process holds a part."""


def arguments(name: str, model: nn.Module, device: torch.device, *, kind: str = "AdamW") -> dict[str, bool]:
    """Return arguments for an optimizer, as far as it takes them.

    `auto` asks for one kernel for all parameters on NVIDIA's GPUs and on the CPU. Elsewhere, and for gradients that it
    does not take, PyTorch chooses. Of parameters that are shared out not every optimizer has such a kernel.

    Args:
        name: `auto`, `fused`, `foreach` or `loop`.
        model: Its parameters are those of the optimizer.
        device: Where they are.
        kind: Name of the optimizer's class.

    Raises:
        UserError: `fused` is asked for where there is no such kernel.
    """
    if kind not in SHARED_OUT and any(map(is_shard, model.parameters())):
        if name == "fused":
            what = f"PyTorch has no kernel of {kind} for parameters of which each process holds a part"
            raise UserError(what, argument="optimizer", received=name, choices=("auto", "foreach", "loop"))
        return dict(NAMES["foreach" if name == "auto" else name])
    if name != "auto":
        return dict(NAMES[name])
    parameters = list(model.parameters())
    if device.type not in _KERNELS or any(getattr(module, "sparse", False) for module in model.modules()):
        return {}
    if any(nn.parameter.is_lazy(parameter) or not parameter.is_floating_point() for parameter in parameters):
        return {}
    return {"fused": True} if all(_fills_its_memory(parameter) for parameter in parameters) else {}


def _fills_its_memory(tensor: Tensor) -> bool:
    """Tell whether its elements lie side by side, in whatever order; gradients then lie in the same order."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def implementation_of(optimizer: Optimizer) -> str:
    """Return `fused`, `foreach` or `loop` where one was asked for; empty where PyTorch chooses or has no choice."""
    if optimizer.defaults.get("fused"):
        return "fused"
    chosen = optimizer.defaults.get("foreach")
    return "" if chosen is None else "foreach" if chosen else "loop"
