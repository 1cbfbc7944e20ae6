from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from lightkit.monitor import host
from lightkit.monitor.host import Host, children, container_memory

GIB = 2**30
Times = namedtuple("Times", "user nice system idle iowait guest")


class System:
    """Stands in for psutil: a machine that says what it is told to."""

    Error = psutil.Error

    def __init__(self) -> None:
        self.families: dict[int, tuple[float, int]] = {1: (0.0, GIB)}
        self.times = Times(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self.read = self.written = 0

    def Process(self, pid: int) -> Any:
        if pid not in self.families:
            raise psutil.NoSuchProcess(pid)
        seconds, resident = self.families[pid]
        others = [SimpleNamespace(pid=other) for other in self.families if other != pid]
        return SimpleNamespace(
            oneshot=lambda: open(os.devnull),
            cpu_times=lambda: SimpleNamespace(user=seconds / 2, system=seconds / 2),
            memory_info=lambda: SimpleNamespace(rss=resident),
            children=lambda recursive: others,
        )

    def virtual_memory(self) -> Any:
        return SimpleNamespace(total=16 * GIB, available=12 * GIB)

    def disk_usage(self, path: str) -> Any:
        return SimpleNamespace(percent=42.0)

    def cpu_times(self) -> Any:
        return self.times

    def disk_io_counters(self) -> Any:
        return SimpleNamespace(read_bytes=self.read, write_bytes=self.written)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setattr(host, "children", lambda pid: None)
    monkeypatch.setattr(host, "container_memory", lambda: None)
    monkeypatch.setattr(host, "usable_cpus", lambda: 4)
    return System()


def test_levels_at_once_and_rates_from_the_second_reading_on(system: System, tmp_path: Path) -> None:
    now = [100.0]
    reader = Host(tmp_path, clock=lambda: now[0], system=system, pid=1)
    assert reader.read() == {"ram_gib": 1.0, "ram_used_percent": 25.0, "disk_used_percent": 42.0}
    now[0] = 110.0
    system.families = {1: (10.0, GIB), 7: (6.0, 2 * GIB)}  # a loader process that began in the meantime
    system.times = Times(20.0, 0.0, 10.0, 5.0, 5.0, 3.0)  # the 3 seconds of guests are part of those of users
    system.read, system.written = 50_000_000, 20_000_000
    assert reader.read() == {
        "ram_gib": 3.0,
        "ram_used_percent": 25.0,
        "disk_used_percent": 42.0,
        "disk_read_mb_s": 5.0,
        "disk_write_mb_s": 2.0,
        "cpu_machine_percent": 75.0,
        "cpu_percent": 40.0,
    }
    now[0] = 120.0
    system.families = {1: (30.0, GIB)}  # which has ended: its seconds are gone
    assert reader.read()["cpu_percent"] == 50.0


def test_what_the_machine_does_not_tell_is_left_out(system: System, tmp_path: Path) -> None:
    def fails(*args: Any) -> Any:
        raise OSError("no such thing here")

    now = [0.0]
    for name in ("virtual_memory", "disk_usage", "cpu_times", "disk_io_counters"):
        setattr(system, name, fails)
    system.families = {}
    reader = Host(tmp_path, clock=lambda: now[0], system=system, pid=1)
    assert reader.read() == {"ram_gib": 0.0}
    assert reader.read() == {"ram_gib": 0.0}  # no time went by
    now[0] = 1.0
    system.disk_io_counters = lambda: None  # type: ignore[method-assign]
    assert reader.read() == {"ram_gib": 0.0, "cpu_percent": 0.0}


def test_a_container_has_its_own_limit(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "group"
    group.mkdir()
    assert container_memory(group) is None
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{3 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    assert container_memory(group) is None
    (group / "memory.max").write_text(f"{4 * GIB}\n")
    assert container_memory(group) == (2 * GIB, 4 * GIB)
    monkeypatch.setattr(host, "container_memory", lambda: (2 * GIB, 4 * GIB))
    assert Host(tmp_path, system=system, pid=1).read()["ram_used_percent"] == 50.0


def test_children_as_the_kernel_lists_them(tmp_path: Path) -> None:
    for thread, text in (("7", "12 13 "), ("8", "14"), ("9", "")):
        (tmp_path / "7" / "task" / thread).mkdir(parents=True)
        (tmp_path / "7" / "task" / thread / "children").write_text(text)
    (tmp_path / "7" / "task" / "10").mkdir()  # a thread that has just ended
    (tmp_path / "14" / "task" / "14").mkdir(parents=True)  # a kernel without such lists
    assert sorted(children(7, tmp_path) or []) == [12, 13, 14]
    assert children(14, tmp_path) is None
    assert children(99, tmp_path) is None


def test_descendants_without_the_list_and_with_it(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.families = {1: (0.0, GIB), 7: (0.0, GIB), 8: (0.0, GIB)}
    for tree, gib in (({}, 3.0), ({1: [7], 7: [8], 8: []}, 3.0), ({1: [99], 99: None}, 1.0)):
        monkeypatch.setattr(host, "children", tree.get)
        assert Host(tmp_path, system=system, pid=1).read()["ram_gib"] == gib


def test_this_machine_tells_something(tmp_path: Path) -> None:
    values = Host(tmp_path).read()
    assert values["ram_gib"] > 0
    assert 0 < values["ram_used_percent"] <= 100
    assert 0 <= values["disk_used_percent"] <= 100
    total, free = host.machine_memory()
    assert (total or 0) > (free or 0) > 0
