"""Recording some steps: a trace that others can read, tables of where the time went, and no run that is lost to it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lightkit.diagnostics import profiling
from lightkit.diagnostics.profiling import (
    Details,
    Operator,
    Recorded,
    Recorder,
    Window,
    device_seconds,
    operators,
    operators_table,
    stretches_table,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("left", "fitted"),
    [
        (18, (10, 3, 5)), (17, (9, 3, 5)), (8, (0, 3, 5)), (7, (0, 2, 5)), (5, (0, 1, 4)),
        (2, (0, 1, 1)), (1, (0, 0, 1)),
    ],
)  # fmt: skip
def test_a_short_run_is_profiled_too(left: int, fitted: tuple[int, int, int]) -> None:
    window = Window().fitted(left)
    assert (window.skip, window.warmup, window.steps) == fitted
    assert Window(steps=0).fitted(left) == Window(steps=0)


def recorder(folder: Path, *window: int, told: list[str] | None = None, **options: Any) -> Recorder:
    lines = [] if told is None else told
    return Recorder(Window(*(window or (1, 1, 2))), CPU, folder, tell=lines.append, **options)


def steps(made: Recorder, count: int, *, first: int = 0) -> Recorder:
    for step in range(first, first + count):
        made.before_step(step)
        with made.span("forward"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        made.after_step()
    made.close()
    return made


def trace(made: Recorder) -> dict[str, Any]:
    assert made.trace is not None
    with gzip.open(made.trace, "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def named(made: Recorder, name: str) -> list[dict[str, Any]]:
    return [event for event in trace(made)["traceEvents"] if event.get("name") == name and event["ph"] == "X"]


def test_a_trace_has_the_steps_of_the_window_and_no_other(tmp_path: Path) -> None:
    told: list[str] = []
    made = steps(recorder(tmp_path, told=told, rank=3), 6, first=20)
    assert told == []
    assert made.trace == tmp_path / "rank3-step23.pt.trace.json.gz"
    assert [path.name for path in tmp_path.iterdir()] == [made.trace.name]
    assert len(named(made, "forward")) == len(named(made, "aten::mm")) == 2
    assert len(named(made, "ProfilerStep#1")) == len(named(made, "ProfilerStep#2")) == 1
    assert made.recorded is not None
    assert (made.recorded.first, made.recorded.steps, made.recorded.device) == (23, 2, {})
    assert {found.name: found.calls for found in made.recorded.operators}["aten::mm"] == 2
    seconds = sum(event["dur"] for event in named(made, "forward")) / 1e6
    assert seconds <= made.recorded.host["forward"] <= made.recorded.seconds <= made.whole
    assert made.recorded.host["forward"] < made.seconds["forward"]


@pytest.mark.parametrize(("count", "kept"), [(3, 1), (4, 2)])
def test_a_run_that_ends_in_the_window_leaves_what_there_is(tmp_path: Path, count: int, kept: int) -> None:
    made = steps(recorder(tmp_path), count)
    assert made.recorded is not None
    assert made.recorded.steps == kept == len(named(made, "forward"))


@pytest.mark.parametrize("count", [0, 2])
def test_a_run_that_ends_before_the_window_says_so(tmp_path: Path, count: int) -> None:
    told: list[str] = []
    made = steps(recorder(tmp_path, told=told), count)
    assert told == ["profile nothing was recorded: the run ended before the steps to profile"]
    assert (made.recorded, made.trace, list(tmp_path.iterdir())) == (None, None, [])
    assert not torch.autograd._profiler_enabled()


def test_no_steps_only_count(tmp_path: Path) -> None:
    told: list[str] = []
    made = steps(recorder(tmp_path, 1, 1, 0, told=told), 5)
    assert (told, made.recorded, list(tmp_path.iterdir())) == ([], None, [])
    assert made.seconds["forward"] > 0


def test_shapes_and_memory_of_operators(tmp_path: Path) -> None:
    made = steps(recorder(tmp_path, details=Details(memory=True, shapes=True)), 4)
    assert named(made, "aten::mm")[0]["args"]["Input Dims"][:2] == [[8, 8], [8, 8]]
    assert any(event.get("name") == "[memory]" for event in trace(made)["traceEvents"])


def test_another_profiler_is_left_alone(tmp_path: Path) -> None:
    told: list[str] = []
    with profile(activities=[ProfilerActivity.CPU]) as other:
        made = steps(recorder(tmp_path, told=told), 6)
    assert told == ["profile no trace: another profiler is at work in this process"]
    assert made.trace is None
    assert made.seconds["forward"] > 0
    assert {row.key: row.count for row in other.key_averages()}["aten::mm"] == 6


@pytest.mark.parametrize("broken", ["start", "step", "stop", "export_chrome_trace"])
def test_a_profiler_that_fails_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(self: Any, *_: Any) -> None:
        raise RuntimeError("no kineto here\nat all")

    told: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(profile, broken, fail)
        made = steps(recorder(tmp_path, 1, 0, 3, told=told), 6)
    is_on = torch.autograd._profiler_enabled()
    if is_on:
        torch.autograd._disable_profiler()
    assert is_on is (broken == "stop")
    assert told == ["profile not all of it could be recorded: no kineto here"]
    assert (made.trace, list(tmp_path.iterdir())) == (None, [])
    assert made.seconds["forward"] > 0


def test_a_folder_that_cannot_be_written_costs_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    made = steps(recorder(tmp_path / "file", told=told), 6)
    assert len(told) == 1
    assert told[0].startswith("profile not all of it could be recorded: ")
    assert made.trace is None
    assert made.recorded is not None  # the table needs no file


def test_what_recording_takes_is_not_the_time_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(profiling, "perf_counter", lambda: now[0])

    class Slow(profile):
        def start(self) -> None:
            now[0] += 100.0
            super().start()

        def stop(self) -> None:
            now[0] += 1000.0
            super().stop()

    monkeypatch.setattr(profiling, "profile", Slow)
    made, took = recorder(tmp_path), []
    for step in range(6):
        took.append(made.before_step(step))
        now[0] += 1.0
    made.close()
    assert took == [0.0, 100.0, 0.0, 0.0, 1000.0, 0.0]
    assert made.whole == 6.0
    assert made.recorded is not None
    assert made.recorded.seconds == 2.0


def test_a_gpu_is_waited_for_at_both_ends_of_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    for name in ("mark", "range_push"):
        monkeypatch.setattr(torch.cuda.nvtx, name, lambda text: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: None)
    monkeypatch.setattr(
        profiling, "profile", lambda **options: profile(**options | {"activities": [ProfilerActivity.CPU]})
    )
    told: list[str] = []
    made = Recorder(Window(1, 1, 2), torch.device("cuda"), tmp_path, tell=told.append)
    for step in range(6):
        made.before_step(step)
    assert waits == [torch.device("cuda")] * 2
    assert made.recorded is not None
    assert "device" in made.recorded.host
    assert told == ["profile no work of the GPU was seen: another profiler (nsys) may have it"]


ORDER = ("data", "forward", "backward", "validation")


def event(cat: str, name: str, ts: float, dur: float, correlation: int | None = None) -> dict[str, Any]:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def kernel(launched: float, dur: float, correlation: int, *, by: str = "cuda_runtime", kind: str = "kernel") -> list:
    return [event(by, "launch", launched, 1.0, correlation), event(kind, "work", 1e6, dur, correlation)]


def test_time_of_the_gpu_belongs_to_the_stretch_that_started_it_in_any_thread() -> None:
    trace = {
        "traceEvents": [
            {"ph": "M", "name": "process_name"},
            event("user_annotation", "ProfilerStep#3", 0, 1000),
            event("user_annotation", "validation", 500, 100),
            event("user_annotation", "forward", 510, 50),  # within the validation
            event("user_annotation", "forward", 100, 100),
            event("user_annotation", "backward", 200, 100),
            event("cpu_op", "aten::mm", 110, 5),
            *kernel(110, 4e6, 1),
            *kernel(250, 2e6, 2, by="cuda_driver"),
            *kernel(260, 1e6, 3, kind="gpu_memcpy"),
            *kernel(520, 8e6, 4),
            *kernel(700, 16e6, 5),
            event("kernel", "of a step before", 1e6, 32e6, 99),
        ]
    }
    assert device_seconds({"traceEvents": [event("user_annotation", "forward", 0, 1)]}, ORDER) == {}
    assert device_seconds(trace, ORDER) == {"forward": 4.0, "backward": 3.0, "validation": 8.0, "other": 48.0}


def test_operators_are_neither_marks_nor_kernels() -> None:
    def row(key: str, *, mark: bool = False, device: str = "CPU") -> Any:
        times = {"self_cpu_time_total": 2e6, "self_device_time_total": 1e6}
        return SimpleNamespace(
            key=key, count=4, is_user_annotation=mark, device_type=SimpleNamespace(name=device), **times
        )

    found = operators([row("aten::mm"), row("forward", mark=True), row("sgemm", device="CUDA")])
    assert found == [Operator("aten::mm", 4, 2.0, 1.0)]


def recorded(**changes: Any) -> Recorded:
    plain = Recorded(14, 4, 2.0, {"data": 0.5, "forward": 1.0, "gone": 0.0}, {}, [Operator("aten::mm", 8, 0.5, 0.0)])
    return plain._replace(**changes)


def test_shares_add_up() -> None:
    title, columns, rows = stretches_table(
        recorded(), {"data": 1.0, "forward": 6.0, "validation": 2.0}, 10, order=ORDER
    )
    assert title == "where the time goes, in steps 14 to 17 and in the whole run"
    assert columns == ["", "ms a step", "share %", "run s", "share %"]
    assert rows == [
        ["data", "125.000", "25.0", "1.000", "10.0"],
        ["forward", "250.000", "50.0", "6.000", "60.0"],
        ["validation", "0.000", "0.0", "2.000", "20.0"],
        ["other", "125.000", "25.0", "1.000", "10.0"],
        ["together", "500.000", "100.0", "10.000", "100.0"],
    ]


def test_with_a_gpu_its_time_stands_beside() -> None:
    found = recorded(device={"forward": 0.3, "other": 0.1}, steps=1)
    title, columns, rows = stretches_table(found, {"data": 1.0, "forward": 6.0}, 10.0, order=ORDER)
    assert title.startswith("where the time goes, in step 14 and")
    assert columns == ["", "ms a step", "share %", "GPU ms a step", "GPU share %", "run s", "share %"]
    assert [row[3:5] for row in rows] == [
        ["0.000", "0.0"],
        ["300.000", "75.0"],
        ["100.000", "25.0"],
        ["400.000", "100.0"],
    ]


def test_without_profiled_steps_there_is_the_run() -> None:
    title, columns, rows = stretches_table(None, {"data": 1.0}, 4.0, order=ORDER)
    assert (title, columns) == ("where the time goes", ["", "run s", "share %"])
    assert rows == [["data", "1.000", "25.0"], ["other", "3.000", "75.0"], ["together", "4.000", "100.0"]]
    assert stretches_table(None, {}, 0.0, order=ORDER)[2][-1] == ["together", "0.000", "0.0"]


@pytest.mark.parametrize(("device", "first"), [({}, "slow on the host"), ({"forward": 1.0}, "slow on the GPU")])
def test_operators_by_the_time_of_what_computes(device: dict[str, float], first: str) -> None:
    found = [
        Operator("quick", 4, 0.1, 0.1),
        Operator("slow on the host", 6, 0.6, 0.1),
        Operator("slow on the GPU", 4, 0.1, 0.6),
        *[Operator(f"small {at}", 1, 0.0, 0.0) for at in range(20)],
    ]
    _, columns, rows = operators_table(recorded(operators=found, device=device))
    assert len(rows) == 10
    assert len(columns) == len(rows[0])
    assert rows[0][0] == first
    assert rows[0][-1] == "75.0"
    assert ("GPU ms a step" in columns) == bool(device)
