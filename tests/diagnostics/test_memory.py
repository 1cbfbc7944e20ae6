"""Peaks and what is free, by stand-ins for the books of PyTorch; and the search for the largest size that fits."""

from __future__ import annotations

import mmap
import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import lightkit.diagnostics.memory as memory
from lightkit.diagnostics.memory import (
    CudaMemory,
    Memory,
    MpsMemory,
    Probe,
    Search,
    Usage,
    in_gib,
    memory_of,
    parts,
    peak_resident,
    release,
    steps_up_to,
)

GIB = 2**30


class Cuda:
    """Two GPUs: what is in use and held on each, and the peaks since they were reset."""

    def __init__(self) -> None:
        self.used, self.held, self.peaks = [1.0, 2.0], [3.0, 3.0], [[1.0, 3.0], [2.0, 3.0]]
        self.emptied = 0

    def use(self, index: int, used: float, held: float) -> None:
        self.used[index], self.held[index] = used, held
        self.peaks[index] = [max(self.peaks[index][0], used), max(self.peaks[index][1], held)]

    def memory_stats(self, device: torch.device) -> dict[str, int]:
        used, held = self.peaks[device.index]
        return {"allocated_bytes.all.peak": int(used * GIB), "reserved_bytes.all.peak": int(held * GIB)}

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peaks[device.index] = [self.used[device.index], self.held[device.index]]

    def memory_allocated(self, device: torch.device) -> int:
        return int(self.used[device.index] * GIB)

    def memory_reserved(self, device: torch.device) -> int:
        return int(self.held[device.index] * GIB)

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return int((76 - self.held[device.index]) * GIB), 80 * GIB

    def get_device_properties(self, _device: torch.device) -> Any:
        return SimpleNamespace(total_memory=80 * GIB)

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def cuda() -> Cuda:
    return Cuda()


def gpus(cuda: Cuda) -> CudaMemory:
    return CudaMemory([torch.device("cuda", 0), torch.device("cuda", 1)], cuda)


def test_peaks_are_those_since_the_last_reading_and_of_the_fullest_gpu(cuda: Cuda) -> None:
    book = gpus(cuda)
    cuda.use(0, 40.0, 50.0)
    cuda.use(0, 1.0, 50.0)
    assert book.read() == {"allocated_peak_gib": 40.0, "reserved_peak_gib": 50.0}
    assert book.read() == {"allocated_peak_gib": 2.0, "reserved_peak_gib": 50.0}


def test_the_peak_of_the_run_outlives_the_readings(cuda: Cuda) -> None:
    book = gpus(cuda)
    cuda.use(1, 40.0, 50.0)
    cuda.use(1, 1.0, 2.0)
    book.read()
    assert book.usage() == Usage(40 * GIB, 50 * GIB, 80 * GIB)
    assert book.usage().in_words() == "40.0 GiB in use at most, 50.0 GiB reserved, of 80.0 GiB"
    book.restart()
    assert book.usage() == Usage(GIB, 3 * GIB, 80 * GIB)
    assert book.free() == 76 * GIB, "what is held already can be used"


def test_a_limit_on_the_memory_of_the_process_counts(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "get_per_process_memory_fraction", lambda device: 0.25, raising=False)
    assert gpus(cuda).free() == 20 * GIB
    assert gpus(cuda).usage().in_words().endswith("of 20.0 GiB")
    assert gpus(cuda).in_use() == 2 * GIB
    monkeypatch.setattr(cuda, "memory_stats", lambda _device: {})  # before the first tensor
    assert gpus(cuda).read() == {"allocated_peak_gib": 0.0, "reserved_peak_gib": 0.0}


def test_apples_gpu_is_measured_by_what_its_driver_holds() -> None:
    mps = SimpleNamespace(
        current_allocated_memory=lambda: GIB,
        driver_allocated_memory=lambda: 3 * GIB,
        recommended_max_memory=lambda: 10 * GIB,
        empty_cache=lambda: None,
    )
    book = MpsMemory([torch.device("mps", 0)], mps)
    book.restart()
    book.release()
    assert book.read() == {"allocated_gib": 1.0, "reserved_gib": 3.0}
    assert (book.in_use(), book.free(), book.usage()) == (GIB, 10 * GIB, Usage(3 * GIB, 3 * GIB, 10 * GIB))


def test_the_cpu_logs_nothing_and_counts_what_is_resident() -> None:
    book = memory_of([torch.device("cpu")])
    assert type(book) is Memory
    assert book.read() == {}
    book.restart()
    before = book.usage().peak
    freed, more = max(0, before - book.in_use()), 64 * 2**20  # what tests before have given back does not move the peak
    block = torch.frombuffer(mmap.mmap(-1, freed + more), dtype=torch.float32)  # never out of what is kept for later
    block.fill_(1)
    assert book.usage().peak - before > 0.9 * more
    assert book.in_use() > block.nbytes
    assert (book.free() or 0) > book.in_use()
    assert "reserved" not in book.usage().in_words()


def test_the_peak_of_a_process_is_read_where_the_system_tells_it(tmp_path: Path) -> None:
    status = tmp_path / "status"
    assert peak_resident(status) is None
    status.write_text("VmPeak:\t9 kB\nVmHWM:\t    2048 kB\n")
    assert peak_resident(status) == 2 * 2**20
    status.write_text("VmPeak:\t9 kB\n")
    assert peak_resident(status) is None


