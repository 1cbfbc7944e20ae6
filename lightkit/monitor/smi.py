"""GPUs as `nvidia-smi` prints them, for machines where the library itself cannot be used."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence

from lightkit.monitor.gpus import GpuFacts, GpuSample, Source, Unavailable, number, throttle_names

SECONDS = 10.0
"""Time the program may take; one that hangs, as it does beside a broken GPU, is ended."""
FACTS = (
    "index",
    "uuid",
    "driver_version",
    "pci.bus_id",
    "enforced.power.limit",
    "memory.total",
    "mig.mode.current",
    "name",  # last, in case it holds a comma
)
VALUES = {
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "memory_used_mib": "memory.used",
    "utilisation": "utilization.gpu",
    "memory_utilisation": "utilization.memory",
    "clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
}
"""Field of `GpuSample` and what `nvidia-smi` calls it."""
_THROTTLE = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""New name and old one; each is unknown to some versions."""
_UNKNOWN = re.compile(r'Field "([^"]+)" is not a valid field')
_INSTANCE = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: ([^)]+)\)")
_GPU = re.compile(r"^GPU (\d+):")


class Smi(Source):
    """GPUs by `nvidia-smi`, which tells neither energy nor what goes over PCIe.

    Args:
        program: The program, or where it is.
        seconds: Time it may take to answer.

    Raises:
        Unavailable: There is no such program, it fails or hangs, or there is no GPU.
    """

    name = "nvidia-smi"

    def __init__(self, program: str = "nvidia-smi", *, seconds: float = SECONDS) -> None:
        super().__init__()
        self._program, self._seconds, self._unknown = program, seconds, set[str]()
        rows = self._query("gpu", FACTS)
        gpus = [_facts(row) for row in rows if row.get("index", "").isdecimal()]
        if not gpus:
            raise Unavailable("nvidia-smi lists no GPU")
        instances = self._instances(gpus) if any(gpu.split for gpu in gpus) else []
        self.gpus = tuple(sorted([*gpus, *instances], key=lambda gpu: gpu.index))

    def samples(self, gpus: Iterable[GpuFacts]) -> list[GpuSample]:
        """See `Source.samples`."""
        try:
            rows = self._query("gpu", ("uuid", *_THROTTLE, *VALUES.values()))
        except Unavailable:
            rows = []
        by_uuid = {row.get("uuid", ""): row for row in rows}
        return [_sample(gpu, by_uuid.get(gpu.uuid, {})) for gpu in gpus]

    def processes(self) -> dict[str, list[tuple[int, float | None]]]:
        """See `Source.processes`."""
        found: dict[str, list[tuple[int, float | None]]] = {}
        try:
            rows = self._query("compute-apps", ("gpu_uuid", "pid", "used_memory"))
        except Unavailable:
            return found
        for row in rows:
            if (pid := number(row.get("pid", ""))) is not None:
                found.setdefault(row.get("gpu_uuid", ""), []).append((int(pid), number(row.get("used_memory", ""))))
        return found

    def _query(self, what: str, fields: Sequence[str]) -> list[dict[str, str]]:
        """The rows it prints. A field that this version does not know is left out from then on."""
        asked = [name for name in fields if name not in self._unknown]
        done = self._run(f"--query-{what}={','.join(asked)}", "--format=csv,noheader,nounits")
        found = _UNKNOWN.search(done.stdout + done.stderr)
        if found and found[1] in asked:
            self._unknown.add(found[1])
            return self._query(what, fields)
        lines = [line.split(",", len(asked) - 1) for line in done.stdout.splitlines()]
        rows = [dict(zip(asked, (cell.strip() for cell in line))) for line in lines if len(line) == len(asked)]
        if done.returncode and not rows:  # beside a broken GPU it fails and still tells of the others
            said = (done.stdout + done.stderr).strip().splitlines() or [f"ended with {done.returncode}"]
            raise Unavailable(f"nvidia-smi: {said[0].strip()}")
        return rows

    def _instances(self, gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
        """MIG instances; no query of fields has them."""
        found, index, named = list[GpuFacts](), -1, {gpu.index: gpu for gpu in gpus}
        try:
            lines = self._run("-L").stdout.splitlines()
        except Unavailable:
            return []
        for line in lines:
            if gpu := _GPU.match(line):
                index = int(gpu[1])
            elif (part := _INSTANCE.match(line)) and index in named:
                whole = named[index]
                found.append(GpuFacts(index, part[2], whole.name, whole.driver, mig=part[1], whole=whole.uuid))
        return found

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"nvidia-smi did not answer within {self._seconds:g} s") from error
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            raise Unavailable("there is no nvidia-smi" if missing else f"nvidia-smi: {error.strerror}") from error


def _facts(row: dict[str, str]) -> GpuFacts:
    return GpuFacts(
        int(row["index"]),
        row.get("uuid", ""),
        row.get("name", "unknown"),
        _text(row.get("driver_version", "")),
        bus=_text(row.get("pci.bus_id", "")),
        power_limit_w=number(row.get("enforced.power.limit", "")),
        memory_total_mib=number(row.get("memory.total", "")),
        split=row.get("mig.mode.current") == "Enabled",
    )


def _sample(gpu: GpuFacts, row: dict[str, str]) -> GpuSample:
    values = {name: number(row.get(field, "")) for name, field in VALUES.items()}
    masks = (_mask(row.get(name, "")) for name in _THROTTLE)
    return GpuSample(gpu, **values, throttle=throttle_names(next((mask for mask in masks if mask is not None), None)))


def _text(text: str) -> str | None:
    """What it says; None for `[N/A]` and the like."""
    return None if not text or text.startswith("[") or text == "N/A" else text


def _mask(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
