"""Watching the machine while a run trains: a thread that samples, and the loop that takes what is there."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from lightkit.common.errors import UserError
from lightkit.monitor.gpus import SLOWED, GpuFacts, GpuSample, Source, computing_on
from lightkit.monitor.host import Host
from lightkit.monitor.nvml import open_source, preload
from lightkit.monitor.usage import GpuTally, Tally, Totals
from lightkit.processes.children import usable_cpus

PREFIX = "system/"
"""First part of the names of all values."""
KEPT = 360
"""Samples that wait for the loop to take them; where it does not, the oldest are forgotten."""
_SHARE = 0.1
"""Share of the time that sampling may take at most, where the driver is slow to answer."""
_PATIENCE = 2.0
"""Seconds that the end of a run waits for a sample under way."""
_MEANS, _LARGEST = ("cpu_percent", "cpu_machine_percent"), ("ram_gib", "ram_used_percent")
"""Values of the host whose means, and whose largest, sum up a run."""
_PEAKS = ("ram_gib", "memory_gib")
"""Values of which the largest since the last reading is told; of all others the mean."""


class NoMonitor:
    """Watches nothing: the plain case."""

    def __enter__(self) -> NoMonitor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> None:
        """Take a last sample and end."""

    def read(self) -> dict[str, float]:
        """Return what was seen since the last reading, by name; nothing where nothing was."""
        return {}

    def totals(self) -> Totals:
        """Return what was seen in all; to be asked for after the end."""
        return Totals(cpus=usable_cpus())


@dataclass
class Watch:
    """Takes samples when it is told to, and adds them up. It has no thread and no lock.

    Args:
        folder: A folder on the disk that matters.
        gpus: The numbers of the GPUs this process computes on, as it counts them; empty asks no driver.
        uuids: What CUDA says they are, by number.
        clock: Seconds.
        open_gpus: Opens the source of facts about GPUs.
        open_host: Makes what reads processor, memory and disk.
    """

    folder: Path
    gpus: Sequence[int] = ()
    uuids: Mapping[int, str] | None = None
    clock: Callable[[], float] = time.monotonic
    open_gpus: Callable[[], Source] = open_source
    open_host: Callable[[Path], Host] = Host

    def __post_init__(self) -> None:
        if self.gpus:
            preload()
        self.rows: deque[dict[str, float]] = deque(maxlen=KEPT)
        self._host = self.open_host(self.folder)
        self._source, self._watched = Source(), list[GpuFacts]()
        self._tallies, self._machine = dict[str, GpuTally](), Tally()
        self._began = self._last = self.clock()

    def begin(self) -> None:
        """Open the driver, and take the sample that rates and energy are counted from."""
        if self.gpus:
            self._source = self.open_gpus()
        self._watched = computing_on(self._source.gpus, self.gpus, uuids=self.uuids)
        self._tallies = {gpu.uuid: GpuTally(gpu) for gpu in self._watched}
        self._began = self._last = self.clock()
        self._host.read()
        for sample in self._source.samples(self._watched):
            self._tallies[sample.gpu.uuid].add(sample, seconds=0.0)

    def take(self, *, last: bool = False) -> None:
        """Sample once.

        Args:
            last: Only add it up: whoever takes the rows has taken all.
        """
        now = self.clock()
        seconds, self._last = now - self._last, now
        host = self._host.read()
        means, peaks = ({name: host.get(name) for name in names} for names in (_MEANS, _LARGEST))
        self._machine.add(seconds, means, peaks)
        row = {f"{PREFIX}{name}": value for name, value in host.items()}
        for sample in self._source.samples(self._watched):
            self._tallies[sample.gpu.uuid].add(sample, seconds=seconds)
            own = f"{PREFIX}gpu{sample.gpu.index}_{'' if sample.gpu.mig is None else 'mig_'}"
            row |= {f"{own}{name}": value for name, value in gpu_values(sample).items()}
        if not last:
            self.rows.append(row)

    def end(self) -> None:
        """Close the driver."""
        self._source.close()

    def totals(self) -> Totals:
        """Return what was seen up to the last sample."""
        machine = self._machine
        return Totals(
            self._last - self._began,
            usable_cpus(),
            cpu_percent=machine.mean("cpu_percent"),
            cpu_machine_percent=machine.mean("cpu_machine_percent"),
            ram_peak_gib=machine.peaks.get("ram_gib"),
            ram_used_percent=machine.peaks.get("ram_used_percent"),
            gpus=tuple(tally.usage() for tally in self._tallies.values()),
        )


class Monitor(NoMonitor):
    """Samples in a thread of its own, at an interval. The loop is never waited for, nor does it wait.

    The thread hands its samples over through a queue that holds a bounded number of them, and everything else it keeps
    to itself: there is no lock that a forked loader process could inherit in a closed state. In such a process the
    monitor does nothing.

    Args:
        watch: What is sampled.
        every_seconds: Time between two samples. Where sampling takes long, it is done less often.

    Raises:
        UserError: The interval is not above 0.
    """

    def __init__(self, watch: Watch, every_seconds: float = 10.0) -> None:
        if not every_seconds > 0:
            key = "logger.system.every_seconds"
            raise UserError("out of range", key=key, expected="a number above 0", received=every_seconds)
        self.watch, self.every_seconds = watch, every_seconds
        self.failure: str | None = None
        """Why it stopped to watch on its own; None where it did not."""
        self._asked_to_end, self._thread, self._pid = Event(), None, os.getpid()  # type: Event, Thread | None, int

    def start(self) -> None:
        """See `NoMonitor`. Starting twice is starting once."""
        if self._thread is None:
            self._asked_to_end, self._pid = Event(), os.getpid()
            self._thread = Thread(target=self._run, name="lightkit-monitor", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """See `NoMonitor`. Where a driver does not answer, its thread is left behind; it ends with the process."""
        thread = self._thread
        if thread is not None and self._pid == os.getpid():
            self._thread = None
            self._asked_to_end.set()
            thread.join(_PATIENCE)

    def read(self) -> dict[str, float]:
        """See `NoMonitor`: means over the samples since the last reading, of memory the most."""
        rows = []
        with suppress(IndexError):
            while True:
                rows.append(self.watch.rows.popleft())
        merged: dict[str, float] = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row[name] for row in rows if name in row]
            value = max(values) if name.endswith(_PEAKS) else sum(values) / len(values)
            merged[name] = float(f"{value:.5g}")  # more digits than that mean nothing
        return merged

    def totals(self) -> Totals:
        """See `NoMonitor`."""
        return self.watch.totals()

    def _run(self) -> None:
        try:
            self._watch_until(self._asked_to_end)
        except Exception as error:  # whatever it is, it is not worth a run
            self.failure = f"{type(error).__name__}: {error}"

    def _watch_until(self, asked: Event) -> None:
        watch = self.watch
        try:
            watch.begin()
            pause = self.every_seconds
            while not asked.wait(pause):
                began = time.monotonic()
                watch.take()
                pause = max(self.every_seconds, (time.monotonic() - began) / _SHARE)
            watch.take(last=True)
        finally:
            watch.end()


def gpu_values(sample: GpuSample) -> dict[str, float]:
    """Return what is charted of a GPU, by name, as far as it is known.

    Returns:
        `utilisation` (percent), `memory_gib`, `temperature_c`, `power_w`, `clock_mhz`, `pcie_mb_s` (both ways together)
        and `slowed` (1 while heat or lack of power keeps its clocks down, else 0).
    """
    pcie = (sample.pcie_tx_mb_s, sample.pcie_rx_mb_s)
    found = {
        "utilisation": sample.utilisation,
        "memory_gib": None if sample.memory_used_mib is None else sample.memory_used_mib / 1024,
        "temperature_c": sample.temperature_c,
        "power_w": sample.power_w,
        "clock_mhz": sample.clock_mhz,
        "pcie_mb_s": None if None in pcie else sum(part for part in pcie if part is not None),
        "slowed": None if sample.throttle is None else float(any(name in SLOWED for name in sample.throttle)),
    }
    return {name: float(value) for name, value in found.items() if value is not None}
