"""What is set once for a whole process, before anything is computed in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lightkit.device.placement import Placement, located
from lightkit.device.precision import precision_named
from lightkit.device.ranks import Ranks
from lightkit.device.seed import TOO_LATE, seed_everything, set_threads, use_benchmark, use_deterministic
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
