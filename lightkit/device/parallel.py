"""One model on several devices. What wraps a model here is also taken off here: saved names are the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightkit.common.doors import SHIPPED, import_path
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, user_frame
from lightkit.common.modules import mapped
from lightkit.common.strategies import PLAIN, STRATEGIES, Strategy
from lightkit.device.casting import WrappedLoss
from lightkit.device.ranks import Ranks
from lightkit.device.sharding import shard


class Parallel:
    """The plain case: one model on one device. A strategy of one's own derives from it, or from another one here.

    Args:
        device: The main device; the model is already there.
        ranks: The processes that train together.
        **options: Settings of the strategy: `dim` and `output` of `dp`; for `ddp` see `Replica`, for `fsdp` `shard`.
    """

    strategy: ClassVar[Strategy] = PLAIN
    """What may be asked of it before there is a model or a device."""

    def __init__(self, device: torch.device, ranks: Ranks | None = None, **options: Any) -> None:
        self.device, self.ranks, self.options = device, ranks or Ranks(), options
        self.dim: int = self.options.get("dim", 0)
        self._idle = nullcontext()

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device that computes; the main one first."""
        return (self.device,)

    @property
    def forward_is_local(self) -> bool:
        """Tell whether a forward pass in this process needs no other process."""
        return self.ranks.size == 1 or not self.strategy.shards_parameters

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model as the loop calls it."""
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the bare model, whatever it was wrapped in."""
        while True:
            if isinstance(model, (nn.DataParallel, DistributedDataParallel, Replica)):
                inner = model.module
            else:
                inner = getattr(model, "_orig_mod", None)  # torch.compile
            if not isinstance(inner, nn.Module):
                return model
            model = inner

    def place_loss(self, loss: Any) -> Any:
        """Move a loss to where outputs are joined."""
        return loss

    def accumulating(self, model: nn.Module, more: bool) -> AbstractContextManager[Any]:
        """Return a context for forward and backward of one batch; `more` of them come before the optimizer step."""
        return self._idle

    def waste(self, loss: Tensor) -> None:
        """Drop a loss whose gradients nobody wants, nor those of the batches of its window before it."""

    def describe(self) -> str:
        """Return what to add to the description of the device; empty in the plain case."""
        return ""

    def idle(self) -> list[str]:
        """Say where this way does nothing on the devices there are; empty where it does what it is there for."""
        return []


class DataParallel(Parallel):
    """Each batch split over the visible GPUs, in one process; the outputs are gathered on the main one, or on `output`.

    On a CPU the model is wrapped too but runs as it is.

    Raises:
        UserError: There is no GPU of the number `output`.
    """

    strategy = STRATEGIES["dp"]

    def __init__(self, device: torch.device, ranks: Ranks | None = None, **options: Any) -> None:
        super().__init__(device, ranks, **options)
        number, self.output = self.options.get("output"), device
        if number is not None and device.type == "cuda":
            self.output = torch.device("cuda", number)
            if self.output not in self.devices:
                there = [str(gpu.index) for gpu in self.devices]
                what = "there is no GPU of that number to join outputs on"
                raise UserError(what, argument="dp_output", received=number, choices=there, family="no-such-device")

    def idle(self) -> list[str]:
        """Say that a batch is not split where there is one device."""
        if len(self.devices) > 1:
            return []
        several = "ddp with device.nproc=2 shares batches between processes"
        return [f"device.parallel=dp: {self.device} is the only device, so no batch is split; {several}"]

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every GPU, the main one first."""
        if self.device.type != "cuda":
            return (self.device,)
        others = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
        return (self.device, *(device for device in others if device != self.device))

    def describe(self) -> str:
        """Return the number of devices that share a batch, the main one, and a dimension other than the first."""
        several = f", main {self.device}" if len(self.devices) > 1 else ""
        joined = f", outputs on {self.output}" if self.output != self.device else ""
        dimension = f" in dimension {self.dim}" if self.dim else ""
        return f", DataParallel over {len(self.devices)}{several}{dimension}{joined}"

    def place_loss(self, loss: Any) -> Any:
        """Compute the loss where outputs are joined."""
        return loss if self.output == self.device else LossElsewhere(loss, self.output, self.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model in `torch.nn.DataParallel`."""
        if self.device.type != "cuda":
            return SingleDevice(model)
        return MultiGpu(model, device_ids=list(self.devices), output_device=self.output, dim=self.dim)


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


class Distributed(Parallel):
    """A copy of the model in each of several processes, which share every batch and average their gradients.

    With one process it is the plain case.
    """

    strategy = STRATEGIES["ddp"]

    @property
    def forward_is_local(self) -> bool:
        """Tell whether a forward pass in this process needs no other process."""
        return super().forward_is_local and (self.ranks.size == 1 or not self.options.get("sync_batchnorm"))

    def describe(self) -> str:
        """Return the number of processes that share a batch."""
        return f", DistributedDataParallel over {self.ranks.size}"

    def wrap(self, model: nn.Module) -> nn.Module:
        """Make the model a replica; weights and buffers become those of rank 0."""
        if self.ranks.size == 1:
            return model
        options = dict(self.options)
        if options.pop("sync_batchnorm", False):
            model = synchronized(model, self.device)
        return Replica(model, self.device, **options)

    def accumulating(self, model: nn.Module, more: bool) -> AbstractContextManager[Any]:
        """Let gradients be averaged with the last batch before the optimizer step only."""
        return model.quiet() if more and isinstance(model, Replica) else self._idle


class Sharded(Distributed):
    """The parts of one model in several processes, which share every batch; each steps its own part.

    With one process it is the plain case.
    """

    strategy = STRATEGIES["fsdp"]

    def describe(self) -> str:
        """Return the number of processes that share a model."""
        return f", FSDP2 over {self.ranks.size}"

    def wrap(self, model: nn.Module) -> nn.Module:
        """Replace the parameters of the model by shards, in place: before an optimizer is built."""
        return model if self.ranks.size == 1 else shard(model, self.device, **self.options)

    def accumulating(self, model: nn.Module, more: bool) -> AbstractContextManager[Any]:
        """Let gradients be averaged with the last batch before the optimizer step only."""
        if self.ranks.size > 1:
            model.set_requires_gradient_sync(not more)  # type: ignore[operator]
        return self._idle

    def waste(self, loss: Tensor) -> None:
        """Have PyTorch bring out the gradients that wait for the last batch of a window; later steps would get them."""
        if self.ranks.size > 1:
            loss.backward()


def make_parallel(
    kind: str | type[Parallel],
    device: torch.device,
    ranks: Ranks | None = None,
    options: Mapping[str, Any] | None = None,
) -> Parallel:
    """Make a strategy.

    Args:
        kind: Its class, or the name of one that lightkit brings.
        device: The main device.
        ranks: The processes that train together.
        options: Settings of that strategy.

    Raises:
        UserError: There is no such strategy, or it cannot be built.
    """
    if isinstance(kind, str):
        shipped = SHIPPED["device.parallel"]
        if kind not in shipped:
            raise UserError("no such way to use several devices", argument="parallel", received=kind, choices=shipped)
        kind = import_path(shipped[kind])
    own: Any = kind
    try:
        made: Parallel = own(device, ranks, **(options or {}))
    except UserError:
        raise
    except Exception as error:  # of a class of the user's own
        what = f"{own.__name__} could not be built: {in_short(error)}"
        raise UserError(what, argument="parallel", origin=user_frame(error), family="wrong-arguments") from error
    return made


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
