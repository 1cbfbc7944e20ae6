from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from lightkit.monitor.usage import (
    SHORTEST,
    GpuUsage,
    Loading,
    Totals,
    bound,
    lines,
    summary,
    workers_for,
)

GPU = GpuUsage(
    0,
    "GPU-a",
    "NVIDIA H200",
    utilisation=43.0,
    memory_peak_mib=14_336.0,
    memory_total_mib=143_360.0,
    power_w=212.3456789,
    energy_kwh=0.0412,
    temperature_c=67.0,
    slowed=0.0,
    power_capped=0.0,
)
TOTALS = Totals(700.0, 16, cpu_percent=12.0, cpu_machine_percent=20.0, ram_peak_gib=5.25, ram_used_percent=33.0)
PINNED = Loading(64, 0, pin_memory=True)


def using(
    wait: float = 0.0, loading: Loading = PINNED, *, seconds: float = 600.0, cpu: float = 12.0, **gpu: Any
) -> dict:
    gpus = (replace(GPU, **gpu),) if gpu else ()
    totals = replace(TOTALS, cpu_percent=cpu, gpus=gpus)
    return summary(totals, trained_seconds=seconds, waited_seconds=wait * seconds, loading=loading)


@pytest.mark.parametrize(
    ("wait", "busy", "expected"),
    [
        (0.14, [], "compute"),
        (0.15, [], "data"),
        (0.3, [43.0], "data"),
        (0.3, [97.0], "compute"),  # it works on earlier steps meanwhile
        (0.02, [60.0], "compute"),
        (0.02, [35.0], "host"),
        (0.0, [100.0, 10.0, None], "host"),  # of several GPUs the mean decides
    ],
)
def test_what_held_training_up(wait: float, busy: list[float | None], expected: str) -> None:
    gpus = tuple(replace(GPU, index=at, utilisation=each) for at, each in enumerate(busy))
    assert bound(replace(TOTALS, gpus=gpus), wait) == expected


def test_the_result_is_plain_and_short() -> None:
    result = using(0.31, utilisation=43.0)
    assert (result["gpus"][0]["power_w"], result["gpus"][0]["index"]) == (212.35, 0)
    assert {name: value for name, value in result.items() if name not in ("gpus", "advice")} == {
        "seconds": 700.0,
        "trained_seconds": 600.0,
        "data_wait": 0.31,
        "bound": "data",
        "energy_kwh": 0.0412,
        "cpus": 16,
        "cpu_percent": 12.0,
        "cpu_machine_percent": 20.0,
        "ram_peak_gib": 5.25,
        "ram_used_percent": 33.0,
    }
    assert using(0.0)["energy_kwh"] is None, "without a GPU"


def test_nothing_is_concluded_from_a_short_run() -> None:
    result = using(0.9, seconds=SHORTEST - 1, utilisation=1.0)
    assert (result["bound"], result["advice"], lines(result), lines({})) == (None, [], [], [])
    nothing = summary(Totals(), trained_seconds=0.0, waited_seconds=0.0, loading=PINNED)
    assert (nothing["data_wait"], nothing["bound"]) == (None, None)


@pytest.mark.parametrize(
    ("wait", "workers", "cpus", "wanted"),
    [(0.31, 0, 16, 2), (0.9, 0, 16, 10), (0.9, 0, 4, 4), (0.5, 4, 16, 8), (0.9, 0, 1, 1), (1.0, 3, 8, 8)],
)
def test_as_many_workers_as_keep_up(wait: float, workers: int, cpus: int, wanted: int) -> None:
    assert workers_for(wait, workers, cpus) == wanted


