"""Recording some steps: a trace that others can read, and no run that is lost to it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lightkit.diagnostics import profiling
from lightkit.diagnostics.profiling import Details, Recorder, Window

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("left", "fitted"),
    [
        (18, (10, 3, 5)),
        (1000, (10, 3, 5)),
        (17, (9, 3, 5)),
        (8, (0, 3, 5)),
        (7, (0, 2, 5)),
        (6, (0, 1, 5)),
        (5, (0, 1, 4)),
        (2, (0, 1, 1)),
        (1, (0, 0, 1)),
    ],
)
def test_a_short_run_is_profiled_too(left: int, fitted: tuple[int, int, int]) -> None:
    window = Window().fitted(left)
    assert (window.skip, window.warmup, window.steps) == fitted
    assert window.skip + window.warmup + window.steps <= left


def test_nothing_to_record_stays_nothing() -> None:
    assert Window(steps=0).fitted(3) == Window(steps=0)


def recorder(folder: Path, *window: int, told: list[str] | None = None, **options: Any) -> Recorder:
    lines = [] if told is None else told
    return Recorder(Window(*(window or (1, 1, 2))), CPU, folder, tell=lines.append, **options)


def steps(made: Recorder, count: int, *, first: int = 0) -> Recorder:
    for step in range(first, first + count):
        made.before_step(step)
        with made.spans.span("forward"):
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


def test_the_seconds_are_those_of_the_trace(tmp_path: Path) -> None:
    made = steps(recorder(tmp_path), 6)
    assert made.recorded is not None
    seconds = sum(event["dur"] for event in named(made, "forward")) / 1e6
    assert seconds <= made.recorded.host["forward"] <= made.recorded.seconds <= made.whole
    assert made.recorded.host["forward"] < made.spans.seconds["forward"]


@pytest.mark.parametrize(("count", "kept"), [(3, 1), (4, 2), (5, 2)])
def test_a_run_that_ends_in_the_window_leaves_what_there_is(tmp_path: Path, count: int, kept: int) -> None:
    made = steps(recorder(tmp_path), count)
    assert made.recorded is not None
    assert made.recorded.steps == kept == len(named(made, "forward"))


def test_a_step_that_was_broken_off_is_none(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    for step in range(3):
        made.before_step(step)
        made.after_step()
    made.before_step(3)
    made.close()
    assert made.recorded is not None
    assert (made.recorded.first, made.recorded.steps) == (3, 1)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_run_that_ends_before_the_window_says_so(tmp_path: Path, count: int) -> None:
    told: list[str] = []
    made = steps(recorder(tmp_path, told=told), count)
    assert told == ["profile nothing was recorded: the run ended before the steps to profile"]
    assert (made.recorded, made.trace, list(tmp_path.iterdir())) == (None, None, [])
    assert not torch.autograd._profiler_enabled()


def test_the_first_steps_without_a_warm_up(tmp_path: Path) -> None:
    made = steps(recorder(tmp_path, 0, 0, 1), 3)
    assert len(named(made, "forward")) == 1
    assert made.recorded is not None
    assert made.recorded.first == 1


def test_no_steps_only_count(tmp_path: Path) -> None:
    told: list[str] = []
    made = steps(recorder(tmp_path, 1, 1, 0, told=told), 5)
    assert (told, made.recorded, list(tmp_path.iterdir())) == ([], None, [])
    assert made.spans.seconds["forward"] > 0


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
    assert made.spans.seconds["forward"] > 0
    assert {row.key: row.count for row in other.key_averages()}["aten::mm"] == 6


@pytest.mark.parametrize("broken", ["start", "step", "stop", "export_chrome_trace"])
def test_a_profiler_that_fails_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    class Broken(profile):
        pass

    def fail(self: Any, *_: Any) -> None:
        if broken == "step":
            profile.stop(self)
        raise RuntimeError("no kineto here\nat all")

    setattr(Broken, broken, fail)
    monkeypatch.setattr(profiling, "profile", Broken)
    told: list[str] = []
    try:
        made = steps(recorder(tmp_path, told=told), 6)
    finally:
        if torch.autograd._profiler_enabled():
            torch.autograd._disable_profiler()
    assert told == ["profile not all of it could be recorded: no kineto here"]
    assert (made.trace, list(tmp_path.iterdir())) == (None, [])
    assert made.spans.seconds["forward"] > 0


def test_a_profiler_that_fails_in_mid_window_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Any) -> None:
        raise RuntimeError("lost the device")

    told: list[str] = []
    made = recorder(tmp_path, 1, 0, 3, told=told)
    monkeypatch.setattr(profile, "step", fail)
    for step in range(3):
        made.before_step(step)
        made.after_step()
    assert told == ["profile not all of it could be recorded: lost the device"]
    assert not torch.autograd._profiler_enabled()
    made.close()


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
    monkeypatch.setattr(profiling, "profile", lambda **options: profile(**options | {"activities": [CPU_ONLY]}))
    told: list[str] = []
    made = Recorder(Window(1, 1, 2), torch.device("cuda"), tmp_path, tell=told.append)
    for step in range(6):
        made.before_step(step)
    assert waits == [torch.device("cuda")] * 2
    assert made.recorded is not None
    assert "device" in made.recorded.host
    assert told == ["profile no work of the GPU was seen: another profiler (nsys) may have it"]


CPU_ONLY = ProfilerActivity.CPU
