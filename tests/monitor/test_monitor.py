from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.monitor import monitor as module
from lightkit.monitor.gpus import GpuFacts, GpuSample, Source
from lightkit.monitor.monitor import KEPT, Monitor, NoMonitor, Watch, gpu_values
from tests.waiting import PATIENCE_SECONDS

GPUS = [
    GpuFacts(0, "GPU-a", "NVIDIA H200", memory_total_mib=140 * 1024),
    GpuFacts(3, "GPU-b", "NVIDIA H200", memory_total_mib=140 * 1024),
]


class Gpus(Source):
    """GPUs that say what they are told to."""

    name = "fake"

    def __init__(self) -> None:
        super().__init__()
        self.gpus, self.values, self.closed, self.asked = tuple(GPUS), dict[str, Any](), 0, 0
        self.hook: Callable[[], None] = lambda: None

    def samples(self, gpus: Iterable[GpuFacts]) -> list[GpuSample]:
        self.asked += 1
        self.hook()
        return [GpuSample(gpu, **self.values) for gpu in gpus]

    def close(self) -> None:
        self.closed += 1


class Host:
    def __init__(self, _folder: Path) -> None:
        self.values: dict[str, float] = {"cpu_percent": 40.0, "ram_gib": 2.0, "ram_used_percent": 30.0}

    def read(self) -> dict[str, float]:
        return dict(self.values)


class Setup:
    """A watch over fake GPUs on a clock that is set by hand."""

    def __init__(self, folder: Path, gpus: tuple[int, ...] = (0,), **options: Any) -> None:
        self.now, self.gpus, self.opened = 1000.0, Gpus(), 0
        self.host = Host(folder)
        self.watch = Watch(
            folder, gpus, clock=lambda: self.now, open_gpus=self.open, open_host=lambda _: self.host, **options
        )

    def open(self) -> Source:
        self.opened += 1
        return self.gpus

    def after(self, seconds: float, *, last: bool = False, **values: Any) -> None:
        self.now += seconds
        self.gpus.values = values
        self.watch.take(last=last)


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "_PATIENCE", PATIENCE_SECONDS)
    return Setup(tmp_path)


def until(done: Callable[[], Any]) -> None:
    """Wait for another thread; the test's own time limit ends what never happens."""
    while not done():
        time.sleep(0.001)


def test_what_is_charted_of_a_gpu() -> None:
    level = {"temperature_c": 41, "power_w": 312.4, "utilisation": 98, "clock_mhz": 1980}
    rates = {"memory_used_mib": 1536.0, "pcie_tx_mb_s": 100.0, "pcie_rx_mb_s": 50.0, "throttle": ("sw_power_cap",)}
    charted = {"memory_gib": 1.5, "pcie_mb_s": 150.0, "slowed": 0.0}
    for values, expected in (
        ({**level, **rates}, {**level, **charted}),
        ({}, {}),
        ({"pcie_tx_mb_s": 1.0}, {}),
        ({"throttle": ("hw_thermal_slowdown",)}, {"slowed": 1.0}),
        ({"throttle": ("gpu_idle",)}, {"slowed": 0.0}),
    ):
        assert gpu_values(GpuSample(GPUS[0], **values)) == expected


def test_a_row_has_the_physical_numbers_of_the_gpus_this_run_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    for setup in (Setup(tmp_path), Setup(tmp_path, uuids={0: "b"})):  # cuda itself knows best which they are
        setup.watch.begin()
        setup.after(10.0, utilisation=50.0)
        host = {"system/cpu_percent": 40.0, "system/ram_gib": 2.0, "system/ram_used_percent": 30.0}
        assert list(setup.watch.rows) == [{**host, "system/gpu3_utilisation": 50.0}]
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_what_an_instance_uses_is_not_that_of_the_whole_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    setup = Setup(tmp_path)
    part = GpuFacts(3, "MIG-1", "NVIDIA H200", mig="1g.18gb", memory_total_mib=18 * 1024, whole="GPU-b")
    setup.gpus.gpus = (GPUS[0], GpuFacts(3, "GPU-b", "NVIDIA H200", split=True), part)
    setup.watch.begin()
    setup.after(10.0, memory_used_mib=1024.0)
    assert setup.watch.rows[0]["system/gpu3_mig_memory_gib"] == 1.0
    totals = setup.watch.totals()
    (usage,) = totals.gpus
    assert (usage.name, usage.uuid, usage.memory_total_mib) == ("NVIDIA H200 MIG 1g.18gb", "MIG-1", 18 * 1024)
    assert totals.energy_kwh is None


