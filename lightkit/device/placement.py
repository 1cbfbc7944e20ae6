"""Which device computes, and moving batches there."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

import torch

from lightkit.common.errors import UserError
from lightkit.common.modules import rebuilt
from lightkit.device.about import cuda_uuids
from lightkit.device.visible import check_shown, mapping, overlooked, show_only

_NO_CUDA = "there is no CUDA GPU here"
_TO_CPU = "device=cpu runs on the CPU; device=auto takes a GPU only where there is one"
_WITH_CUDA = "a PyTorch whose CUDA fits the driver (`lightkit env` shows both); device=cpu runs on the CPU"


class Placement:
    """A device, and the way of a batch to it.

    Args:
        device: A device as `choose` returns it, with its number.
        mapping: Lines that tell which GPU stands behind each number, where that is not plain.
        notes: Lines for people about how it was chosen.
    """

    def __init__(self, device: torch.device, *, mapping: Sequence[str] = (), notes: Sequence[str] = ()) -> None:
        self.device, self.mapping, self.notes = device, list(mapping), list(notes)
        # From page-locked memory the copy then runs beside the computation; from other memory it makes no difference.
        self._non_blocking = device.type == "cuda"

    @property
    def pins_memory(self) -> bool:
        """Tell whether page-locked host memory makes copies faster here."""
        return self.device.type == "cuda"

    def move(self, batch: Any) -> Any:
        """Move a batch to this device: tensors, and anything nested or with a `to` method that holds some.

        Tuples, named tuples, lists, dicts, dataclasses and their subclasses keep their type and are copied,
        not changed. What holds no tensors is passed on as it is.
        """
        if type(batch) is tuple:  # the usual batch, already in place: nothing to build
            device = self.device
            for item in batch:
                if type(item) is not torch.Tensor or item.device != device:
                    break
            else:
                return batch
        return self._moved(batch)

    def describe(self) -> str:
        """Tell in one line for logs: the device, its model and its memory or threads."""
        if self.device.type == "cuda":
            facts = torch.cuda.get_device_properties(self.device)
            return f"{self.device}: {facts.name}, {facts.total_memory / 2**30:.0f} GiB"
        if self.device.type == "cpu":
            threads = torch.get_num_threads()
            return f"cpu: {platform.processor() or platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"
        return str(self.device)

    def _moved(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.to(self.device, non_blocking=self._non_blocking)
        if callable(getattr(item, "to", None)):
            # What knows pinning, such as a PackedSequence, also knows `non_blocking`.
            pins = self._non_blocking and hasattr(item, "is_pinned")
            return item.to(self.device, non_blocking=True) if pins else item.to(self.device)
        return rebuilt(self._moved, item, fresh=True)


def located(name: str, gpus: Sequence[int | str] | str | None) -> tuple[torch.device, list[str]]:
    """Choose the device of a name, among chosen GPUs where some are.

    Args:
        name: See `choose`.
        gpus: Physical numbers or UUIDs of GPUs, or `auto:N`, to be the only ones that this process sees; None sees all.

    Returns:
        The device, and lines that tell which GPU stands behind each number, where that is not plain, or why `auto`
        takes none of the GPUs that the driver shows.

    Raises:
        UserError: There is no such device.
    """
    if name in ("cpu", "mps"):
        return choose(name), []
    chosen = [] if gpus is None else show_only(gpus)
    if chosen and not torch.cuda.is_available():
        raise UserError(
            overlooked() or _NO_CUDA, argument="gpus", received=gpus, fix=_WITH_CUDA, family="no-such-device"
        )
    device = choose("cuda" if chosen and name == "auto" else name)
    if device.type == "cpu":
        unseen = overlooked()
        return device, [f"device.name=auto takes the CPU: {unseen}"] if unseen else []
    if device.type != "cuda" or "CUDA_VISIBLE_DEVICES" not in os.environ:
        return device, []
    numbers = range(torch.cuda.device_count())
    uuids = cuda_uuids(torch.device("cuda", number) for number in numbers)
    if chosen:
        check_shown(chosen, len(numbers), uuids)
    return device, mapping(numbers, uuids)


def choose(name: str) -> torch.device:
    """Choose the device of a name: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.

    `auto` takes a CUDA GPU, else Apple's, else the CPU. Nothing is ever replaced silently by the CPU.

    Raises:
        UserError: There is no such device here, or no such name.
    """
    kind, _, number = name.partition(":")
    if name == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if kind == "cuda" and (not number or number.isdecimal()):
        return _cuda(name, int(number or 0))
    if kind == "mps" and not number:
        if torch.backends.mps.is_available():
            return torch.device("mps", 0)
        what = "there is no Apple GPU here"
        raise UserError(what, argument="name", received=name, choices=_present(), fix=_TO_CPU, family="no-such-device")
    if kind == "cpu" and not number:
        return torch.device("cpu")
    choices = ["auto", *_present(), "cuda", "mps"]
    raise UserError("no such device", argument="name", received=name, choices=choices, family="no-such-device")


def _cuda(name: str, number: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number < count:
        return torch.device("cuda", number)
    if count:
        what = f"there is no GPU number {number} here"
        raise UserError(what, argument="name", received=name, choices=_present(), fix=_TO_CPU, family="no-such-device")
    unseen, built = overlooked(), torch.backends.cuda.is_built()
    what = unseen or (_NO_CUDA if built else "this PyTorch was built without CUDA")
    fix = _WITH_CUDA if unseen else _TO_CPU
    raise UserError(what, argument="name", received=name, choices=_present(), fix=fix, family="no-such-device")


def _present() -> list[str]:
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]
