"""GPUs as the driver's own library tells them. The only place that imports pynvml."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from lightkit.monitor.gpus import GpuFacts, GpuSample, Source, Unavailable, throttle_names

_MIB = 2**20
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
"""Who may compute on a GPU, by NVML's number."""
_P_STATES = range(16)


def open_source() -> Source:
    """Open the driver's library; where that cannot be, return a source without GPUs that says why."""
    try:
        return Nvml()
    except Unavailable as error:
        return Source(str(error))


def preload() -> None:
    """Import what `Nvml` needs, where it is installed.

    For a process that asks from a thread: a child forked in the middle of an import could never finish that import.
    """
    with suppress(ImportError):
        import pynvml  # noqa: F401


class Nvml(Source):
    """GPUs by NVML. A question that fails, for whatever reason, has the answer None.

    Raises:
        Unavailable: The package or the driver is missing, or the driver has no GPU.
    """

    name = "NVML"

    def __init__(self) -> None:
        super().__init__()
        try:
            import pynvml
        except ImportError as error:
            raise Unavailable("nvidia-ml-py is not installed") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except Exception as error:
            raise Unavailable(_reason(error)) from error
        self._handles: dict[str, Any] = {}
        driver = self._text("nvmlSystemGetDriverVersion")
        count = int(self._ask("nvmlDeviceGetCount") or 0)
        self.gpus = tuple(gpu for index in range(count) for gpu in self._found(index, driver))
        if not self.gpus:
            self.close()
            raise Unavailable("the NVIDIA driver has no GPU")

    def samples(self, gpus: Iterable[GpuFacts]) -> list[GpuSample]:
        """See `Source.samples`."""
        return [self._sample(gpu, self._handles.get(gpu.uuid)) for gpu in gpus]

    def details(self, gpus: Iterable[GpuFacts]) -> list[dict[str, Any]]:
        """See `Source.details`."""
        handles = [None if gpu.mig is not None else self._handles.get(gpu.uuid) for gpu in gpus]
        return [{} if handle is None else self._details(handle) for handle in handles]

    def processes(self) -> dict[str, list[tuple[int, float | None]]]:
        """See `Source.processes`."""
        found = {}
        for uuid, handle in self._handles.items():
            lists = (self._ask(f"nvmlDeviceGet{kind}RunningProcesses", handle) for kind in ("Compute", "Graphics"))
            memory = {int(item.pid): _mib(item.usedGpuMemory) for items in lists for item in items or ()}
            found[uuid] = sorted(memory.items())
        for gpu in self.gpus:
            if gpu.mig is not None:  # a split GPU lists the processes of its instances once more
                own = {pid for pid, _ in found[gpu.uuid]}
                found[gpu.whole] = [process for process in found.get(gpu.whole, []) if process[0] not in own]
        return found

    def close(self) -> None:
        """See `Source.close`."""
        self._ask("nvmlShutdown")

    def _found(self, index: int, driver: str | None) -> list[GpuFacts]:
        """List a GPU and its MIG instances."""
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:  # it hangs or has fallen off the bus
            return [GpuFacts(index, "", "does not answer", driver)]
        split = (self._ask("nvmlDeviceGetMigMode", handle) or [0])[0] == 1
        parts = int(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0) if split else 0
        handles = [self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, part) for part in range(parts)]
        found = [self._facts(index, handle, driver, split=split)]
        parts_of = found[0].uuid
        return found + [self._facts(index, part, driver, whole=parts_of) for part in handles if part is not None]

    def _facts(
        self, index: int, handle: Any, driver: str | None, *, split: bool = False, whole: str | None = None
    ) -> GpuFacts:
        name, _, size = (self._text("nvmlDeviceGetName", handle) or "unknown").partition(" MIG ")
        uuid = self._text("nvmlDeviceGetUUID", handle) or ""
        bus = self._text_of(getattr(self._ask("nvmlDeviceGetPciInfo", handle), "busId", None))
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle) if whole is None else None
        total = getattr(self._memory(handle), "total", None)
        self._handles[uuid] = handle
        return GpuFacts(
            index,
            uuid,
            name,
            driver,
            bus=bus,
            power_limit_w=_divided(limit, 1e3),
            memory_total_mib=_mib(total),
            mig=None if whole is None else size or "instance",
            split=split,
            whole=whole or "",
        )

    def _sample(self, gpu: GpuFacts, handle: Any) -> GpuSample:
        if handle is None:
            return GpuSample(gpu)
        nvml, ask = self._nvml, self._ask
        if gpu.mig is not None:  # whatever else is told is that of the whole GPU, on which others compute too
            return GpuSample(gpu, memory_used_mib=_mib(getattr(self._memory(handle), "used", None)))
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the new name is unknown to older drivers
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return GpuSample(
            gpu,
            temperature_c=ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=_divided(ask("nvmlDeviceGetPowerUsage", handle), 1e3),
            energy_j=_divided(ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e3),
            memory_used_mib=_mib(getattr(self._memory(handle), "used", None)),
            utilisation=getattr(rates, "gpu", None),
            memory_utilisation=getattr(rates, "memory", None),
            clock_mhz=ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            pcie_tx_mb_s=_divided(ask("nvmlDeviceGetPcieThroughput", handle, nvml.NVML_PCIE_UTIL_TX_BYTES), 1e3),
            pcie_rx_mb_s=_divided(ask("nvmlDeviceGetPcieThroughput", handle, nvml.NVML_PCIE_UTIL_RX_BYTES), 1e3),
            throttle=throttle_names(None if reasons is None else int(reasons)),
        )

    def _details(self, handle: Any) -> dict[str, Any]:
        nvml = self._nvml

        def ask(name: str, *args: Any) -> Any:
            return self._ask(f"nvmlDeviceGet{name}", handle, *args)

        def errors(kind: int) -> Any:
            return ask("TotalEccErrors", kind, nvml.NVML_VOLATILE_ECC)

        ecc = ask("EccMode") or (None, None)
        lowest, highest = ask("PowerManagementLimitConstraints") or (None, None)
        capability, state, mode = ask("CudaComputeCapability"), ask("PerformanceState"), ask("ComputeMode")
        return {
            "compute_capability": None if capability is None else ".".join(map(str, capability)),
            "temperature_slowdown_c": ask("TemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            "temperature_shutdown_c": ask("TemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
            "fan_percent": ask("FanSpeed"),
            "power_limit_default_w": _divided(ask("PowerManagementDefaultLimit"), 1e3),
            "power_limit_min_w": _divided(lowest, 1e3),
            "power_limit_max_w": _divided(highest, 1e3),
            "ecc": _on(ecc[0]),
            "ecc_pending": _on(ecc[1]),
            "ecc_corrected": errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "performance_state": f"P{state}" if state in _P_STATES else None,
            "clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
            "clock_set_mhz": ask("ApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
            "graphics_clock_mhz": ask("ClockInfo", nvml.NVML_CLOCK_GRAPHICS),
            "graphics_clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_GRAPHICS),
            "memory_clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_MEM),
            "memory_clock_set_mhz": ask("ApplicationsClock", nvml.NVML_CLOCK_MEM),
            "video_clock_mhz": ask("ClockInfo", nvml.NVML_CLOCK_VIDEO),
            "pcie_generation": ask("CurrPcieLinkGeneration"),
            "pcie_generation_max": ask("MaxPcieLinkGeneration"),
            "pcie_width": ask("CurrPcieLinkWidth"),
            "pcie_width_max": ask("MaxPcieLinkWidth"),
            "compute_mode": _COMPUTE_MODES[mode] if mode in range(len(_COMPUTE_MODES)) else None,
            "persistence": _on(ask("PersistenceMode")),
            "display_connected": _on(ask("DisplayMode")),
            "display_active": _on(ask("DisplayActive")),
        }

    def _memory(self, handle: Any) -> Any:
        # The first version counts what the driver keeps for itself as used.
        found = self._ask("nvmlDeviceGetMemoryInfo", handle, getattr(self._nvml, "nvmlMemory_v2", None))
        return found or self._ask("nvmlDeviceGetMemoryInfo", handle)

    def _text(self, name: str, *args: Any) -> str | None:
        return self._text_of(self._ask(name, *args))

    @staticmethod
    def _text_of(answer: Any) -> str | None:
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def _ask(self, name: str, *args: Any) -> Any:
        """Ask one question; None where this GPU, driver or package has no answer."""
        try:
            return getattr(self._nvml, name)(*args)
        except Exception:
            return None


def _reason(error: Exception) -> str:
    name = type(error).__name__
    if "LibraryNotFound" in name:
        return "no NVIDIA driver is installed"
    if "DriverNotLoaded" in name:
        return "the NVIDIA driver is not loaded"
    return f"NVML: {error}"


def _on(value: int | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _mib(value: float | None) -> float | None:
    return None if value is None else round(value / _MIB, 1)
