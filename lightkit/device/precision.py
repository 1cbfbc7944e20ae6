"""Number formats of the forward and backward pass, and the one place that steps an optimizer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.device.clip import Clip
from lightkit.device.stepping import take_step

_PLAIN_ZERO_GRAD = Optimizer.zero_grad


class Precision:
    """Full precision: the plain case. Variants override what differs.

    Args:
        device: Where the model computes.
    """

    name = "fp32"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._context = nullcontext()

    def prepare(self, model: nn.Module) -> nn.Module:
        """Make a model ready for this precision; its parameter names stay."""
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward pass."""
        return self._context

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the parameters."""
        loss.backward()

    def step(self, optimizer: Optimizer, *, clip: Clip, want_norm: bool = False) -> Tensor | None:
        """Unscale, clip, step, clear the gradients: in this order, whatever the precision.

        Returns:
            Norm of the gradients before clipping, or None where neither asked for nor a by-product.
        """
        self.unscale(optimizer)
        norm = clip(optimizer, want_norm=want_norm)
        self.update(optimizer)
        clear_gradients(optimizer)
        return norm

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the gradients back to their true size; here they have it."""

    def update(self, optimizer: Optimizer) -> None:
        """Let the optimizer take its step."""
        take_step(optimizer)

    def discard(self, optimizer: Optimizer) -> None:
        """Clear the gradients without a step."""
        clear_gradients(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: nothing without a loss scale."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""


class Bf16(Precision):
    """Matrix products in bfloat16 by autocast; weights, gradients, outputs and losses stay in fp32."""

    name = "bf16"
    dtype = torch.bfloat16

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward pass; a new one each time, since a nested use of the same one would not end."""
        return torch.autocast(self.device.type, dtype=self.dtype)

    def prepare(self, model: nn.Module) -> nn.Module:
        """Let the model give its outputs in fp32, so that losses and metrics are computed in it."""
        model.register_forward_hook(_full_outputs)
        return model


class Fp16(Bf16):
    """Matrix products in float16, with a loss scale that keeps small gradients from vanishing.

    A step whose gradients overflow is left out and the scale halved (Micikevicius et al. 2018,
    https://arxiv.org/abs/1710.03740); the scale is part of a checkpoint.
    """

    name = "fp16"
    dtype = torch.float16

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(device.type)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the scaled loss."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, so that clipping sees their true size."""
        self.scaler.unscale_(optimizer)

    def update(self, optimizer: Optimizer) -> None:
        """Step where all gradients are finite, and adapt the scale."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """The scale, and how long it has held."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved scale."""
        if state:
            self.scaler.load_state_dict(state)


def clear_gradients(optimizer: Optimizer) -> None:
    """Set the gradients to None: `optimizer.zero_grad` without its profiler record, which costs more than the rest."""
    if type(optimizer).zero_grad is not _PLAIN_ZERO_GRAD:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _full_outputs(_module: nn.Module, _inputs: Any, outputs: Any) -> Any:
    return full(outputs)


def full(value: Any) -> Any:
    """Half-precision tensors in nested tuples, lists and dicts as fp32; everything else as it is."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([full(item) for item in value])
    if type(value) in (tuple, list):
        return type(value)(full(item) for item in value)
    if type(value) is dict:
        return {key: full(item) for key, item in value.items()}
    return value


_KINDS: dict[str, type[Precision]] = {kind.name: kind for kind in (Precision, Bf16, Fp16)}


def make_precision(name: str, device: torch.device) -> Precision:
    """The precision of that name: `fp32`, `bf16` or `fp16`.

    Raises:
        UserError: There is no such precision, or the device has none.
    """
    if name not in _KINDS:
        raise UserError("no such precision", key="device.precision", received=name, choices=_KINDS)
    if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError("this GPU has no bfloat16", key="device.precision", received=name, fix="device.precision=fp32")
    return _KINDS[name](device)
