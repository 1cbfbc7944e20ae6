"""Memory of large batches, taken again once nothing refers to it: new pages cost more than what is written to them."""

from __future__ import annotations

import os
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

_HEAD = 64
"""Bytes before a batch, to whose multiples memory is aligned as PyTorch's own; the first says that it is in use."""
_KEPT = 4


class BatchMemory:
    """Memory that batches are written into: that of this process, or in a worker process shared with the main one.

    Once nothing refers to a batch, nor to a part of it, its memory is taken again; that of a worker process is free
    once the main one says so in the memory itself. Where all that a worker has is in use, one piece is left to the main
    process, and a new one is made.
    """

    def __init__(self) -> None:
        self._pieces, self._last = list[Tensor](), 0

    def reserve(self, count: int, like: Tensor) -> Tensor:
        """Return a tensor for `count` samples like those of another one, with anything in it."""
        size, shape = _HEAD + count * like[0].nbytes, (count, *like.shape[1:])
        at = next((at for at, own in enumerate(self._pieces) if not own[0]), len(self._pieces) % _KEPT)
        if at == len(self._pieces) or self._pieces[at][0] or len(self._pieces[at]) < size:
            self._pieces[at : at + 1] = [_new(size)]
        own, self._last = self._pieces[at], at
        if get_worker_info() is None:
            return _handed(own, size, like.dtype, shape)
        return own[_HEAD:size].view(like.dtype).view(shape)

    def sent(self, x: Any) -> Any:
        """Return what goes to the main process for the tensor that was reserved last; there, the tensor itself."""
        if get_worker_info() is None:
            return x
        own = self._pieces[self._last]
        own[0] = 1
        return _Sent((own, _HEAD + x.nbytes, x.dtype, x.shape))


class _Sent(tuple[Any, ...]):
    """A tensor on its way to the main process, where it is one again."""

    def __reduce__(self) -> Any:
        return _handed, tuple(self)


def _new(size: int) -> Tensor:
    if get_worker_info() is not None:
        return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))
    memory = np.empty(size + _HEAD, np.uint8)  # NumPy asks the system for large pages, PyTorch takes small ones
    return torch.from_numpy(memory)[-memory.ctypes.data % _HEAD :]


def _handed(own: Tensor, end: int, dtype: torch.dtype, shape: Any) -> Tensor:
    whole = own.numpy()  # in which the mark can be set also where `torch.inference_mode` is on, or was
    whole[0], memory = 1, whole[_HEAD:end]
    finalize(memory, _give_back, own, os.getpid()).atexit = False
    return torch.from_numpy(memory).view(dtype).view(shape)


def _give_back(own: Tensor, process: int) -> None:
    if os.getpid() == process:  # and not a child that was forked from it
        own.numpy()[0] = 0
