"""How well a run used its machine: what its samples add up to, where its time went, and what to try."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lightkit.common.text import counted
from lightkit.monitor.gpus import POWER_CAP, SLOWED, GpuFacts, GpuSample

SHORTEST = 30.0
"""Seconds of training below which nothing is concluded."""
WAITING = 0.15
"""Share of the time without a batch from which on the data are what holds training up."""
BUSY, IDLE = 85.0, 60.0
"""Use of a GPU, in percent, from which on it has enough to do, and below which it has too little."""
_CPUS_FULL = 85.0
"""Use of the processors from which on further processes only take turns."""
_SLOWED = 0.05
_MEMORY_HALF, _MEMORY_SAFE = 0.5, 0.8
"""Share of a GPU's memory up to which there is much room, and that a larger batch should stay below."""
_JOULES_PER_KWH = 3.6e6
_MOST_BATCHES = 4
"""Largest factor that is advised for a batch."""

Bound = Literal["data", "compute", "host"]
_BOUND = {"data": "data-bound", "compute": "compute-bound", "host": "host-bound, the GPU waits for Python"}


@dataclass(frozen=True)
class GpuUsage:
    """How a GPU was used; None is what it does not tell."""

    index: int
    """Physical number."""
    uuid: str
    name: str
    utilisation: float | None = None
    """Share of the time in which something ran on it, in percent."""
    memory_peak_mib: float | None = None
    """Most memory seen in use, by all processes."""
    memory_total_mib: float | None = None
    power_w: float | None = None
    """Mean power drawn."""
    energy_kwh: float | None = None
    temperature_c: float | None = None
    """Highest temperature seen."""
    slowed: float | None = None
    """Share of the time in which heat or lack of power kept its clocks down, 0 to 1."""
    power_capped: float | None = None
    """Share of the time at the power limit, 0 to 1."""


@dataclass(frozen=True)
class Totals:
    """How the machine was used while it was watched; None is what is not known."""

    seconds: float = 0.0
    cpus: int = 1
    """Processors that may be used."""
    cpu_percent: float | None = None
    """Use of these processors by the run."""
    cpu_machine_percent: float | None = None
    ram_peak_gib: float | None = None
    """Most memory the processes of the run had."""
    ram_used_percent: float | None = None
    """Largest share of the machine's memory in use."""
    gpus: tuple[GpuUsage, ...] = ()

    @property
    def energy_kwh(self) -> float | None:
        """Energy of all GPUs; None where that of one is not known, or there are none."""
        found = [gpu.energy_kwh for gpu in self.gpus if gpu.energy_kwh is not None]
        return sum(found) if found and len(found) == len(self.gpus) else None


class Tally:
    """Means in which every value counts for the time it stands for, and largest values; None counts for nothing."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self.peaks: dict[str, float] = {}

    def add(self, seconds: float, means: Mapping[str, float | None], peaks: Mapping[str, float | None]) -> None:
        """Count values.

        Args:
            seconds: Time since those before them.
            means: Those that have a mean, by name.
            peaks: Those of which the largest counts.
        """
        for name, value in means.items():
            if value is not None:
                total, passed = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = total + value * seconds, passed + seconds
        for name, value in peaks.items():
            if value is not None:
                self.peaks[name] = max(value, self.peaks.get(name, value))

    def total(self, name: str) -> float | None:
        """Return the sum over time of a value; None before the first one."""
        total, seconds = self._sums.get(name, (0.0, 0.0))
        return total if seconds else None

    def mean(self, name: str) -> float | None:
        """Return the mean of a value; None before the first one."""
        total, seconds = self._sums.get(name, (0.0, 0.0))
        return total / seconds if seconds else None


@dataclass
class GpuTally:
    """Adds up the samples of one GPU."""

    gpu: GpuFacts
    _tally: Tally = field(default_factory=Tally)
    _before: GpuSample | None = None

    def add(self, sample: GpuSample, *, seconds: float) -> None:
        """Count a sample.

        Args:
            sample: Of this GPU.
            seconds: Time since the one before it.
        """
        reasons = sample.throttle
        means = {
            "utilisation": sample.utilisation,
            "slowed": None if reasons is None else float(any(name in SLOWED for name in reasons)),
            "capped": None if reasons is None else float(POWER_CAP in reasons),
            "power": self._mean_power(sample, seconds),
        }
        self._tally.add(seconds, means, {"memory": sample.memory_used_mib, "temperature": sample.temperature_c})
        self._before = sample

    def _mean_power(self, sample: GpuSample, seconds: float) -> float | None:
        """Return the mean power since the sample before: by the GPU's counter of energy, else of the two powers."""
        before = self._before
        if before is None or not seconds:
            return None
        if sample.energy_j is not None and before.energy_j is not None and sample.energy_j >= before.energy_j:
            return (sample.energy_j - before.energy_j) / seconds
        if sample.power_w is None or before.power_w is None:
            return None
        return (sample.power_w + before.power_w) / 2

    def usage(self) -> GpuUsage:
        """Return what it comes to."""
        gpu, tally, joules = self.gpu, self._tally, self._tally.total("power")
        return GpuUsage(
            gpu.index,
            gpu.uuid,
            gpu.name if gpu.mig is None else f"{gpu.name} MIG {gpu.mig}",
            utilisation=tally.mean("utilisation"),
            memory_peak_mib=tally.peaks.get("memory"),
            memory_total_mib=gpu.memory_total_mib,
            power_w=tally.mean("power"),
            energy_kwh=None if joules is None else joules / _JOULES_PER_KWH,
            temperature_c=tally.peaks.get("temperature"),
            slowed=tally.mean("slowed"),
            power_capped=tally.mean("capped"),
        )


