from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.monitor.gpus import GpuSample, Unavailable
from lightkit.monitor.nvml import Nvml, open_source, preload
from tests.monitor.fakes import (
    GIB,
    NOT_SUPPORTED,
    Card,
    NVMLError,
    NVMLError_DriverNotLoaded,
    NVMLError_LibraryNotFound,
    fake_nvml,
    install,
)

NOTHING = {field.name: NOT_SUPPORTED for field in dataclasses.fields(Card) if field.name not in ("uuid", "instances")}


def nvml(monkeypatch: pytest.MonkeyPatch, cards: list[Any], **changes: Any) -> Nvml:
    install(monkeypatch, fake_nvml(cards, **changes))
    return Nvml()


SAMPLE = """\
temperature_c=41 power_w=312.4 energy_j=5000.0 memory_used_mib=12288.0 utilisation=98 memory_utilisation=37
clock_mhz=1980 memory_clock_mhz=3201 pcie_tx_mb_s=1500.0 pcie_rx_mb_s=250.0 throttle=('sw_power_cap',)"""
DETAILS = """\
compute_capability=9.0 temperature_slowdown_c=90 temperature_shutdown_c=95 fan_percent=55
power_limit_default_w=700.0 power_limit_min_w=200.0 power_limit_max_w=700.0
ecc=on ecc_pending=on ecc_corrected=3 ecc_uncorrected=0 performance_state=P0
clock_max_mhz=1980 clock_set_mhz=1900 graphics_clock_mhz=1985 graphics_clock_max_mhz=1985
memory_clock_max_mhz=3201 memory_clock_set_mhz=3201 video_clock_mhz=1545
pcie_generation=5 pcie_generation_max=5 pcie_width=16 pcie_width_max=16
compute_mode=default persistence=on display_connected=off display_active=off"""


def words(values: Mapping[str, Any]) -> set[str]:
    return {f"{name}={value}" for name, value in values.items()}


def test_everything_a_gpu_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Card(uuid="GPU-b", name=b"Tesla T4", bus=b"0000:2B:00.0", state=32, compute_mode=3, persistence=0)
    other.display, other.ecc = 1, (0, 1)
    source = nvml(monkeypatch, [Card(), other])
    first, second = source.gpus
    assert (first.index, first.uuid, first.name, first.driver) == (0, "GPU-aaaa", "NVIDIA H200", "570.86.10")
    assert (first.bus, first.power_limit_w, first.memory_total_mib) == ("00000000:1A:00.0", 700.0, 140 * 1024)
    assert (second.index, second.name, second.bus) == (1, "Tesla T4", "0000:2B:00.0")
    (sample,) = source.samples([first])
    assert sample.gpu == first
    assert words({name: value for name, value in vars(sample).items() if name != "gpu"}) == {*SAMPLE.split()}
    details, others = source.details(source.gpus)
    assert words(details) == {*DETAILS.split()}
    names = ("performance_state", "compute_mode", "persistence", "ecc", "ecc_pending", "display_active")
    assert [others[name] for name in names] == [None, "exclusive_process", "off", "off", "on", "on"]


def test_details_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Card(uuid="MIG-1", name="NVIDIA A100 MIG 1g.5gb")]
    whole = Card(uuid="GPU-split", name="NVIDIA A100", instances=parts)
    source = nvml(monkeypatch, [Card(**NOTHING), NVMLError("GPU is lost"), whole])
    silent, lost, split, part = source.details(source.gpus)
    assert not any(silent.values())
    assert (lost, split["fan_percent"], part) == ({}, 55, {})


def test_a_query_that_fails_is_none_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    several = {
        "clocks": "clock_mhz memory_clock_mhz",
        "energy": "energy_j",
        "power": "power_w",
        "gpu": "utilisation memory_utilisation",
        "memory": "utilisation memory_utilisation",
        "pcie": "pcie_tx_mb_s pcie_rx_mb_s",
        "temperature": "temperature_c",
        "throttle": "throttle",
        "total": "memory_used_mib",
        "used": "memory_used_mib",
    }
    for name in NOTHING:
        source = nvml(monkeypatch, [Card(**{name: NOT_SUPPORTED})])
        (sample,) = source.samples(source.gpus)
        missing = [field.name for field in dataclasses.fields(sample) if getattr(sample, field.name) is None]
        assert missing == several.get(name, "").split(), name
        assert source.processes() == {"GPU-aaaa": []}, name


def test_gpus_that_tell_nothing_or_cannot_be_reached_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = nvml(monkeypatch, [NVMLError("GPU is lost"), Card(**NOTHING)])
    lost, silent = source.gpus
    assert (lost.index, lost.uuid, lost.name) == (0, "", "does not answer")
    assert (silent.name, silent.bus, silent.memory_total_mib) == ("unknown", None, None)
    assert source.samples(source.gpus) == [GpuSample(lost), GpuSample(silent)]


