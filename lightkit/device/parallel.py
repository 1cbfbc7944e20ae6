"""One model on several devices. What wraps a model here is also taken off here: saved names are the model's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lightkit.common.errors import UserError


class Parallel:
    """The plain case: one model on one device.

    Args:
        device: The main device; the model is already there.
        dim: Dimension that batches are split in.
    """

    def __init__(self, device: torch.device, dim: int = 0) -> None:
        self.device, self.dim = device, dim

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device that computes; the main one first."""
        return (self.device,)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as the loop calls it."""
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The bare model, whatever it was wrapped in."""
        while True:
            if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
                inner = model.module
            else:
                inner = getattr(model, "_orig_mod", None)  # torch.compile
            if not isinstance(inner, nn.Module):
                return model
            model = inner

    def describe(self) -> str:
        """What to add to the description of the device; empty in the plain case."""
        return ""


class DataParallel(Parallel):
    """Each batch split over the visible GPUs, in one process; the outputs are gathered on the main device.

    On a CPU the model is wrapped too but runs as it is.
    """

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every GPU, the main one first."""
        if self.device.type != "cuda":
            return (self.device,)
        others = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
        return (self.device, *(device for device in others if device != self.device))

    def describe(self) -> str:
        """The number of devices that share a batch, the main one, and a dimension other than the first."""
        several = f", main {self.device}" if len(self.devices) > 1 else ""
        return f", DataParallel over {len(self.devices)}{several}" + (f" in dimension {self.dim}" if self.dim else "")

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model in `torch.nn.DataParallel`."""
        if self.device.type != "cuda":
            return _Single(model)
        return _Several(model, device_ids=list(self.devices), output_device=self.device, dim=self.dim)


class _Single(nn.DataParallel):
    """DataParallel without a GPU, also where there is one that is not wanted: torch's own would take it."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids = module, []


class _Several(nn.DataParallel):
    """DataParallel whose threads compute in the number format of autocast: torch's start with fp16, whatever is set."""

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        if not torch.is_autocast_enabled("cuda"):
            return super().parallel_apply(replicas, inputs, kwargs)
        kind = torch.get_autocast_dtype("cuda")

        def within(replica: nn.Module) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                with torch.autocast("cuda", dtype=kind):
                    return replica(*args, **options)

            return call

        return super().parallel_apply([within(replica) for replica in replicas], inputs, kwargs)


_KINDS: dict[str, type[Parallel]] = {"none": Parallel, "dp": DataParallel}


def make_parallel(name: str, device: torch.device, *, dim: int = 0) -> Parallel:
    """The way of that name, `none` or `dp`, for a main device and batches that are split in a dimension.

    Raises:
        UserError: There is no such way.
    """
    if name not in _KINDS:
        raise UserError("no such way to use several devices", key="device.parallel", received=name, choices=_KINDS)
    return _KINDS[name](device, dim)
