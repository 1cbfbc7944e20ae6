"""What the samples of a run add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightkit.monitor.gpus import POWER_CAP, SLOWED, GpuFacts, GpuSample

_JOULES_PER_KWH = 3.6e6


@dataclass
class Mean:
    """A mean in which every value counts for the time it stands for."""

    total: float = 0.0
    seconds: float = 0.0

    def add(self, value: float | None, seconds: float) -> None:
        """Count a value; one that is not known counts for no time."""
        if value is not None:
            self.total += value * seconds
            self.seconds += seconds

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.seconds if self.seconds else None


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


@dataclass
class GpuTally:
    """Adds up the samples of one GPU."""

    gpu: GpuFacts
    _utilisation: Mean = field(default_factory=Mean)
    _slowed: Mean = field(default_factory=Mean)
    _capped: Mean = field(default_factory=Mean)
    _power: Mean = field(default_factory=Mean)
    _memory: float | None = None
    _temperature: float | None = None
    _before: GpuSample | None = None

    def add(self, sample: GpuSample, *, seconds: float) -> None:
        """Count a sample.

        Args:
            sample: Of this GPU.
            seconds: Time since the one before it.
        """
        self._utilisation.add(sample.utilisation, seconds)
        reasons = sample.throttle
        self._slowed.add(None if reasons is None else float(any(name in SLOWED for name in reasons)), seconds)
        self._capped.add(None if reasons is None else float(POWER_CAP in reasons), seconds)
        self._power.add(self._mean_power(sample, seconds), seconds)
        self._memory = _larger(self._memory, sample.memory_used_mib)
        self._temperature = _larger(self._temperature, sample.temperature_c)
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
        return GpuUsage(
            self.gpu.index,
            self.gpu.uuid,
            self.gpu.name if self.gpu.mig is None else f"{self.gpu.name} MIG {self.gpu.mig}",
            utilisation=self._utilisation.value,
            memory_peak_mib=self._memory,
            memory_total_mib=self.gpu.memory_total_mib,
            power_w=self._power.value,
            energy_kwh=self._power.total / _JOULES_PER_KWH if self._power.seconds else None,
            temperature_c=self._temperature,
            slowed=self._slowed.value,
            power_capped=self._capped.value,
        )


@dataclass
class HostTally:
    """Adds up the samples of processor and memory."""

    _means: dict[str, Mean] = field(default_factory=dict)
    _peaks: dict[str, float | None] = field(default_factory=dict)

    def add(self, values: Mapping[str, float], *, seconds: float) -> None:
        """Count a sample.

        Args:
            values: As `Host.read` gives them.
            seconds: Time since the one before it.
        """
        for name in ("cpu_percent", "cpu_machine_percent"):
            self._means.setdefault(name, Mean()).add(values.get(name), seconds)
        for name in ("ram_gib", "ram_used_percent"):
            self._peaks[name] = _larger(self._peaks.get(name), values.get(name))

    def totals(self, *, seconds: float, cpus: int, gpus: tuple[GpuUsage, ...]) -> Totals:
        """Return what it comes to, with what is known of the GPUs."""
        means = {name: mean.value for name, mean in self._means.items()}
        return Totals(
            seconds,
            cpus,
            cpu_percent=means.get("cpu_percent"),
            cpu_machine_percent=means.get("cpu_machine_percent"),
            ram_peak_gib=self._peaks.get("ram_gib"),
            ram_used_percent=self._peaks.get("ram_used_percent"),
            gpus=gpus,
        )


def _larger(one: float | None, other: float | None) -> float | None:
    found = [value for value in (one, other) if value is not None]
    return max(found) if found else None
