"""Whether machine, driver and packages go together, said before a run finds out, and what will hold it up."""

from __future__ import annotations

import importlib.metadata
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median_high
from typing import Any

import torch

from lightkit.assembly import Learner
from lightkit.data.tensors import Taker
from lightkit.device.about import torch_facts
from lightkit.diagnostics.memory import available_memory, in_gib
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, Status
from lightkit.doctor.training.probing import in_process, train_step
from lightkit.loggers.wording import duration
from lightkit.monitor.gpus import GpuFacts, Source
from lightkit.monitor.nvml import open_source
from lightkit.monitor.usage import workers_for
from lightkit.processes.children import usable_cpus

_SHARED = Path("/dev/shm")
_SMALL_SHARED = 1 << 30
_PACKAGES = ("torchvision", "torchaudio", "torchmetrics", "timm", "tensorboard", "optuna", "ray")
"""Packages whose wishes about other packages are looked at, where they are installed."""
_BUSY_MIB, _BUSY_SHARE = 1024, 0.5


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Look at versions, the driver and its GPUs, and the memory that worker processes share."""
    facts = torch_facts()
    yield versions(facts)
    with closing(open_source()) as source:
        gpus = list(source.gpus)
        yield devices(facts, gpus, device_name=str(run.cfg.device.name))
        yield from busy(source, gpus) if run.shared.engine.device.type == "cuda" else ()
    yield from workers(run)


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


def devices(facts: dict[str, Any], gpus: list[GpuFacts], *, device_name: str) -> Finding:
    """Compare the GPUs of the machine with those that PyTorch can use.

    Args:
        facts: See `lightkit.device.about.torch_facts`.
        gpus: What the driver knows.
        device_name: `device.name` of the configuration.
    """
    seen = facts["devices"]
    if not seen and gpus and device_name != "cpu":
        measured = f"the driver knows {gpus[0].name or 'a GPU'}, and PyTorch does not see it: {facts['no_cuda']}"
        why = "the run would train on the CPU, ten to a hundred times slower"
        fix = "a PyTorch for this driver: https://pytorch.org/get-started; `lightkit env` shows both versions"
        return Finding("device", "error", measured, why, "device.name", fix)
    if not seen:
        there = "no GPU here" if not gpus else "device.name=cpu"
        return Finding("device", "ok", f"{facts['default_device'] if device_name != 'cpu' else 'cpu'} ({there})")
    missing = [each for each in seen if not supported(each["capability"], facts["built_for"])]
    if missing:
        measured = f"{missing[0]['name']} has capability {missing[0]['capability']}, and this PyTorch is built for "
        why = "the first kernel fails with `no kernel image is available for execution on the device`"
        fix = "a PyTorch built for this GPU: https://pytorch.org/get-started"
        return Finding("device", "error", measured + ", ".join(facts["built_for"]), why, "device.name", fix)
    names = ", ".join(dict.fromkeys(each["name"] for each in seen))
    return Finding("device", "ok", f"{len(seen)} × {names}, driver {gpus[0].driver if gpus else 'unknown'}")


def supported(capability: str, built_for: list[str]) -> bool:
    """Tell whether a build of PyTorch runs on a GPU: has kernels for its generation, or code to compile for it.

    Args:
        capability: Such as `8.6`.
        built_for: Such as `sm_80` (kernels) and `compute_90` (code).
    """
    own = tuple(map(int, capability.split(".")))
    for text in built_for:
        kind, _, digits = text.partition("_")
        digits = digits.rstrip("af")
        built = (int(digits[:-1]), int(digits[-1])) if digits.isdigit() else (own[0] + 1, 0)
        if built <= own and (kind == "compute" or (kind == "sm" and built[0] == own[0])):
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


def workers(run: ExaminedRun, shared: Path = _SHARED) -> Iterator[Finding]:
    """Look at what worker processes need: processors, and memory that they share.

    Args:
        run: The run.
        shared: Where that memory is mounted.
    """
    options, cpus = run.shared.data.train.options, usable_cpus()
    memory = available_memory()
    free = f", {in_gib(memory)} of memory free" if memory else ""
    if isinstance(run.shared.data.train.source, Taker) or not options.num_workers:
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


SPEED = "speed"
_WARMUP, _STEPS = 2, 8
_SECONDS = 6.0
"""Time after which no further batch is measured."""
_SHORT = 60.0
"""Seconds that the steps of a run take below which nobody waits for batches, and worker processes only cost time."""
_WAITING, _MOSTLY = 0.15, 0.5
"""Shares of the time spent waiting for batches from which on more workers are worth a note, and a warning."""


def check_speed(run: ExaminedRun) -> Iterator[Finding]:
    """Measure how long a batch takes to be read and to be computed; no worker process is started for that."""
    learner = run.learner()
    learner.network.train()
    train = learner.data.train
    until = time.monotonic() + min(_SECONDS, max(0.0, run.seconds_left() / 2))
    size = run.rows(train.batch_size, seconds=_SECONDS / 4)
    read, computed = list[float](), list[float]()
    with closing(in_process(learner, train, train.rows, batch_size=size, drop_last=False).epoch(0)) as batches:
        for number in range(_WARMUP + _STEPS):
            began = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            read.append(time.perf_counter() - began)
            moved = learner.engine.move(batch)
            began = time.perf_counter()
            train_step(learner, moved, key=number)
            if learner.engine.device.type == "cuda":
                torch.cuda.synchronize(learner.engine.device)
            computed.append(time.perf_counter() - began)
            if time.monotonic() > until and number >= _WARMUP:
                break
    reading, computing = (median_high(each[_WARMUP:] or each) for each in (read, computed))
    if isinstance(train.source, Taker):
        reading = sum(read) / len(read)  # several batches are gathered at once: the first of them takes the time
    larger = train.batch_size / size  # of slow ones smaller batches were measured
    yield _judged(learner, reading * larger, computing * larger)


def _judged(learner: Learner, reading: float, computing: float) -> Finding:
    options, cpus = learner.data.train.options, usable_cpus()
    in_memory = isinstance(learner.data.train.source, Taker)
    workers = 0 if in_memory else options.num_workers
    # With workers a batch is read while others are computed; without, one after the other.
    step = max(computing, reading / min(workers, cpus)) if workers else computing + reading
    waiting = max(0.0, 1 - computing / step)
    total = learner.timetable.total_steps * learner.timetable.accumulate * step
    numbers = {"read_seconds": reading, "compute_seconds": computing, "waiting": waiting, "run_seconds": total}
    measured = f"a batch of {options.batch_size} is read in {1000 * reading:.3g} ms and computed in "
    measured += f"{1000 * computing:.3g} ms; "
    measured += f"the steps of the run take {f'about {duration(total)}' if total >= 1 else 'less than a second'}"
    plain = in_memory and not learner.data.train.prepare.augment and learner.data.train.mixup is None
    if waiting < _WAITING or plain or total < _SHORT:
        bound = "compute-bound: " if waiting < _WAITING else ""
        return Finding(SPEED, "ok", f"{bound}{measured}", numbers=numbers)
    status: Status = "note"
    measured, key = f"input-bound: {measured}", "data.augment"
    why = f"{100 * waiting:.0f} % of the time goes into waiting for batches"
    best = workers_for(1 - computing / (computing + reading), 0, cpus)
    if in_memory:
        why += "; the data are in memory, so worker processes would not help"
        fix = "fewer or cheaper data.augment, or a larger data.batch_size"
    elif workers >= best or cpus == 1:
        why += f", and {cpus} CPUs have no more to give"
        fix = "prepare the data once beforehand (smaller pictures, tensors in a file), or cheaper data.augment"
    else:
        status = "warning" if waiting >= _MOSTLY else "note"
        key, fix = "data.num_workers", f"data.num_workers={best}"
    numbers |= {} if in_memory else {"num_workers": best}
    return Finding(SPEED, status, measured, why, key, fix, numbers)