def test_on_a_cpu_no_driver_is_asked(tmp_path: Path) -> None:
    setup = Setup(tmp_path, gpus=())
    setup.watch.begin()
    setup.after(10.0)
    setup.watch.end()
    assert setup.opened == setup.gpus.asked == 0
    assert setup.watch.totals().energy_kwh is None
    assert setup.watch.totals().cpu_percent == 40.0


def test_every_sample_but_the_first_counts_for_its_time(setup: Setup) -> None:
    setup.gpus.values = {"utilisation": 0.0, "power_w": 100.0}
    setup.watch.begin()
    assert list(setup.watch.rows) == []
    setup.after(
        10.0, utilisation=90.0, memory_used_mib=500.0, temperature_c=60, power_w=300.0, throttle=("hw_slowdown",)
    )
    assert setup.watch.totals().gpus[0].power_w == 200.0
    setup.after(30.0, utilisation=50.0, memory_used_mib=900.0, temperature_c=70, throttle=("sw_power_cap",))
    setup.after(10.0, utilisation=None, memory_used_mib=100.0, throttle=())
    totals = setup.watch.totals()
    usage = totals.gpus[0]
    assert (totals.seconds, usage.utilisation) == (50.0, 60.0)
    assert (usage.memory_peak_mib, usage.temperature_c, usage.memory_total_mib) == (900.0, 70, 140 * 1024)
    assert (usage.slowed, usage.power_capped) == (0.2, 0.6)


def test_energy_is_the_integral_of_the_power(setup: Setup) -> None:
    setup.gpus.values = {"power_w": 100.0}
    setup.watch.begin()
    setup.after(1800.0, power_w=300.0)
    setup.after(1800.0, power_w=300.0)
    assert setup.watch.totals().gpus[0].energy_kwh == pytest.approx(0.25)
    setup.after(100.0)  # of this time nothing is known
    setup.after(100.0, power_w=300.0)
    assert setup.watch.totals().energy_kwh == pytest.approx(0.25)


def test_the_counter_of_a_gpu_knows_its_energy_better(setup: Setup) -> None:
    setup.gpus.values = {"power_w": 100.0, "energy_j": 1000.0}
    setup.watch.begin()
    setup.after(10.0, power_w=100.0, energy_j=1000.0 + 3.6e6)
    assert setup.watch.totals().energy_kwh == pytest.approx(1.0)
    setup.after(3600.0, power_w=100.0, energy_j=5.0)  # the driver was loaded anew
    assert setup.watch.totals().energy_kwh == pytest.approx(1.1)


def test_energy_is_not_known_where_one_gpu_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    setup = Setup(tmp_path, gpus=(0, 1))
    plain = setup.gpus.samples
    setup.gpus.samples = lambda gpus: [plain(gpus)[0], GpuSample(GPUS[1])]  # type: ignore[method-assign]
    setup.gpus.values = {"power_w": 100.0}
    setup.watch.begin()
    setup.after(10.0, power_w=100.0)
    totals = setup.watch.totals()
    assert totals.gpus[0].energy_kwh is not None
    assert totals.energy_kwh is None


def test_reading_gives_means_and_of_memory_the_most(setup: Setup) -> None:
    monitor = Monitor(setup.watch)
    setup.watch.begin()
    assert monitor.read() == {}
    setup.after(10.0, utilisation=80.0, memory_used_mib=1024.0)
    setup.host.values["ram_gib"] = 1.0
    setup.after(10.0, utilisation=100 / 3, memory_used_mib=3072.0)
    setup.after(10.0)
    values = monitor.read()
    assert values["system/gpu0_utilisation"] == 56.667
    assert values["system/gpu0_memory_gib"] == 3.0
    assert values["system/ram_gib"] == 2.0
    assert monitor.read() == {}
    setup.after(10.0, last=True, utilisation=10.0)
    assert monitor.read() == {}
    assert monitor.totals().seconds == 40.0


