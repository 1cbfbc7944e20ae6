"""What `torch.nn.DataParallel` lacks: a CPU, the number format of autocast, and a loss on another device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.nesting import mapped
from lightkit.device.casting import WrappedLoss


class LossElsewhere(WrappedLoss):
    """A loss that is computed on another device than the main one, which gets the result.

    Args:
        inner: The loss.
        device: Where it is computed; its own tensors are moved there.
        main: Where its result goes.
    """

    def __init__(self, inner: Callable[..., Tensor], device: torch.device, main: torch.device) -> None:
        super().__init__(inner.to(device) if isinstance(inner, nn.Module) else inner)
        self._device, self._main = device, main

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the loss of these arguments."""

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(self._device, non_blocking=True)

        return self.inner(*mapped(there, args), **mapped(there, kwargs)).to(self._main)


class SingleDevice(nn.DataParallel):
    """DataParallel without a GPU, also where there is one that is not wanted: torch's own would take it."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids = module, []


class MultiGpu(nn.DataParallel):
    """DataParallel whose threads compute in the number format of autocast: torch's start with fp16, whatever is set."""

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        """Compute the parts of a batch, each by its replica."""
        if not torch.is_autocast_enabled("cuda"):
            return super().parallel_apply(replicas, inputs, kwargs)
        kind = torch.get_autocast_dtype("cuda")

        def within(replica: nn.Module) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                with torch.autocast("cuda", dtype=kind):
                    return replica(*args, **options)

            return call

        return super().parallel_apply([within(replica) for replica in replicas], inputs, kwargs)
