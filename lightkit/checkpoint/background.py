"""Writing checkpoints while training goes on, from copies of the state in host memory."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from lightkit.checkpoint.files import to_plain
from lightkit.checkpoint.reading import LABEL
from lightkit.checkpoint.store import CheckpointStore

_LOG = logging.getLogger(__name__)
_FEW, _SMALL_BYTES = 100, 1 << 20
"""Up to so many tensors and bytes are pickled sooner than a second thread gets hold of the interpreter."""
_Buffer = tuple[tuple[Any, ...], torch.Tensor]
"""What a tensor is like, and the memory for it."""


class HostBuffers:
    """Copies nested tensors into host memory, which is used again for the next copy of the same shapes.

    Fresh memory costs more than the copy itself: the system hands it out page by page. What a GPU holds goes into
    page-locked memory without waiting; `wait` says when it has arrived.
    """

    def __init__(self) -> None:
        self._buffers, self._events = dict[str, _Buffer](), list[torch.cuda.Event]()

    def copy(self, content: Any) -> Any:
        """Copy nested content with every tensor in it; the copy before it is overwritten.

        Tensors that are one and the same (tied weights) stay so in the copy.

        Raises:
            TypeError: Something other than tensors and plain types is in it; the message names its key path.
        """
        old, fresh, same = self._buffers, dict[str, _Buffer](), dict[tuple[int, torch.Size], _Buffer]()
        jobs = dict[torch.device, tuple[list[torch.Tensor], list[torch.Tensor]]]()

        def take(tensor: torch.Tensor, where: str) -> torch.Tensor:
            if tensor.layout is not torch.strided:
                return tensor.detach().to("cpu", copy=True)
            device, place = tensor.device, (tensor.data_ptr(), tensor.shape)
            kind = (tensor.shape, tensor.dtype, tensor.stride(), device)
            twin = same.get(place)
            if twin is not None and twin[0] == kind and tensor.numel():
                return twin[1].detach()  # another tensor of the same memory, as in the state
            held = old.get(where)
            if held is None or held[0] != kind:
                held = (kind, torch.empty_like(tensor, device="cpu", pin_memory=device.type == "cuda"))
            fresh[where] = same[place] = held
            targets, sources = jobs.setdefault(device, ([], []))
            targets.append(held[1])
            sources.append(tensor)
            return held[1]

        plain, self._buffers = to_plain(content, take=take), fresh
        with torch.no_grad():
            for device, (targets, sources) in jobs.items():
                torch._foreach_copy_(targets, sources, non_blocking=device.type == "cuda")
        self._events = [torch.cuda.current_stream(device).record_event() for device in jobs if device.type == "cuda"]
        return plain

    @property
    def are_small(self) -> bool:
        """Tell whether the last copy is of few tensors and bytes, which are there already."""
        tensors = [tensor for _, tensor in self._buffers.values()]
        return len(tensors) <= _FEW and sum(tensor.nbytes for tensor in tensors) <= _SMALL_BYTES and not self._events

    def wait(self) -> None:
        """Block until the last copy is complete."""
        for event in self._events:
            event.synchronize()

    def release(self) -> None:
        """Give the memory back."""
        self._buffers, self._events = {}, []


class BackgroundStore(CheckpointStore):
    """A store whose `save` waits for a copy of the tensors in host memory only; a thread writes it.

    At most one save is under way: the next one waits for it, and so does everything that reads. What went wrong in the
    thread is raised there, at the latest by `close`. The copy needs as much host memory as the state.

    Args:
        folder: Where the files lie.
        **options: Those of `CheckpointStore`.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._buffers = HostBuffers()
        self._writer: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []
        # An error that nobody came for is told when the store is thrown away, or by the interpreter's exit.
        weakref.finalize(self, _tell, self._under_way)

    def save(self, content: dict[str, Any], **options: Any) -> Path:
        """Copy the content and have it written; first wait for the save before.

        Args:
            content: Tensors and plain types.
            **options: Those of `CheckpointStore.save`.

        Raises:
            TypeError: `content` holds another type; the message names its key path.
            UserError: The save before could not be written.
        """
        self.flush()
        return super().save(content, **options)

    def flush(self) -> None:
        """Wait until the save under way is on the disk.

        Raises:
            UserError: It could not be written; the checkpoints before it are untouched.
        """
        if self._under_way:
            error = self._under_way[0].exception()  # waits; when a signal interrupts that, it stays under way
            self._under_way.clear()
            if error is not None:
                raise error

    def close(self) -> None:
        """Wait until every save is on the disk, end the thread and give the memory of the copies back."""
        try:
            self.flush()
        finally:
            self._buffers.release()
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None

    def _take(self, content: dict[str, Any]) -> dict[str, Any] | memoryview:
        plain: dict[str, Any] = self._buffers.copy(content)
        if plain[LABEL]["value"] is None or not self._buffers.are_small:  # a value that is missing may be found later
            return plain
        memory = io.BytesIO()
        torch.save(plain, memory)
        return memory.getbuffer()

    def _run(self, job: Callable[[], None]) -> None:
        # One thread for all saves: starting one would hand it the interpreter at once, and training would wait for it.
        # The interpreter does not exit before its work is done.
        try:
            self._writer = self._writer or ThreadPoolExecutor(1, "lightkit-checkpoint", _wait_for_others)
            self._under_way.append(self._writer.submit(self._when_copied, job))
        except RuntimeError:  # no thread to be had, as at the exit of the interpreter
            self._when_copied(job)

    def _when_copied(self, job: Callable[[], None]) -> None:
        self._buffers.wait()
        job()


def _wait_for_others() -> None:
    """Tell the system that this thread need not run the moment it has work: training would be pushed aside for it."""
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _tell(under_way: list[Future[None]]) -> None:
    for save in under_way:
        with contextlib.suppress(CancelledError):
            if error := save.exception():
                _LOG.error("%s", error)
