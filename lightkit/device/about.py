"""What PyTorch says of itself and of its devices."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def torch_facts() -> dict[str, Any]:
    """Collect versions and devices, for a report; `error` alone where PyTorch cannot be imported.

    Returns:
        Plain values: `version`, `cuda`, `hip`, `cudnn` and `nccl` (versions, None without), `built_for` (GPU
        architectures), `threads`, `cpu_capability`, `mps`, `default_device` (what `auto` takes), `devices` and
        `no_cuda` (why there is no GPU of NVIDIA among them, None where there is one).
    """
    try:
        import torch
    except Exception as error:  # a broken installation is what such a report is often about
        return {"error": f"{type(error).__name__}: {error}"}
    found = torch.cuda.is_available()
    mps = torch.backends.mps.is_available()
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())] if found else []
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": _cudnn(torch.backends.cudnn),
        "nccl": _nccl(torch.cuda.nccl) if found else None,
        "built_for": torch.cuda.get_arch_list() if found else [],
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mps": mps,
        "default_device": "cuda:0" if found else "mps" if mps else "cpu",
        "devices": [
            {
                "device": f"cuda:{index}",
                "name": facts.name,
                "uuid": f"GPU-{facts.uuid}" if hasattr(facts, "uuid") else None,
                "memory_gib": round(facts.total_memory / 2**30, 1),
                "capability": f"{facts.major}.{facts.minor}",
                "multiprocessors": facts.multi_processor_count,
            }
            for index, facts in enumerate(gpus)
        ],
        "no_cuda": None if found else why_no_cuda(),
    }


def why_no_cuda() -> str:
    """Say why PyTorch sees no GPU of NVIDIA: its build, the environment, or what the driver answers."""
    import torch

    if not torch.backends.cuda.is_built():
        return "this PyTorch was built without CUDA"
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and not shown.strip():
        return "CUDA_VISIBLE_DEVICES is set and empty, which hides all of them"
    try:
        torch.cuda.init()
    except Exception as error:  # whatever the driver, the library or the build has to say
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"CUDA_VISIBLE_DEVICES={shown} names none" if shown is not None else "CUDA finds none"


def _cudnn(cudnn: Any) -> str | None:
    """Turn the number of a version into text: 92600 into `9.26.0`."""
    number = cudnn.version() if cudnn.is_available() else None
    if number is None:
        return None
    major = 10_000 if number >= 90_000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _nccl(nccl: Any) -> str | None:
    """Return the version of NCCL; None in a build without it, as those for Windows are."""
    try:
        return ".".join(map(str, nccl.version()))
    except (AttributeError, RuntimeError):
        return None


def cuda_uuids(devices: Iterable[Any]) -> dict[int, str]:
    """Return what CUDA says its devices are, by number; without those that are no GPU of NVIDIA.

    Args:
        devices: `torch.device`s with their numbers.
    """
    import torch

    if torch.version.cuda is None:
        return {}
    facts = {device.index: torch.cuda.get_device_properties(device) for device in devices if device.type == "cuda"}
    return {index: str(fact.uuid) for index, fact in facts.items() if hasattr(fact, "uuid")}
