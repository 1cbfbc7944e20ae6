"""Batches on their way to a GPU while it still computes the ones before."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import torch

Batches = Generator[Any, None, None]
_END = object()


class PrefetchToDevice:
    """Copies one batch ahead on a stream of its own. Which batches come, and in which order, is the same.

    A batch that was copied and is not asked for any more is dropped: it counts as not read.

    Args:
        move: The way of a batch to the device.
        device: A CUDA device.
    """

    def __init__(self, move: Callable[[Any], Any], device: torch.device) -> None:
        self._move, self._device = move, device
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batches: Batches) -> Batches:
        """Yield the batches, each on the device when it comes out; `batches` is closed when this is."""
        with closing(batches):
            ahead = self._copied(batches)
            while ahead is not _END:
                # What computes next must wait for this copy.
                torch.cuda.current_stream(self._device).wait_stream(self._stream)
                batch, ahead = ahead, self._copied(batches)
                yield batch
                del batch

    def _copied(self, batches: Batches) -> Any:
        batch = next(batches, _END)
        if batch is _END:
            return batch
        # The copy may get the memory of a batch that was let go of, but is in use until what computes now is done.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return self._move(batch)
