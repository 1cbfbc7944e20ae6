"""Copies of a state in host memory, made fast enough to wait for."""

from __future__ import annotations

from typing import Any

import torch

from lightkit.checkpoint.plain import to_plain

_Buffer = tuple[tuple[Any, ...], torch.Tensor]
"""What a tensor is like, and the memory for it."""


class HostBuffers:
    """Copies nested tensors into host memory, which is used again for the next copy of the same shapes.

    Fresh memory costs more than the copy itself: the system hands it out page by page. What a GPU holds goes into
    page-locked memory without waiting; `wait` says when it has arrived.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, _Buffer] = {}
        self._events: list[torch.cuda.Event] = []

    def copy(self, content: Any) -> Any:
        """Copy nested content with every tensor in it; the copy before it is overwritten.

        Tensors that are one and the same (tied weights) stay so in the copy.

        Raises:
            TypeError: Something other than tensors and plain types is in it; the message names its key path.
        """
        copy = _Copy(self._buffers)
        plain = to_plain(content, take=copy.take)
        self._buffers, self._events = copy.fresh, copy.run()
        return plain

    def wait(self) -> None:
        """Block until the last copy is complete."""
        for event in self._events:
            event.synchronize()

    def release(self) -> None:
        """Give the memory back."""
        self._buffers, self._events = {}, []


class _Copy:
    """One pass over the tensors: the buffers of the pass before by key path, and those of this one."""

    def __init__(self, old: dict[str, _Buffer]) -> None:
        self.old, self.fresh = old, dict[str, _Buffer]()
        self._same: dict[tuple[Any, ...], torch.Tensor] = {}
        self._jobs: dict[torch.device, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def take(self, tensor: torch.Tensor, where: str) -> torch.Tensor:
        """Return the place that a tensor will be copied to."""
        if tensor.layout is not torch.strided:
            return tensor.to("cpu", copy=True)
        device = tensor.device
        kind = (tensor.shape, tensor.dtype, tensor.stride(), device)
        place = (tensor.data_ptr(), *kind)
        if place in self._same and tensor.numel():
            return self._same[place].detach()  # another tensor of the same memory, as in the state
        held = self.old.get(where)
        if held is None or held[0] != kind:
            held = (kind, torch.empty_like(tensor, device="cpu", pin_memory=device.type == "cuda"))
        self.fresh[where], buffer = held, held[1]
        self._same[place] = buffer
        if device not in self._jobs:
            self._jobs[device] = ([], [])
        targets, sources = self._jobs[device]
        targets.append(buffer)
        sources.append(tensor)
        return buffer

    def run(self) -> list[torch.cuda.Event]:
        """Copy, and return what to wait for where the copy is only queued."""
        for device, (targets, sources) in self._jobs.items():
            torch._foreach_copy_(targets, sources, non_blocking=device.type == "cuda")
        queued = [device for device in self._jobs if device.type == "cuda"]
        return [torch.cuda.current_stream(device).record_event() for device in queued]
