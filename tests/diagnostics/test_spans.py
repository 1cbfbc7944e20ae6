"""Stretches of time: seconds that add up, and ranges for other profilers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.diagnostics import spans as room
from lightkit.diagnostics.spans import NoSpans, Spans

CPU = torch.device("cpu")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the clock."""
    seconds = [0.0]
    monkeypatch.setattr(room, "perf_counter", lambda: seconds[0])
    return seconds


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What NVTX was told."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "mark", lambda name: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("end"))
    return told


def test_seconds_add_up_and_what_is_within_counts_for_the_outer_one(now: list[float]) -> None:
    spans = Spans(CPU)
    with spans.span("validation"):
        now[0] += 1.0
        with spans.span("forward"):
            now[0] += 2.0
    now[0] += 4.0
    with spans.span("forward"):
        now[0] += 8.0
    with spans.span("forward"):
        now[0] += 16.0
    assert spans.seconds == {"validation": 3.0, "forward": 24.0}


def test_an_error_ends_the_stretches_it_passes(now: list[float], marks: list[str]) -> None:
    spans = Spans(torch.device("cuda"))

    def fail() -> None:
        with spans.span("data"):
            now[0] += 1.0
            with spans.span("forward"):
                raise KeyError

    with pytest.raises(KeyError):
        fail()
    with spans.span("data"):
        now[0] += 1.0
    assert spans.seconds == {"data": 2.0}
    with Spans(CPU).span("data"):  # ranges are for GPUs only
        pass
    assert marks == ["data", "forward", "end", "end", "data", "end"]


def test_a_build_without_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise RuntimeError("NVTX functions not installed")

    for name in ("mark", "range_push", "range_pop"):
        monkeypatch.setattr(torch.cuda.nvtx, name, missing)
    spans = Spans(torch.device("cuda"))
    with spans.span("data"):
        pass
    assert spans.seconds.keys() == {"data"}


def test_without_spans_nothing_is_counted_or_changed() -> None:
    spans = NoSpans()
    with spans.span("validation"), spans.span("forward"):
        pass
    assert spans.span("data") is spans.span("forward")
    assert spans.before_step(3) == 0.0
    spans.after_step()
    with pytest.raises(KeyError), spans.span("data"):
        raise KeyError


def test_marks_are_in_a_trace_while_one_is_recorded() -> None:
    spans = Spans(CPU)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for spans.traced, name in ((False, "data"), (True, "forward")):
            with spans.span(name):
                torch.ones(1)
    assert "forward" in {row.key for row in seen.key_averages()} >= {"aten::ones"}
    assert "data" not in {row.key for row in seen.key_averages()}
