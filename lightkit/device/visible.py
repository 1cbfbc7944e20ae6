"""Which GPUs a process sees, settled before PyTorch looks for any.

CUDA reads `CUDA_VISIBLE_DEVICES` once, when it is first asked for its devices. The processes that a run starts inherit
what is set here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lightkit.common.errors import UserError
from lightkit.common.gpu_choice import EXPECTED, read_gpus
from lightkit.device.gpus import GpuFacts, Source, computing_on, is_order_known, visible
from lightkit.device.sources import open_source

KEY = "device.gpus"
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
TO_CPU = "device=cpu runs on the CPU"


def show_only(wanted: Any, *, look: Callable[[], Source] = open_source) -> list[GpuFacts]:
    """Let this process, and those it starts, see the wanted GPUs only, counted in this order.

    Args:
        wanted: Numbers as `nvidia-smi` has them, or `auto:N` for the N with the most free memory. Where
            `CUDA_VISIBLE_DEVICES` is set already, they must be among those.
        look: Opens what knows the GPUs of the machine.

    Returns:
        The GPUs: the first is `cuda:0`.

    Raises:
        UserError: There are no such GPUs, or this process may not use them.
    """
    numbers = _read(wanted)
    source = look()
    try:
        if not source.gpus:
            raise UserError(f"there is no NVIDIA GPU here ({source.reason})", key=KEY, received=wanted, fix=TO_CPU)
        allowed = _allowed(source.gpus)
        chosen = _freest(source, allowed, numbers) if isinstance(numbers, int) else _named(source, allowed, numbers)
    finally:
        source.close()
    os.environ[ORDER] = "PCI_BUS_ID"
    os.environ[VISIBLE] = ",".join(str(gpu.index) if gpu.mig is None else gpu.uuid for gpu in chosen)
    return chosen


def check_shown(chosen: Sequence[GpuFacts], count: int, uuids: Mapping[int, str]) -> None:
    """Find out whether the choice came in time.

    Args:
        chosen: What `show_only` gave.
        count: Devices that PyTorch sees.
        uuids: What CUDA says they are, by number.

    Raises:
        UserError: PyTorch sees others: something asked for GPUs before they were chosen.
    """
    others = [gpu for number, gpu in enumerate(chosen) if gpu.uuid.partition("-")[2] != uuids.get(number, "")]
    if count != len(chosen) or (others and uuids):
        numbers = ",".join(str(gpu.index) for gpu in chosen)
        raise UserError(
            f"PyTorch sees {count} GPUs that are not those: something asked for GPUs before they were chosen",
            key=KEY,
            received=[gpu.index for gpu in chosen],
            fix=f"a process of its own, or start this one with {ORDER}=PCI_BUS_ID {VISIBLE}={numbers}",
        )


def mapping(numbers: Iterable[int], uuids: Mapping[int, str], *, look: Callable[[], Source] = open_source) -> list[str]:
    """Which GPU stands behind each number of PyTorch, for people; empty where no driver answers.

    Args:
        numbers: PyTorch's numbers: 1 for `cuda:1`.
        uuids: What CUDA says they are, by number.
        look: Opens what knows the GPUs of the machine.
    """
    source = look()
    try:
        rows = [(number, computing_on(source.gpus, [number], uuids=uuids)) for number in numbers]
    finally:
        source.close()
    return [f"cuda:{number} is {shown(found[0])}" for number, found in rows if found]


def shown(gpu: GpuFacts) -> str:
    """A GPU in words: number, model, UUID."""
    part = "" if gpu.mig is None else f" MIG {gpu.mig}"
    return f"GPU {gpu.index} ({gpu.name}{part}, {gpu.uuid})"


def _read(wanted: Any) -> tuple[int, ...] | int:
    try:
        return read_gpus(wanted)
    except (ValueError, TypeError) as error:
        raise UserError(str(error), key=KEY, expected=EXPECTED, received=wanted) from error


def _allowed(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """The GPUs this process may use, in its own order where that is set."""
    if VISIBLE in os.environ and not is_order_known(gpus):
        what = f"{VISIBLE} counts the fastest GPU first here, so its numbers are not those of nvidia-smi"
        raise UserError(what, key=KEY, received=os.environ[VISIBLE], fix=f"set {ORDER}=PCI_BUS_ID beside it")
    return visible(gpus)


def _named(source: Source, allowed: Sequence[GpuFacts], numbers: Sequence[int]) -> list[GpuFacts]:
    found = []
    for number in numbers:
        gpu = next((gpu for gpu in allowed if gpu.index == number), None)
        if gpu is None:
            raise _missing(source, allowed, number)
        found.append(gpu)
    return found


def _freest(source: Source, allowed: Sequence[GpuFacts], count: int) -> list[GpuFacts]:
    """The GPUs with the most free memory; where just as many are allowed, those in their order."""
    if count > len(allowed):
        raise _missing(source, allowed, f"auto:{count}")
    if count == len(allowed):
        return list(allowed)
    used = {sample.gpu: sample.memory_used_mib or 0.0 for sample in source.samples(allowed)}
    return sorted(allowed, key=lambda gpu: used.get(gpu, 0.0) - (gpu.memory_total_mib or 0.0))[:count]


def _missing(source: Source, allowed: Sequence[GpuFacts], wanted: int | str) -> UserError:
    there = {gpu.index for gpu in source.gpus}
    limited = f"{VISIBLE}={os.environ.get(VISIBLE, '')}"
    if isinstance(wanted, str):
        what = f"there are only {len(allowed)} GPUs to choose from" + (f" ({limited})" if VISIBLE in os.environ else "")
    elif wanted in there:
        what = f"GPU {wanted} is not among those that this process may use ({limited})"
    else:
        what = f"there is no GPU {wanted} here"
    names = [f"{gpu.index} ({gpu.name})" for gpu in allowed]
    return UserError(what, key=KEY, received=wanted, choices=names, fix=f"other numbers, or {TO_CPU}")
