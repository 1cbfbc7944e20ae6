"""The processes that train one model together, and what they tell each other."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightkit.common.errors import FAILED, UserError, keys_under
from lightkit.common.strategies import WITH_PROCESSES, Strategy, own_part
from lightkit.device.visible import show_only

T = TypeVar("T")
Head = list[tuple[torch.dtype, tuple[int, ...]]]

_ALIGNED = 16  # bytes: an element must not begin in the middle of another
_LOST = (
    "gloo", "nccl", "connection closed by peer", "connection reset by peer", "pair closure", "socket", "tcpstore",
    "timed out waiting",
)  # fmt: skip
"""Words in the messages of PyTorch's backends when another process is gone or does not answer."""


class Ranks:
    """The processes that train together; here the plain case, this process alone.

    Each holds a replica of the model, or a part of one. A batch is split over the replicas, not over the processes:
    those of one replica compute the same samples.
    """

    rank: int = 0
    """Number of this process."""
    size: int = 1
    """Number of processes."""
    local: int = 0
    """Number of this process on its machine."""
    replica: int = 0
    """Number of this process's replica: which part of every batch it computes."""
    replicas: int = 1
    """Number of replicas: into how many parts a batch is split."""

    @property
    def main(self) -> bool:
        """Tell whether this is the process that writes."""
        return self.rank == 0

    @property
    def leads_replica(self) -> bool:
        """Tell whether this is the first process of its replica, whose results count; the others have the same."""
        return self.rank % (self.size // self.replicas) == 0

    def own(self, size: int) -> tuple[int, int]:
        """Return the first sample and the number of samples that this process computes of a batch."""
        return 0, size

    def shared(self, make: Callable[[], T]) -> T:
        """Return in every process what rank 0 makes; an error of it is raised in every process."""
        return make()

    def agree(self, fine: bool) -> bool:
        """Tell whether all processes find it fine; waits for them."""
        return fine

    def vote(self, number: int) -> int:
        """Return the largest number that any process gave at its vote before this one; waits for nobody."""
        return number

    def mean(self, value: Tensor, weight: int) -> float:
        """Return the mean over the processes by weight, which is a number of samples."""
        return float(value)

    def least(self, number: int) -> int:
        """Return the smallest number that any process gives; waits for them."""
        return number

    def unite(self, texts: Iterable[str]) -> list[str]:
        """Return what any process says, each text once, in the order of the ranks; waits for them."""
        return list(dict.fromkeys(texts))

    def gather(self, tensors: Sequence[Tensor], note: Any = None) -> list[tuple[Any, list[Tensor]]]:
        """Return tensors and a note of every process in the order of the ranks, on rank 0; nothing elsewhere."""
        return [(note, list(tensors))]

    def meet(self, place: str) -> bool:
        """Tell whether all processes come to this place within some seconds, as one that has failed there asks."""
        return True

    def device_name(self, name: str) -> str:
        """Return the device of this process, where a configuration names one for all."""
        return name


class DistributedRanks(Ranks):
    """Processes that `torch.distributed` connects: this one has a number, its rank.

    What is told on the way is small and goes over CPU memory (gloo); only gradients, and outputs for metrics, go from
    GPU to GPU. Every process has to call these methods in the same order.

    Args:
        device: Where this process computes.
        splits_batches: Each process is a replica; otherwise all of them together are one.
    """

    def __init__(self, device: torch.device, *, splits_batches: bool = True) -> None:
        import torch.distributed as dist

        self._dist, self._device = dist, device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local = local_rank()
        if splits_batches:
            self.replica, self.replicas = self.rank, self.size
        self._pending: tuple[Any, Tensor] | None = None

    def own(self, size: int) -> tuple[int, int]:
        """Return the first sample and the number of samples that this process computes of a batch."""
        return own_part(size, self.replica, self.replicas)

    def shared(self, make: Callable[[], T]) -> T:
        """Return in every process what rank 0 makes; an error of it is raised in every process."""
        found: list[Any] = [None, None]
        if self.main:
            try:
                found[0] = make()
            except Exception as error:
                told = (str(error), error.exit_code, error.families[0].slug) if isinstance(error, UserError) else None
                found[1] = told or (f"{type(error).__name__}: {error}", FAILED, None)
                self._dist.broadcast_object_list(found, src=0)
                raise
        self._dist.broadcast_object_list(found, src=0)
        if found[1] is not None:
            raise UserError(found[1][0], exit_code=found[1][1], family=found[1][2])
        made: T = found[0]
        return made

    def agree(self, fine: bool) -> bool:
        """Tell whether all processes find it fine; waits for them."""
        return bool(self.least(int(fine)))

    def least(self, number: int) -> int:
        """Return the smallest number that any process gives; waits for them."""
        found = torch.tensor([number])
        self._dist.all_reduce(found, op=self._dist.ReduceOp.MIN)
        return int(found.item())

    def unite(self, texts: Iterable[str]) -> list[str]:
        """Return what any process says, each text once, in the order of the ranks; waits for them."""
        said: list[Any] = [None] * self.size
        self._dist.all_gather_object(said, list(texts))
        return list(dict.fromkeys(text for own in said for text in own))

    def vote(self, number: int) -> int:
        """Return the largest number that any process gave at its vote before this one; waits for nobody.

        The votes are exchanged while the processes compute, which is why the outcome comes one call later, in all of
        them at the same call.
        """
        before = self._outcome()
        ballot = torch.tensor([number])
        self._pending = self._dist.all_reduce(ballot, op=self._dist.ReduceOp.MAX, async_op=True), ballot
        return before

    def _outcome(self) -> int:
        if self._pending is None:
            return 0
        (work, ballot), self._pending = self._pending, None
        work.wait()
        return int(ballot.item())

    def mean(self, value: Tensor, weight: int) -> float:
        """Return the mean over the processes by weight, which is a number of samples."""
        sums = torch.tensor([float(value) * weight if weight else 0.0, float(weight)], dtype=torch.float64)
        self._dist.all_reduce(sums)
        return float(sums[0] / sums[1]) if sums[1] else math.nan

    def gather(self, tensors: Sequence[Tensor], note: Any = None) -> list[tuple[Any, list[Tensor]]]:
        """Return tensors and a note of every process in the order of the ranks, on rank 0; nothing elsewhere.

        Numbers, shapes and types of the tensors may differ between the processes. A note is a plain value.
        """
        told: list[Any] = [None] * self.size
        self._dist.all_gather_object(told, (note, [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]))
        longest = max(sum(_room(dtype, shape) for dtype, shape in head) for _, head in told)
        mine = _packed(tensors, longest, self._device)
        found = [torch.empty_like(mine) for _ in told] if self.main else None
        if longest:
            self._dist.gather(mine, found, dst=0)
        return [(known, _unpacked(flat, head)) for flat, (known, head) in zip(found or [], told)]

    def meet(self, place: str) -> bool:
        """Tell whether all processes come to this place within some seconds.

        Nothing is exchanged but a word in the store: one that has not failed may be in the middle of a reduction.
        """
        store = self._dist.distributed_c10d._get_default_store()
        store.set(f"{place}/{self.rank}", "here")
        try:
            store.wait([f"{place}/{rank}" for rank in range(self.size)], timedelta(seconds=MEETING_SECONDS))
        except RuntimeError:
            store.delete_key(f"{place}/{self.rank}")  # whoever comes later must not take it for here
            return False
        return True

    def device_name(self, name: str) -> str:
        """Return the GPU whose number is this process's on its machine; each process has one of its own."""
        return f"cuda:{self.local}" if self._device.type == "cuda" else name

    def close(self) -> None:
        """Leave in good order; not to be called when something went wrong, as others may be gone."""
        self._outcome()
        self._dist.destroy_process_group()


def _room(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


def _packed(tensors: Sequence[Tensor], length: int, device: torch.device) -> Tensor:
    """Copy the bytes of all tensors one after the other."""
    flat = torch.zeros(length, dtype=torch.uint8, device=device)
    places = _unpacked(flat, [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors])
    for place, tensor in zip(places, tensors):
        place.copy_(tensor.detach())
    return flat


def _unpacked(flat: Tensor, head: Head) -> list[Tensor]:
    tensors, at = [], 0
    for dtype, shape in head:
        end = at + math.prod(shape) * dtype.itemsize
        tensors.append(flat[at:end].view(dtype).reshape(shape))
        at += _room(dtype, shape)
    return tensors


def world_size() -> int:
    """Return how many processes a launcher started to train together, 1 where none did."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Tell whether this process writes: the first of those that a launcher started, or the only one."""
    return world_size() == 1 or os.environ.get("RANK", "0") == "0"


def local_rank() -> int:
    """Return the number of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def joined(
    strategy: Strategy, name: str, *, batch_size: int, nproc: int = 1, timeout: float = 600.0, gpus: Any = None
) -> Iterator[Ranks]:
    """Join the processes that a launcher (ours or `torchrun`) started, while inside.

    Args:
        strategy: What the way to use several devices does.
        name: The device, as the configuration has it.
        batch_size: Samples per training batch, over all of them.
        nproc: Processes a machine that the configuration asks for.
        timeout: Seconds after which a process that does not answer counts as lost.
        gpus: GPUs to see, by their physical numbers; None sees all.

    Raises:
        UserError: The launcher started another number of processes than the configuration asks for, processes that
            have nothing to share, or more than there are GPUs.
    """
    count = world_size()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(count)))
    if count > 1 and not strategy.processes:
        what, fix = f"a launcher started {count} processes for a run that is for one", "device.parallel=ddp"
        raise UserError(what, key="device.parallel", received=strategy.name, choices=WITH_PROCESSES, fix=fix)
    if nproc > 1 and nproc != here:
        what = "these processes are started by the command line" if count == 1 else f"torchrun started {here} here"
        fix = "`lightkit train`, or torchrun with device.nproc=1"
        raise UserError(what, key="device.nproc", received=nproc, fix=fix)
    if strategy.splits_batches and count > batch_size:
        what, least = f"{count} processes share each batch, and some would never have a sample", f"at least {count}"
        raise UserError(what, key="data.batch_size", received=batch_size, expected=least, family="contradiction")
    if count == 1:
        yield Ranks()
        return
    import torch.distributed as dist

    device = _device(name, gpus)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, rank, size = _meeting_place(timedelta(seconds=timeout))
    own = dist.PrefixStore(f"run{next(_RUNS)}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    ranks = DistributedRanks(device, splits_batches=strategy.splits_batches)
    yield ranks
    ranks.close()


MEETING_SECONDS = 10.0
"""How long processes that have failed wait for each other."""
_RUNS = itertools.count()
"""Numbers the runs of this process: the same in all processes of a launcher, which do one after the other alike."""
_MET: dict[int, tuple[Any, int, int]] = {}
"""The store of each process by its number: one that is forked has to meet the others by itself."""


def _meeting_place(timeout: timedelta) -> tuple[Any, int, int]:
    """Meet the other processes of the launcher, once for all runs of a process.

    With a store for each run a fast process could join that of a run before, which a slow one has not closed yet, and
    would wait there for ever.

    Args:
        timeout: How long to wait for the others.

    Returns:
        The store that all of them see, the rank of this process, and their number.
    """
    from torch.distributed.rendezvous import rendezvous

    if os.getpid() not in _MET:
        _MET[os.getpid()] = next(iter(rendezvous("env://", timeout=timeout)))
    place = _MET[os.getpid()]
    place[0].set_timeout(timeout)
    return place


def _device(name: str, gpus: Any) -> torch.device:
    """Return where this process computes; nothing is done with a GPU yet."""
    kind = name.partition(":")[0]
    if gpus is not None and kind != "cpu":
        if str(gpus).startswith("auto"):
            what, fix = "each process would choose for itself", "name the GPUs: device.gpus=[0,1]"
            raise UserError(what, key="device.gpus", received=gpus, fix=fix, family="contradiction")
        with keys_under("device"):
            show_only(gpus)
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    found, local = torch.cuda.device_count(), local_rank()
    if kind == "mps" or local >= found:
        what = f"{local + 1} processes or more are here for {found} GPU{'' if found == 1 else 's'}"
        fix = "as many processes as GPUs, or device.name=cpu"
        raise UserError(what, key="device.nproc", received=local + 1, fix=fix, family="no-such-device")
    return torch.device("cuda", local)


def is_lost(error: BaseException) -> bool:
    """Tell whether an error says that another process is gone or does not answer."""
    import torch.distributed as dist

    if not dist.is_available() or not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return isinstance(error, dist.DistError) or (dist.is_initialized() and any(word in text for word in _LOST))