def test_samples_that_nobody_takes_are_forgotten(setup: Setup) -> None:
    setup.watch.begin()
    for number in range(KEPT + 10):
        setup.after(1.0, power_w=float(number))
    assert len(setup.watch.rows) == KEPT
    assert setup.watch.rows[0]["system/gpu0_power_w"] == 10.0


def test_a_thread_from_start_to_stop(setup: Setup) -> None:
    before = threading.active_count()
    short = Monitor(setup.watch, 3600.0)
    short.start()
    short.stop()
    assert (setup.gpus.asked, short.read()) == (2, {}), "a first and a last sample, and no row"
    setup.gpus.closed = setup.gpus.asked = 0
    monitor = Monitor(setup.watch, 0.001)
    with monitor:
        monitor.start()
        assert threading.active_count() == before + 1
        assert [thread.daemon for thread in threading.enumerate() if thread.name == "lightkit-monitor"] == [True]
        until(lambda: len(setup.watch.rows) >= 2)
    assert threading.active_count() == before
    assert setup.gpus.closed == 1
    asked = setup.gpus.asked
    assert asked >= 4  # the first, two in between, the last
    monitor.stop()
    assert setup.gpus.asked == asked
    monitor.start()
    until(lambda: setup.gpus.asked > asked)
    monitor.stop()
    assert (setup.gpus.closed, monitor.failure) == (2, None)


def test_an_error_ends_the_watch_and_not_the_run(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise RuntimeError("the driver is gone")

    setup.gpus.hook = broken
    monitor = Monitor(setup.watch, 0.001)
    monitor.start()
    until(lambda: monitor.failure)
    monitor.stop()
    assert monitor.failure == "RuntimeError: the driver is gone"
    assert setup.gpus.closed == 1
    assert monitor.totals().gpus[0].utilisation is None
    assert capsys.readouterr() == ("", "")


def test_a_driver_that_hangs_holds_up_neither_loop_nor_end(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, let_go = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        let_go.wait()

    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    setup.gpus.hook = hang
    monitor = Monitor(setup.watch, 0.001)
    monitor.start()
    assert hanging.wait(PATIENCE_SECONDS)
    assert monitor.read() == {}
    left = next(thread for thread in threading.enumerate() if thread.name == "lightkit-monitor")
    monitor.stop()
    assert left.is_alive()
    let_go.set()
    left.join()


def test_a_slow_driver_is_asked_less_often(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Asked:
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) == 3

    times = iter([0.0, 5.0, 100.0, 100.001])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    Monitor(setup.watch, 10.0)._watch_until(Asked())  # type: ignore[arg-type]
    assert pauses == [10.0, 50.0, 10.0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_no_monitor(setup: Setup) -> None:
    sampling, let_go = threading.Event(), threading.Event()

    def pause() -> None:
        sampling.set()
        let_go.wait()

    setup.gpus.hook = pause
    monitor = Monitor(setup.watch, 0.001)
    monitor.start()
    assert sampling.wait(PATIENCE_SECONDS)  # in the middle of a sample, as the worst moment for a fork
    child = os.fork()
    if child == 0:
        monitor.start()
        monitor.stop()
        os._exit(threading.active_count() + len(monitor.read()))
    let_go.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    asked = setup.gpus.asked
    until(lambda: setup.gpus.asked > asked)
    monitor.stop()


def test_the_interval_is_above_zero(setup: Setup) -> None:
    for seconds in (0.0, float("nan")):
        with pytest.raises(UserError, match=r"logger\.system\.every_seconds: out of range"):
            Monitor(setup.watch, seconds)
    with NoMonitor() as plain:
        assert (plain.read(), plain.totals().gpus) == ({}, ())


def test_what_a_watch_needs_is_imported_before_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preloaded: list[bool] = []
    monkeypatch.setattr(module, "preload", lambda: preloaded.append(True))
    for gpus in ((), (0,)):
        Setup(tmp_path, gpus=gpus)
        assert len(preloaded) == len(gpus)
