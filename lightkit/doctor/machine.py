"""Whether machine, driver and packages go together: said before a run finds out."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightkit.common.processes import usable_cpus
from lightkit.data.tensors import Taker
from lightkit.device.about import torch_facts
from lightkit.diagnostics.memory import available_memory, in_gib
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.monitor.gpus import GpuFacts, Source
from lightkit.monitor.nvml import open_source

_SHARED = Path("/dev/shm")
_SMALL_SHARED = 1 << 30
_PACKAGES = ("torchvision", "torchaudio", "torchmetrics", "timm", "tensorboard", "optuna", "ray")
"""Packages whose wishes about other packages are looked at, where they are installed."""
_BUSY_MIB, _BUSY_SHARE = 1024, 0.5


def check(patient: Patient) -> Iterator[Finding]:
    """Look at versions, the driver and its GPUs, and the memory that worker processes share."""
    facts = torch_facts()
    yield versions(facts)
    source = open_source()
    try:
        gpus = list(source.gpus)
        yield from devices(facts, gpus, asked=str(patient.cfg.device.name))
        yield from busy(source, gpus) if patient.shared.engine.device.type == "cuda" else ()
    finally:
        source.close()
    yield from workers(patient)


def versions(facts: dict[str, Any]) -> Finding:
    """Compare what installed packages ask of each other with what is there.

    Args:
        facts: See `lightkit.device.about.torch_facts`.
    """
    wrong = [line for name in _PACKAGES for line in _unmet(name)]
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "without CUDA"
    if wrong:
        why = "compiled parts of one do not fit the other: imports fail, or operators are missing"
        fix = "pip install -U torch torchvision, or the versions that are asked for"
        return Finding("versions", "warning", "; ".join(wrong), why, fix=fix)
    return Finding("versions", "ok", f"torch {facts['version']} ({built}); packages go together", numbers=facts)


def _unmet(package: str) -> Iterator[str]:
    """Yield what a package asks of torch and NumPy and does not get."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return
    try:
        wishes, own = importlib.metadata.requires(package) or [], importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return
    for text in wishes:
        try:
            wish = Requirement(text)
            there = importlib.metadata.version(wish.name)
        except (InvalidRequirement, importlib.metadata.PackageNotFoundError):
            continue
        applies = wish.marker is None or wish.marker.evaluate({"extra": ""})
        if applies and wish.name in ("torch", "numpy") and not wish.specifier.contains(there, prereleases=True):
            yield f"{package} {own} wants {wish.name}{wish.specifier}, and {there} is installed"


def devices(facts: dict[str, Any], gpus: list[GpuFacts], *, asked: str) -> Iterator[Finding]:
    """Compare the GPUs of the machine with those that PyTorch can use.

    Args:
        facts: See `lightkit.device.about.torch_facts`.
        gpus: What the driver knows.
        asked: `device.name` of the configuration.
    """
    seen = facts["devices"]
    if not seen and gpus and asked != "cpu":
        measured = f"the driver knows {gpus[0].name or 'a GPU'}, and PyTorch does not see it: {facts['no_cuda']}"
        why = "the run would train on the CPU, ten to a hundred times slower"
        fix = "a PyTorch for this driver: https://pytorch.org/get-started; `lightkit env` shows both versions"
        yield Finding("device", "error", measured, why, "device.name", fix)
        return
    if not seen:
        there = "no GPU here" if not gpus else "device.name=cpu"
        yield Finding("device", "ok", f"{facts['default_device'] if asked != 'cpu' else 'cpu'} ({there})")
        return
    missing = [each for each in seen if not supported(each["capability"], facts["built_for"])]
    if missing:
        first = missing[0]
        measured = f"{first['name']} has capability {first['capability']}, and this PyTorch is built for "
        measured += ", ".join(facts["built_for"])
        why = "the first kernel fails with `no kernel image is available for execution on the device`"
        fix = "a PyTorch built for this GPU: https://pytorch.org/get-started"
        yield Finding("device", "error", measured, why, "device.name", fix)
        return
    names = ", ".join(dict.fromkeys(each["name"] for each in seen))
    yield Finding("device", "ok", f"{len(seen)} × {names}, driver {gpus[0].driver if gpus else 'unknown'}")


def supported(capability: str, built_for: list[str]) -> bool:
    """Tell whether a build of PyTorch runs on a GPU: has kernels for its generation, or code to compile for it.

    Args:
        capability: Such as `8.6`.
        built_for: Such as `sm_80` (kernels) and `compute_90` (code).
    """
    major, _, minor = capability.partition(".")
    own = (int(major), int(minor))
    for text in built_for:
        kind, _, digits = text.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit():
            continue
        built = (int(digits[:-1]), int(digits[-1]))
        if (kind == "sm" and built[0] == own[0] and built <= own) or (kind == "compute" and built <= own):
            return True
    return not built_for


def busy(source: Source, gpus: list[GpuFacts]) -> Iterator[Finding]:
    """Tell about GPUs whose memory others use already.

    Args:
        source: Asks the driver.
        gpus: The GPUs.
    """
    for sample in source.samples(gpus):
        gpu = sample.gpu
        used, total = sample.memory_used_mib, gpu.memory_total_mib
        if used and total and used > max(_BUSY_MIB, _BUSY_SHARE * total):
            measured = f"{used / 1024:.1f} of {total / 1024:.1f} GiB of GPU {gpu.index} are in use already"
            why = "the run may not fit beside it, and both are slow"
            fix = "`lightkit gpus` shows who; device.gpus=auto"
            yield Finding("GPU memory", "note", measured, why, "device.gpus", fix)


def workers(patient: Patient, shared: Path = _SHARED) -> Iterator[Finding]:
    """Look at what worker processes need: processors, and memory that they share.

    Args:
        patient: The run.
        shared: Where that memory is mounted.
    """
    options, cpus = patient.shared.data.train.options, usable_cpus()
    memory = available_memory()
    free = f", {in_gib(memory)} of memory free" if memory else ""
    if isinstance(patient.shared.data.train.source, Taker) or not options.num_workers:
        yield Finding("processors", "ok", f"{cpus} usable{free}")
        return
    size = shutil.disk_usage(shared).total if shared.is_dir() else None
    if size is not None and size < _SMALL_SHARED:
        measured = f"{shared} has {size >> 20} MiB, and data.num_workers={options.num_workers} exchange batches in it"
        why = "with larger batches a worker dies with a bus error"
        fix = "docker run --shm-size=8g (or --ipc=host), or data.num_workers=0"
        yield Finding("shared memory", "warning", measured, why, "data.num_workers", fix)
    if options.num_workers > cpus:
        measured = f"data.num_workers={options.num_workers}, and {cpus} CPUs can be used here"
        why = "the processes take turns, and take memory"
        yield Finding("processors", "note", measured, why, "data.num_workers", f"data.num_workers={cpus}")
    else:
        yield Finding("processors", "ok", f"{cpus} usable for data.num_workers={options.num_workers}{free}")