@pytest.mark.parametrize(
    ("machine", "container", "total", "left"),
    [
        ((64, 32), None, 64, 32),
        ((64, 32), (3, 8), 8, 5),
        ((64, 2), (3, 8), 8, 2),
        ((64, 32), (9, 8), 8, 0),
        ((None, None), None, None, None),
    ],
)
def test_the_container_or_the_machine_whichever_has_less(
    machine: Any, container: Any, total: int | None, left: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: machine)
    monkeypatch.setattr(memory, "container_memory", lambda: container)
    assert memory.total_memory() == total
    assert memory.available_memory() == left
    assert (Memory().free() is None) == (left is None)


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_of_the_process_counts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    room, used = 3 * 2**20, psutil.Process().memory_info()
    taken = used.vms if kind == "RLIMIT_AS" else used.data
    limits = {getattr(resource, kind): (taken + room, taken + room)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda asked: limits.get(asked, unlimited))
    assert (left := memory.available_memory()) is not None
    assert left < 64 * 2**20, "what is free on the machine is far more"


def test_a_run_that_has_ended_gives_its_cache_back(cuda: Cuda) -> None:
    order: list[str] = []
    release(gpus(cuda), collect=lambda: order.append(f"collected before {cuda.emptied}"))
    assert order == ["collected before 0"]
    assert cuda.emptied == 1
    release(Memory(), collect=lambda: order.append("never on the CPU"))
    assert order == ["collected before 0"]


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (2048, "2 KiB"), (3 * 2**20, "3 MiB"), (1.25 * GIB, "1.2 GiB")]
)
def test_bytes_in_words(count: float, text: str) -> None:
    assert in_gib(count) == text


def searched(search: Search, fixed: float, slope: float, *, total: float | None = None) -> list[int]:
    """Let a search run; returns the sizes it tried."""
    tried = list[int]()
    while (size := search.next()) is not None:
        assert size not in tried
        tried.append(size)
        needs = int(fixed + slope * size)
        search.add(Probe(size, None if total is not None and needs > total else needs, int(fixed)))
    return tried


@pytest.mark.parametrize("bold", [True, False])
def test_the_answer_is_the_largest_that_fits(bold: bool) -> None:
    draw = random.Random(0)
    for _ in range(500):
        fixed, slope, limit = draw.randint(1, 1000), draw.randint(1, 50), draw.randint(1, 60_000)
        most = draw.randint(1, 2000)
        sizes = parts(most) if draw.random() < 0.5 else steps_up_to(most)
        search = Search(sizes, limit, bold=bold)
        tried = searched(search, fixed, slope, total=1.1 * limit)
        wanted = max((size for size in sizes if fixed + slope * size <= limit), default=None)
        assert (search.best and search.best.size) == wanted, (fixed, slope, limit, most)
        assert len(tried) < 12


def test_what_will_not_fit_is_never_tried_where_that_does_harm() -> None:
    draw = random.Random(1)
    for _ in range(500):
        fixed, slope = draw.randint(1, 1000), draw.randint(1, 50)
        limit, most = fixed + slope * draw.randint(2, 3000), draw.randint(1, 5000)
        tried = searched(Search(parts(most), limit), fixed, slope)
        assert all(fixed + slope * size <= limit for size in tried if size > 2)


def test_a_whole_batch_that_fits_takes_few_trials() -> None:
    assert searched(Search(parts(64), 10_000), 100, 1) == [2, 8, 64]
    assert searched(Search(parts(512), 10_000), 100, 1) == [2, 8, 64, 512]
    assert searched(Search(parts(1), 10_000), 100, 1) == [1]


def test_memory_that_does_not_grow_between_two_sizes_tells_nothing() -> None:
    search = Search(parts(512), 1000, probes=[Probe(2, 500, 400), Probe(8, 501, 400)])
    assert search.predicted(64) > 1000
    assert search.next() == 32


def test_a_batch_that_cannot_be_split_is_not_tried_unmeasured() -> None:
    search = Search(parts(127), 300)
    assert searched(search, 100, 3) == [2, 8, 1]
    assert search.best == Probe(1, 103, 100)


def test_a_single_sample_that_is_an_error_leaves_nothing() -> None:
    search = Search(parts(127), 300, probes=[Probe(2, 106, 100), Probe(8, 124, 100), Probe(1, None)])
    assert (search.next(), search.best) == (None, None)


def test_a_new_process_goes_on_from_what_is_known() -> None:
    known = [Probe(2, 102, 100), Probe(8, 108, 100), Probe(64, None)]
    search = Search(parts(64), 1000, bold=True, probes=known)
    assert searched(search, 100, 1, total=125) == [32, 16]
    assert search.best == Probe(16, 116, 100)
    assert search.too_large is not None
    assert search.too_large.size == 32


def test_sizes_are_multiples_of_8_and_an_eighth_apart() -> None:
    assert parts(12) == [1, 2, 3, 4, 6, 12]
    assert parts(12, least=3) == [3, 4, 6, 12]
    sizes = steps_up_to(5000)
    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert all(size % 8 == 0 for size in sizes[3:])
    assert all(larger <= max(size + 8, 1.125 * size) for size, larger in pairwise(sizes[3:]))
    assert steps_up_to(30, least=4) == [4, 8, 16, 24]
