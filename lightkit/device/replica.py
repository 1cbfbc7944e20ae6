"""One of several copies of a model, each in a process of its own, that average their gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightkit.common.errors import UserError


class Replica(nn.Module):
    """A model in `torch.nn.parallel.DistributedDataParallel` (Li et al. 2020, https://arxiv.org/abs/2006.15704).

    PyTorch's wrapper decides when it is made which parameters have gradients. Fine-tuning freezes and unfreezes in the
    middle of a run, so here a new one is made when that has changed. All processes do it at the same step.

    Args:
        module: The model on its device; its weights and buffers become those of rank 0.
        device: Its device.
        bucket_mib: Gradients are exchanged in pieces of this many MiB, while the others are computed.
        find_unused: Look in every forward pass for parameters that take no part in it.
        static_graph: The same parameters take part in every step, in the same way.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        *,
        bucket_mib: float = 25.0,
        find_unused: bool = False,
        static_graph: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self._options: dict[str, Any] = {
            "device_ids": [device.index] if device.type == "cuda" else None,
            "bucket_cap_mb": bucket_mib,
            "find_unused_parameters": find_unused,
            "static_graph": static_graph,
        }
        self._parameters_of = list(module.parameters())
        self._made: tuple[tuple[bool, ...], DistributedDataParallel] | None = None
        self._current()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See the model."""
        return self._current()(*args, **kwargs)

    def quiet(self) -> AbstractContextManager[Any]:
        """Add gradients up in this process only, while inside."""
        return self._current().no_sync()

    def _current(self) -> DistributedDataParallel:
        trained = tuple(parameter.requires_grad for parameter in self._parameters_of)
        if self._made is None or self._made[0] != trained:
            # Dropped first: two of them would both listen to the gradients.
            self._made = None
            self._made = trained, DistributedDataParallel(self.module, **self._options)
        return self._made[1]


def synchronized(model: nn.Module, device: torch.device) -> nn.Module:
    """Let batch norms of a model take mean and variance over all processes, under the same names.

    Raises:
        UserError: The device is no GPU.
    """
    if device.type != "cuda":
        what = "PyTorch computes batch norm over several processes on GPUs only"
        raise UserError(what, argument="ddp.sync_batchnorm", received=True, fix="device.ddp.sync_batchnorm=false")
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)