def test_mig_instances_follow_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    part = {**NOTHING, "name": "NVIDIA A100 MIG 1g.5gb", "used": 2 * GIB, "total": 5 * GIB}
    parts = [Card(uuid="MIG-1", **part), Card(uuid="MIG-2", **part)]
    source = nvml(monkeypatch, [Card(), Card(uuid="GPU-split", name="NVIDIA A100", gpu=NOT_SUPPORTED, instances=parts)])
    assert [(gpu.index, gpu.uuid, gpu.mig, gpu.split) for gpu in source.gpus] == [
        (0, "GPU-aaaa", None, False),
        (1, "GPU-split", None, True),
        (1, "MIG-1", "1g.5gb", False),
        (1, "MIG-2", "1g.5gb", False),
    ]
    assert [gpu.whole for gpu in source.gpus] == ["", "", "GPU-split", "GPU-split"]
    sample = source.samples(source.gpus)[2]
    assert (sample.memory_used_mib, sample.power_w, sample.utilisation) == (2 * 1024, None, None)


def test_of_an_instance_only_its_memory_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = (SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in (7, 8))
    part = Card(uuid="MIG-1", name="NVIDIA A100 MIG 1g.5gb", used=2 * GIB, total=5 * GIB, processes=[inside])
    source = nvml(monkeypatch, [Card(uuid="GPU-split", instances=[part], processes=[inside, outside])])
    gpu = source.gpus[1]
    assert gpu.power_limit_w is None
    assert source.samples([gpu]) == [GpuSample(gpu, memory_used_mib=2 * 1024)]
    assert source.processes() == {"GPU-split": [(8, 1024.0)], "MIG-1": [(7, 1024.0)]}


def test_older_drivers_know_the_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(card: Card, version: Any = None) -> SimpleNamespace:
        if version is not None:
            raise NVMLError("Function Not Found")
        return SimpleNamespace(used=card.used, total=card.total)

    source = nvml(
        monkeypatch,
        [Card(throttle=0x40)],
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetCurrentClocksEventReasons=None,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: card.throttle,
        nvmlDeviceGetMigMode=None,
    )
    sample = source.samples(source.gpus)[0]
    assert (sample.throttle, sample.memory_used_mib) == (("hw_thermal_slowdown",), 12 * 1024)


def test_processes_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [SimpleNamespace(pid=20, usedGpuMemory=GIB), SimpleNamespace(pid=3, usedGpuMemory=None)]
    drawing = [SimpleNamespace(pid=4, usedGpuMemory=2**20)]
    source = nvml(
        monkeypatch,
        [Card(processes=running), Card(uuid="GPU-bbbb", processes=NVMLError("No Permission"))],
        nvmlDeviceGetGraphicsRunningProcesses=lambda card: drawing,
    )
    assert source.processes() == {"GPU-aaaa": [(3, None), (4, 1.0), (20, 1024.0)], "GPU-bbbb": [(4, 1.0)]}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NVMLError_LibraryNotFound("NVML Shared Library Not Found"), "no NVIDIA driver is installed"),
        (NVMLError_DriverNotLoaded("Driver Not Loaded"), "the NVIDIA driver is not loaded"),
        (NVMLError("Driver/library version mismatch"), "NVML: Driver/library version mismatch"),
    ],
)
def test_why_there_is_no_library(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    with pytest.raises(Unavailable, match=f"^{reason}$"):
        nvml(monkeypatch, [], nvmlInit=error)


def test_the_driver_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="the NVIDIA driver has no GPU"):
        nvml(monkeypatch, [])
    assert sys.modules["pynvml"].asked[-1] == "nvmlShutdown"
    install(monkeypatch, fake_nvml([Card(uuid="GPU-nvml")], nvmlShutdown=NVMLError("Uninitialized")))
    source = open_source()
    assert (source.name, source.gpus[0].uuid) == ("NVML", "GPU-nvml")
    source.close()
    assert sys.modules["pynvml"].asked[-1] == "nvmlShutdown"
    install(monkeypatch, None)
    preload()
    source = open_source()
    assert (source.name, source.gpus, "nvidia-ml-py is not installed" in source.reason) == ("", (), True)
    assert (source.samples([]), source.details([]), source.processes()) == ([], [], {})
    source.close()


def test_the_package_has_what_is_asked_for() -> None:
    pynvml = pytest.importorskip("pynvml")
    fake = fake_nvml([])
    assert [name for name in dir(fake) if name.lower().startswith("nvml") and not hasattr(pynvml, name)] == []
