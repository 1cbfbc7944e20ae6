"""What the doctor says of machines that are not here."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lightkit.doctor import machine
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.machine import busy, devices, supported, versions, workers
from lightkit.monitor.gpus import GpuFacts, GpuSample, Source

GPU = GpuFacts(0, "GPU-1", "H100", driver="550.1", memory_total_mib=80_000)
HERE: dict[str, Any] = {
    "version": "2.9.0",
    "cuda": "12.8",
    "hip": None,
    "default_device": "cpu",
    "devices": [],
    "built_for": [],
    "no_cuda": "the driver is too old",
}
SEEN = {"name": "H100", "capability": "9.0"}


@pytest.mark.parametrize(
    ("capability", "built_for", "expected"),
    [
        ("8.6", ["sm_80", "sm_90"], True),  # kernels of the same generation
        ("8.0", ["sm_86"], False),
        ("7.0", ["sm_80", "sm_90"], False),
        ("12.0", ["sm_80", "compute_90"], True),  # compiled when it is loaded
        ("12.0", ["sm_80", "sm_90"], False),
        ("9.0", ["sm_90a"], True),
        ("9.0", [], True),  # nothing is known
    ],
)
def test_which_builds_run_on_which_gpus(capability: str, built_for: list[str], expected: bool) -> None:
    assert supported(capability, built_for) is expected


def test_a_gpu_that_pytorch_does_not_see_is_an_error_unless_the_cpu_is_asked_for() -> None:
    found = devices(HERE, [GPU], device_name="auto")
    on_purpose = devices(HERE, [GPU], device_name="cpu")
    none = devices(HERE, [], device_name="auto")

    assert found.status == "error"
    assert "the driver is too old" in found.measured
    assert (on_purpose.status, none.status) == ("ok", "ok")


def test_a_gpu_without_kernels() -> None:
    old = devices({**HERE, "devices": [SEEN], "built_for": ["sm_50", "sm_60"]}, [GPU], device_name="auto")
    fine = devices({**HERE, "devices": [SEEN, SEEN], "built_for": ["sm_90"]}, [GPU], device_name="auto")

    assert old.status == "error"
    assert "no kernel image" in old.why
    assert fine.measured == "2 × H100, driver 550.1"


class Driver(Source):
    """A driver whose GPUs hold so much already."""

    def __init__(self, used: float | None) -> None:
        super().__init__()
        self.used = used

    def samples(self, gpus: Iterable[GpuFacts]) -> list[GpuSample]:
        return [GpuSample(gpu, memory_used_mib=self.used) for gpu in gpus]


@pytest.mark.parametrize(("used", "count"), [(None, 0), (500, 0), (20_000, 0), (60_000, 1)])
def test_a_gpu_that_others_fill(used: float | None, count: int) -> None:
    assert len([*busy(Driver(used), [GPU])]) == count


def test_packages_that_ask_for_another_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"torchvision": ["torch==2.1.0", "torch==9; extra == 'none'", "not a requirement!", "numpy"]}
    there = {"torchvision": "0.16.0", "torch": "2.9.0+cpu", "numpy": "2.0"}

    def version(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "requires", asked.get)
    monkeypatch.setattr(importlib.metadata, "version", version)
    wrong = versions(HERE)
    there["torch"] = "2.1.0+cu121"  # a local version is the same version
    right = versions(HERE)

    assert wrong.status == "warning"
    assert wrong.measured == "torchvision 0.16.0 wants torch==2.1.0, and 2.9.0+cpu is installed"
    assert right.status == "ok"


def run(source: object, num_workers: int) -> ExaminedRun:
    train = SimpleNamespace(options=SimpleNamespace(num_workers=num_workers), source=source)
    return cast("ExaminedRun", SimpleNamespace(shared=SimpleNamespace(data=SimpleNamespace(train=train))))


def test_worker_processes_need_processors_and_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: 4)
    small = SimpleNamespace(total=64 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    none, some, many = ([*workers(run(object(), count), tmp_path)] for count in (0, 2, 16))

    assert [each.status for each in none] == ["ok"]
    assert [each.status for each in some] == ["warning", "ok"]
    assert "--shm-size" in some[0].fix
    assert (many[1].status, many[1].fix) == ("note", "data.num_workers=4")
    small.total = 8 << 30
    assert [each.status for each in workers(run(object(), 2), tmp_path)] == ["ok"]
