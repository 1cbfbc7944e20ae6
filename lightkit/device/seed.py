"""Everything that sets random generators or makes computations repeatable."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import torch

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix

_GOLDEN = (
    0x9E3779B97F4A7C15  # odd, so that different positions give different low 32 bits: the CPU generator uses only these
)
_MASK = (1 << 63) - 1
TOO_LATE = (
    "device.deterministic: this process used a GPU before, so cuBLAS may not hold to it; start it with "
    "CUBLAS_WORKSPACE_CONFIG=:4096:8"
)
"""What to say when `use_deterministic` says that it is too late."""


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and PyTorch on every device.

    Args:
        seed: A whole number from 0, below 2**63.

    Raises:
        UserError: It is out of range.
    """
    if not 0 <= seed < 2**63:
        raise UserError("not a seed", key="seed", expected="a whole number from 0, below 2**63", received=seed)
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same for the CPU; the call notes the stack for each kind of device that is not there
        torch.default_generator.manual_seed(seed)


class MicroSeed:
    """Seeds PyTorch's generators before every batch, as a function of the place in the run.

    What dropout draws in a batch is the same whether the run came here in one go or was resumed, and whatever else drew
    random numbers before. A call takes about 2 µs; `torch.manual_seed` takes 70 and more.

    Args:
        seed: Seed of the run.
        devices: Devices that compute; each gets numbers of its own.
    """

    def __init__(self, seed: int, devices: Sequence[torch.device] = ()) -> None:
        self._seed, self._epoch, self._base = seed, -1, 0
        self._generators = [torch.default_generator]
        for device in devices:
            if device.type == "cuda":
                torch.cuda.init()  # the list of generators is empty before
                self._generators.append(torch.cuda.default_generators[device.index or 0])
            elif device.type != "cpu":
                from torch.mps import _get_default_mps_generator

                self._generators.append(_get_default_mps_generator())

    def __call__(self, epoch: int, samples_done: int) -> None:
        """Seed for the batch that starts after `samples_done` samples of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._base = epoch, mix(self._seed, "micro", epoch)
        value = (self._base + samples_done * _GOLDEN) & _MASK
        for index, generator in enumerate(self._generators):
            generator.manual_seed(value ^ index)


def use_deterministic(on: bool = True) -> bool:
    """Use only algorithms that give the same bits every time, or go back to the fastest.

    Call it before anything runs on a GPU: cuBLAS reads its setting once. An operation without such an algorithm raises
    an error that names it.

    Returns:
        Whether that holds for cuBLAS too: False where it has begun in another way.
    """
    in_time = not on or "CUBLAS_WORKSPACE_CONFIG" in os.environ or not torch.cuda.is_initialized()
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        use_benchmark(False)
    torch.backends.cudnn.deterministic = on
    if on or torch.are_deterministic_algorithms_enabled():  # the call imports PyTorch's compiler, to tell it too
        torch.use_deterministic_algorithms(on)
    return in_time


def use_benchmark(on: bool) -> None:
    """Let cuDNN try its algorithms for each new shape and take the fastest, which may be another one each time."""
    torch.backends.cudnn.benchmark = on


def set_threads(count: int | None) -> None:
    """Set the CPU threads of one operation; None leaves PyTorch's choice. Sums of many floats differ between counts.

    Raises:
        UserError: `count` is below 1.
    """
    if count is None:
        return
    if count < 1:
        raise UserError(
            "not a number of threads",
            argument="threads",
            expected="1 or more, or null",
            received=count,
            family="wrong-value",
        )
    torch.set_num_threads(count)
