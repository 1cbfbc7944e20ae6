"""Number formats of what goes into a model and of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.modules import mapped

HALVES = (torch.bfloat16, torch.float16)


def full(value: Any) -> Any:
    """Turn half-precision tensors in nested values into fp32; everything else stays as it is."""
    return mapped(lambda tensor: tensor.float() if tensor.dtype in HALVES else tensor, value)


def floats_as(dtype: torch.dtype, value: Any) -> Any:
    """Turn floating-point tensors in nested values into another format; whole numbers stay what they are."""
    return mapped(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value)


def weights_as(dtype: torch.dtype, module: nn.Module) -> nn.Module:
    """Turn floating-point parameters and buffers into another format, in place; complex and whole numbers stay."""
    return module._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


class Hook:
    """Changes what goes into a module or what comes out. It belongs to a run, not to the model: no file gets it."""

    transient = True


class FullOutputs(Hook):
    """Outputs in fp32 at least, so that losses and metrics are computed in it."""

    def __call__(self, _module: nn.Module, _inputs: Any, outputs: Any) -> Any:
        """Return the outputs to go on with."""
        return full(outputs)


class InputsAs(Hook):
    """Inputs in the format of the weights.

    Args:
        dtype: That format.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the inputs to go on with."""
        return floats_as(self.dtype, args), floats_as(self.dtype, kwargs)


class ChannelsLast(Hook):
    """Images in the memory format of the weights, so that no layer has to turn them around."""

    def __call__(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the inputs to go on with."""
        return mapped(channels_last, args), mapped(channels_last, kwargs)


def channels_last(tensor: Tensor) -> Tensor:
    """Put the channels of a batch of images `(B, C, H, W)`, or of volumes, next to each other in memory."""
    if tensor.ndim == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    if tensor.ndim == 5 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last_3d)
    return tensor


def weights_channels_last(module: nn.Module) -> nn.Module:
    """Put the channels of the weights of convolutions next to each other in memory, in place."""
    return module._apply(lambda tensor: tensor if nn.parameter.is_lazy(tensor) else channels_last(tensor))


class WrappedLoss(nn.Module):
    """Base of losses around another one, all of whose attributes they have.

    Args:
        inner: The loss.
    """

    def __init__(self, inner: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "inner":
                raise
            return getattr(self.inner, name)


class FullLoss(WrappedLoss):
    """A loss outside of autocast, on fp32 values: matrix products in it are not rounded either.

    Args:
        inner: The loss.
        device: Where it is computed.
    """

    def __init__(self, inner: Callable[..., Tensor], device: torch.device) -> None:
        super().__init__(inner)
        self._device = device.type

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the loss of these arguments."""
        with torch.autocast(self._device, enabled=False):
            return self.inner(*full(args), **full(kwargs))
