"""What is set once for a whole process, before anything is computed in it, and its random numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import torch

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.device.placement import Placement, located
from lightkit.device.precision import precision_named
from lightkit.device.ranks import Ranks
from lightkit.device.stepping import leave_compiler_out
from lightkit.device.switches import Switches


def configure_process(
    name: str = "cpu",
    *,
    gpus: Sequence[int | str] | str | None = None,
    precision: str = "fp32",
    switches: Switches | None = None,
    ranks: Ranks | None = None,
    deterministic: bool = False,
    threads: int | None = None,
    several_gpus: bool = False,
    seed: int = 0,
) -> Placement:
    """Choose the device of this process, and set what is global in it.

    That are the GPUs that it sees, CPU threads, deterministic algorithms, the exactness of matrix products, and every
    random generator. The engines of a process are built afterwards; building one sets nothing. Called once more, it
    sets everything anew but for the GPUs, which PyTorch looks for once.

    Args:
        name: Device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.
        gpus: GPUs to see, by their physical numbers or UUIDs, or `auto:N`; None sees all. The CPU and Apple's GPU
            ignore it.
        precision: `fp32`, `tf32`, `bf16`, `fp16`, `bf16-true` or `fp64`.
        switches: What makes the run faster or smaller.
        ranks: The processes that train together; None where this one is alone.
        deterministic: Only algorithms that give the same bits every time.
        threads: CPU threads of one operation; None leaves PyTorch's choice.
        several_gpus: Whether this process computes on all GPUs that it sees.
        seed: Seed of the run.

    Returns:
        The device, with lines for people about how it was chosen.

    Raises:
        UserError: There is no such device, or a value is out of range.
    """
    switches = switches or Switches()
    if not switches.compiles:
        leave_compiler_out()
    set_threads(threads)
    in_time = use_deterministic(deterministic)  # here, before anything asks for GPUs
    device, mapping = located((ranks or Ranks()).device_name(name), gpus)
    if device.type == "cuda":  # whoever asks for no device, such as page-locking, would wake up the first one
        torch.cuda.set_device(device)
    torch.backends.cudnn.enabled = switches.cudnn
    limit_memory(switches.memory_fraction, device, several_gpus=several_gpus)
    use_benchmark(switches.cudnn_benchmark and not deterministic)
    precision_named(precision).set_matmul(device, switches.matmul_level)
    seed_everything(seed)
    unused = [f"device.gpus={gpus}: not used, as the run is on {device.type}"] if gpus and device.type != "cuda" else []
    return Placement(device, mapping=mapping, notes=[*([] if in_time else [TOO_LATE]), *mapping, *unused])


def limit_memory(fraction: float | None, device: torch.device, *, several_gpus: bool = False) -> None:
    """Limit what PyTorch takes of the memory of a GPU in this process; None takes an earlier limit back.

    Args:
        fraction: Largest share, above 0 and at most 1.
        device: The main device; a CPU has no such limit.
        several_gpus: Limit the other visible GPUs in the same way.
    """
    if device.type == "cuda" and (fraction is not None or torch.cuda.is_initialized()):
        others = range(torch.cuda.device_count()) if several_gpus else ()
        for index in {device.index or 0, *others}:
            torch.cuda.set_per_process_memory_fraction(float(fraction or 1.0), index)
    elif device.type == "mps" and fraction is not None:
        torch.mps.set_per_process_memory_fraction(float(fraction))


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
        what = "not a number of threads"
        raise UserError(what, argument="threads", expected="1 or more, or null", received=count, family="wrong-value")
    torch.set_num_threads(count)