ADVICE = """
0.9 ; data.num_workers=10 (now 0): 16 CPUs 12 % busy
0.5, Loading(64, 4), cpu=30.0 ; data.num_workers=8 (now 4): 16 CPUs 30 % busy
0.5, Loading(64, 4), cpu=95.0 ; cheaper transforms, … more workers would only take turns: 16 CPUs 95 % busy
0.5, Loading(64, 16) ; a local copy of the data, … data.num_workers=16 wait for them: 16 CPUs 12 % busy
0.5, Loading(64, None) ; the data are in memory: fewer or cheaper data.augment … or a larger data.batch_size
0.5, Loading(64, 0), utilisation=40.0 ; data.num_workers=2 (now 0) … ; data.pin_memory=true (now off): copies to the …
0.0, utilisation=35.0 ; data.batch_size=256 (now 64), with … rate to match: the GPU was 35 % busy, … at most 10 % full
0.0, utilisation=35.0, memory_peak_mib=57_344.0 ; data.batch_size=128 (now 64) … its memory at most 40 % full
0.0, utilisation=35.0, memory_peak_mib=100_000.0 ; a larger data.batch_size: the GPU was 35 % busy, and more work …
0.0, utilisation=35.0, memory_peak_mib=None ; a larger data.batch_size: the GPU was 35 % busy, …
0.0, utilisation=98.0, slowed=0.12 ; cool GPU 0: heat … slowed it down 12 % of the time, at up to 67 °C
0.0, utilisation=98.0
0.0, Loading(64, 0), utilisation=98.0
0.0
"""
"""What was seen, and what is advised then, in parts between ellipses."""


@pytest.mark.parametrize("row", ADVICE.split("\n")[1:-1])
def test_advice_with_the_numbers_behind_it(row: str) -> None:
    seen, *expected = row.split(" ; ")
    advice = eval(f"using({seen})")["advice"]
    assert len(advice) == len(expected)
    for line, parts in zip(advice, expected):
        assert re.fullmatch(re.escape(parts).replace("…", ".*").replace("\\ .*", ".*"), line), line


def test_lines_at_the_end_of_a_run() -> None:
    assert lines(using(0.31, utilisation=43.0)) == [
        "machine data-bound: 31 % of the training time was spent waiting for a batch",
        "        GPU 0 NVIDIA H200: 43 % busy, at most 14.0 of 140.0 GiB, 212 W, 0.0412 kWh, up to 67 °C",
        "        16 CPUs 12 % busy with this run, 20 % with all there is on the machine, at most 5.2 GiB of memory",
        "advice  data.num_workers=2 (now 0): 16 CPUs 12 % busy",
    ]
    assert lines(using(0.0)) == [
        "machine compute-bound: 0 % of the training time was spent waiting for a batch",
        "        16 CPUs 12 % busy with this run, 20 % with all there is on the machine, at most 5.2 GiB of memory",
    ]


def test_the_speed_is_among_the_lines() -> None:
    speed = {"samples_per_second": 81234.5678, "tokens_per_second": 2.6e6, "mfu": 0.4218}
    seconds = {"trained_seconds": 90.0, "waited_seconds": 0.0}
    result = summary(TOTALS, **seconds, loading=PINNED, speed=speed)
    assert (result["samples_per_second"], result["mfu"]) == (81235, 0.4218)
    assert lines(result)[1] == "        81,235 samples a second, 2,600,000 tokens a second, MFU 42.2 %"
    result = summary(TOTALS, **seconds, loading=PINNED, speed={"samples_per_second": 1.2345})
    assert lines(result)[1] == "        1.23 samples a second"


def test_lines_of_several_gpus_some_of_which_tell_little() -> None:
    silent = GpuUsage(3, "GPU-b", "Tesla T4")
    totals = Totals(100.0, 1, cpu_percent=50.0, gpus=(replace(GPU, utilisation=98.0, power_capped=0.4), silent))
    result = summary(totals, trained_seconds=90.0, waited_seconds=0.0, loading=PINNED)
    assert lines(result)[1:] == [
        "        GPU 0 NVIDIA H200: 98 % busy, at most 14.0 of 140.0 GiB, 212 W, 0.0412 kWh, up to 67 °C, 40 % of the "
        "time at its power limit",
        "        GPU 3 Tesla T4: tells nothing",
        "        1 CPU 50 % busy with this run",
    ]
    both = replace(totals, gpus=(GPU, replace(GPU, index=3)))
    result = summary(both, trained_seconds=90.0, waited_seconds=0.0, loading=PINNED)
    assert "        0.0824 kWh in all" in lines(result)