@dataclass(frozen=True)
class Loading:
    """How batches reach the loop."""

    batch_size: int
    num_workers: int | None
    """Loader processes; None for data in memory, which uses none."""
    pin_memory: bool = False
    """Whether batches are in page-locked memory."""


def summary(
    totals: Totals,
    *,
    trained_seconds: float,
    waited_seconds: float,
    loading: Loading,
    speed: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Make the part of `result.json` about the machine.

    Args:
        totals: What was seen.
        trained_seconds: Seconds of training, without validation and saving.
        waited_seconds: Those of them spent waiting for a batch.
        loading: How batches reached the loop.
        speed: Throughput by name: `samples_per_second`, `tokens_per_second` and `mfu` as far as they are known.

    Returns:
        Plain values, of a resumed run those of its last part. `bound` is `data`, `compute`, `host`, or None where it
        was too short to tell; `energy_kwh` is None where it is not known, as without a GPU.
    """
    wait = min(1.0, waited_seconds / trained_seconds) if trained_seconds > 0 else None
    found = bound(totals, wait) if wait is not None and trained_seconds >= SHORTEST else None
    return {
        "seconds": _short(totals.seconds),
        "trained_seconds": _short(trained_seconds),
        **{name: _short(value) for name, value in (speed or {}).items()},
        "data_wait": _short(wait),
        "bound": found,
        "energy_kwh": _short(totals.energy_kwh),
        "cpus": totals.cpus,
        "cpu_percent": _short(totals.cpu_percent),
        "cpu_machine_percent": _short(totals.cpu_machine_percent),
        "ram_peak_gib": _short(totals.ram_peak_gib),
        "ram_used_percent": _short(totals.ram_used_percent),
        "gpus": [{name: _short(value) for name, value in asdict(gpu).items()} for gpu in totals.gpus],
        "advice": list(advice(found, totals, wait=wait or 0.0, loading=loading)) if found else [],
    }


def bound(totals: Totals, wait: float) -> Bound:
    """Tell what held training up.

    A GPU may be busy with earlier steps while the loop waits for data, so the waiting alone does not decide.

    Args:
        totals: What was seen.
        wait: Share of the training time spent waiting for batches, 0 to 1.
    """
    used = _mean_utilisation(totals)
    if wait >= WAITING and (used is None or used < BUSY):
        return "data"
    return "host" if used is not None and used < IDLE else "compute"


def advice(found: Bound, totals: Totals, *, wait: float, loading: Loading) -> Iterator[str]:
    """Yield what to try, with the numbers that speak for it.

    Args:
        found: What held training up.
        totals: What was seen.
        wait: Share of the training time spent waiting for batches, 0 to 1.
        loading: How batches reached the loop.
    """
    if found == "data":
        yield _about_loading(totals, wait, loading)
    if found != "compute" and totals.gpus and not loading.pin_memory:
        yield "data.pin_memory=true (now off): copies to the GPU then run beside the computation"
    if found == "host":
        yield from _about_batches(totals, loading)
    for gpu in totals.gpus:
        if (gpu.slowed or 0.0) >= _SLOWED:
            heat = "" if gpu.temperature_c is None else f", at up to {gpu.temperature_c:.0f} °C"
            share = 100 * (gpu.slowed or 0.0)
            yield f"cool GPU {gpu.index}: heat or lack of power slowed it down {share:.0f} % of the time{heat}"


def _about_loading(totals: Totals, wait: float, loading: Loading) -> str:
    workers, cpus = loading.num_workers, totals.cpus
    busy = "" if totals.cpu_percent is None else f": {counted(cpus, 'CPU')} {totals.cpu_percent:.0f} % busy"
    if workers is None:
        return "the data are in memory: fewer or cheaper data.augment and data.mixup, or a larger data.batch_size"
    if totals.cpu_percent is not None and totals.cpu_percent >= _CPUS_FULL:
        return f"cheaper transforms, or data prepared beforehand; more workers would only take turns{busy}"
    if workers >= cpus:
        return f"a local copy of the data, or fewer and larger files: data.num_workers={workers} wait for them{busy}"
    return f"data.num_workers={workers_for(wait, workers, cpus)} (now {workers}){busy}"


def workers_for(wait: float, workers: int, cpus: int) -> int:
    """Estimate the loader processes that would keep up with the training, as far as there are processors.

    Without any, preparing a batch takes `wait` of the time and computing the rest. With some, they are busy all the
    time, and `1 - wait` of it would do.

    Args:
        wait: Share of the training time spent waiting for batches, 0 to 1.
        workers: Processes there were.
        cpus: Processors there are.
    """
    computing = max(1.0 - wait, 1e-3)
    needed = workers / computing if workers else wait / computing + 1
    return max(1, min(cpus, math.ceil(round(needed, 6))))


def _about_batches(totals: Totals, loading: Loading) -> Iterator[str]:
    used = f"the GPU was {_mean_utilisation(totals) or 0.0:.0f} % busy"
    shares = [
        gpu.memory_peak_mib / gpu.memory_total_mib
        for gpu in totals.gpus
        if gpu.memory_peak_mib and gpu.memory_total_mib
    ]
    if not shares or max(shares) >= _MEMORY_HALF:
        yield f"a larger data.batch_size: {used}, and more work at a time would keep it busy"
        return
    factor = 2
    while 2 * factor <= _MOST_BATCHES and 2 * factor * max(shares) <= _MEMORY_SAFE:
        factor *= 2
    size = loading.batch_size
    room = f"{used}, its memory at most {100 * max(shares):.0f} % full"
    yield f"data.batch_size={factor * size} (now {size}), with a learning rate to match: {room}"


def _mean_utilisation(totals: Totals) -> float | None:
    found = [gpu.utilisation for gpu in totals.gpus if gpu.utilisation is not None]
    return sum(found) / len(found) if found else None


def lines(result: dict[str, Any]) -> list[str]:
    """Write the closing lines of a run; none for one too short to conclude anything.

    Args:
        result: From `summary`.
    """
    found = result.get("bound")
    if found is None:
        return []
    waited = f"{100 * result['data_wait']:.0f} % of the training time was spent waiting for a batch"
    told = [f"{_BOUND[found]}: {waited}", _speed_line(result), *map(_gpu_line, result["gpus"]), _cpu_line(result)]
    if result["energy_kwh"] is not None and len(result["gpus"]) > 1:
        told.append(f"{result['energy_kwh']:.3g} kWh in all")
    marked = [f"{'' if at else 'machine':<8}{line}" for at, line in enumerate(line for line in told if line)]
    return [*marked, *(f"advice  {line}" for line in result["advice"])]


def _speed_line(result: dict[str, Any]) -> str:
    told = [(name, result[f"{name}_per_second"]) for name in ("samples", "tokens") if f"{name}_per_second" in result]
    counts = [f"{format(pace, ',.0f' if pace >= 100 else '.3g')} {name} a second" for name, pace in told]
    return ", ".join([*counts, *([f"MFU {100 * result['mfu']:.3g} %"] if "mfu" in result else [])])


def _gpu_line(gpu: dict[str, Any]) -> str:
    peak, total = gpu["memory_peak_mib"], gpu["memory_total_mib"]
    of = "" if total is None else f" of {total / 1024:.1f}"
    parts = [
        None if gpu["utilisation"] is None else f"{gpu['utilisation']:.0f} % busy",
        None if peak is None else f"at most {peak / 1024:.1f}{of} GiB",
        None if gpu["power_w"] is None else f"{gpu['power_w']:.0f} W",
        None if gpu["energy_kwh"] is None else f"{gpu['energy_kwh']:.3g} kWh",
        None if gpu["temperature_c"] is None else f"up to {gpu['temperature_c']:.0f} °C",
        f"{100 * gpu['power_capped']:.0f} % of the time at its power limit"
        if (gpu["power_capped"] or 0) >= _SLOWED
        else None,
    ]
    return f"GPU {gpu['index']} {gpu['name']}: " + (", ".join(part for part in parts if part) or "tells nothing")


def _cpu_line(result: dict[str, Any]) -> str:
    own, whole = result["cpu_percent"], result.get("cpu_machine_percent")
    busy = None if own is None else f"{counted(result['cpus'], 'CPU')} {own:.0f} % busy with this run"
    busy = busy if busy is None or whole is None else f"{busy}, {whole:.0f} % with all there is on the machine"
    memory = None if result["ram_peak_gib"] is None else f"at most {result['ram_peak_gib']:.1f} GiB of memory"
    return ", ".join(part for part in (busy, memory) if part)


def _short(value: Any) -> Any:
    """Give a number as many digits as it deserves."""
    return float(f"{value:.5g}") if isinstance(value, float) else value
