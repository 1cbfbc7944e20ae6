"""What holds training up, reading batches or computing them, and how long the run will take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import torch

from lightkit.assembly import Learner
from lightkit.common.processes import usable_cpus
from lightkit.data.tensors import Taker
from lightkit.doctor.finding import Finding, Status
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import train_step
from lightkit.loggers.wording import duration
from lightkit.monitor.usage import workers_for

NAME = "speed"
_WARMUP, _STEPS = 2, 8
_SECONDS = 6.0
"""Time after which no further batch is measured."""
_SHORT = 60.0
"""Seconds that the steps of a run take below which nobody waits for batches, and worker processes only cost time."""
_WAITING, _MOSTLY = 0.15, 0.5
"""Shares of the time spent waiting for batches from which on more workers are worth a note, and a warning."""


def check(patient: Patient) -> Iterator[Finding]:
    """Measure how long a batch takes to be read and to be computed; no worker process is started for that."""
    learner = patient.learner()
    learner.network.train()
    train = learner.data.train
    until = time.monotonic() + min(_SECONDS, max(0.0, patient.seconds_left() / 2))
    size = patient.rows(train.batch_size, seconds=_SECONDS / 4)
    changes: dict[str, Any] = {"num_workers": 0, "persistent_workers": False, "pin_memory": False, "drop_last": False}
    alone = train.with_rows(train.rows, batch_size=size, **changes)
    read, computed = list[float](), list[float]()
    with closing(alone.epoch(0)) as batches:
        for number in range(_WARMUP + _STEPS):
            began = time.perf_counter()
            batch = next(batches, None)
            read.append(time.perf_counter() - began)
            if batch is None:
                read.pop()
                break
            moved = learner.engine.move(batch)
            began = time.perf_counter()
            train_step(learner, moved, key=number)
            if learner.engine.device.type == "cuda":
                torch.cuda.synchronize(learner.engine.device)
            computed.append(time.perf_counter() - began)
            if time.monotonic() > until and number >= _WARMUP:
                break
    reading, computing = (_typical(list(islice(each, _WARMUP, None)) or each) for each in (read, computed))
    if isinstance(train.source, Taker):
        reading = sum(read) / len(read)  # several batches are gathered at once: the first of them takes the time
    larger = train.batch_size / size  # of slow ones smaller batches were measured
    yield _judged(learner, reading * larger, computing * larger)


def _typical(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def _judged(learner: Learner, reading: float, computing: float) -> Finding:
    options, cpus = learner.data.train.options, usable_cpus()
    in_memory = isinstance(learner.data.train.source, Taker)
    workers = 0 if in_memory else options.num_workers
    # With workers a batch is read while others are computed; without, one after the other.
    step = max(computing, reading / min(workers, cpus)) if workers else computing + reading
    waiting = max(0.0, 1 - computing / step)
    total = learner.timetable.total_steps * learner.timetable.accumulate * step
    numbers = {"read_seconds": reading, "compute_seconds": computing, "waiting": waiting, "run_seconds": total}
    each = f"a batch of {options.batch_size} is read in {_ms(reading)} and computed in {_ms(computing)}"
    whole = f"the steps of the run take {f'about {duration(total)}' if total >= 1 else 'less than a second'}"
    plain = in_memory and not learner.data.train.prepare.augment and learner.data.train.mixup is None
    if waiting < _WAITING or plain or total < _SHORT:
        bound = "compute-bound: " if waiting < _WAITING else ""
        return Finding(NAME, "ok", f"{bound}{each}; {whole}", numbers=numbers)
    share = f"{100 * waiting:.0f} % of the time goes into waiting for batches"
    if in_memory:
        why = f"{share}; the data are in memory, so worker processes would not help"
        fix = "fewer or cheaper data.augment, or a larger data.batch_size"
        return Finding(NAME, "note", f"input-bound: {each}; {whole}", why, "data.augment", fix, numbers)
    best = workers_for(1 - computing / (computing + reading), 0, cpus)
    numbers["num_workers"] = best
    if workers >= best or cpus == 1:
        why = f"{share}, and {cpus} CPUs have no more to give"
        fix = "prepare the data once beforehand (smaller pictures, tensors in a file), or cheaper data.augment"
        return Finding(NAME, "note", f"input-bound: {each}; {whole}", why, "data.augment", fix, numbers)
    status: Status = "warning" if waiting >= _MOSTLY else "note"
    fix = f"data.num_workers={best}"
    return Finding(NAME, status, f"input-bound: {each}; {whole}", share, "data.num_workers", fix, numbers)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
