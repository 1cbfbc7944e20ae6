"""Stretches of time: seconds that add up, ranges for other profilers, and objects that stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lightkit.diagnostics import spans as room
from lightkit.diagnostics.spans import NoSpans, Spans, Timed

CPU = torch.device("cpu")


class Clock:
    """Seconds that pass when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(room, "perf_counter", lambda: self.now)

    def passes(self, seconds: float = 1.0) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What NVTX was told."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "mark", lambda name: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("end"))
    return told


def test_seconds_add_up_and_what_is_within_counts_for_the_outer_one(clock: Clock) -> None:
    spans = Spans(CPU)
    with spans.span("validation"):
        clock.passes(1.0)
        with spans.span("forward"):
            clock.passes(2.0)
    clock.passes(4.0)
    with spans.span("forward"):
        clock.passes(8.0)
    with spans.span("forward"):
        clock.passes(16.0)
    assert spans.seconds == {"validation": 3.0, "forward": 24.0}


def test_an_error_ends_the_stretches_it_passes(clock: Clock, marks: list[str]) -> None:
    spans = Spans(torch.device("cuda"))
    failing = spans.around("forward", {}.pop)
    clock_and_fail = spans.around("data", lambda: (clock.passes(), failing("nothing")))
    with pytest.raises(KeyError):
        clock_and_fail()
    with spans.span("data"):
        clock.passes()
    assert spans.seconds == {"data": 2.0}
    assert marks == ["data", "forward", "end", "end", "data", "end"]


def test_ranges_are_for_gpus_only(marks: list[str]) -> None:
    with Spans(CPU).span("data"):
        pass
    assert marks == []


def test_a_build_without_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise RuntimeError("NVTX functions not installed")

    for name in ("mark", "range_push", "range_pop"):
        monkeypatch.setattr(torch.cuda.nvtx, name, missing)
    spans = Spans(torch.device("cuda"))
    with spans.span("data"):
        pass
    assert spans.seconds.keys() == {"data"}


def test_getting_items_takes_time_and_using_them_does_not(clock: Clock) -> None:
    closed: list[bool] = []

    def slow() -> Iterator[int]:
        try:
            for item in range(3):
                clock.passes()
                yield item
            clock.passes()
        finally:
            closed.append(True)

    spans, found = Spans(CPU), []
    for item in spans.each("data", slow()):
        clock.passes(10.0)
        found.append(item)
    assert (found, spans.seconds, closed) == ([0, 1, 2], {"data": 4.0}, [True])
    items = spans.each("data", slow())
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert closed == [True, True]


def test_a_timed_object_is_the_object_but_for_the_time(clock: Clock) -> None:
    class Part:
        size = 3

        def work(self, amount: int, *, twice: bool = False) -> int:
            """Works."""
            clock.passes()
            return amount * (1 + twice)

        def rest(self) -> str:
            clock.passes()
            return "rested"

    spans = Spans(CPU)
    timed = Timed(Part(), spans, {"work": "forward"})
    assert (timed.work(2, twice=True), timed.rest(), timed.size) == (4, "rested", 3)
    assert timed.work.__doc__ == "Works."
    assert spans.seconds == {"forward": 1.0}
    assert isinstance(timed, Part)
    timed.size = 4
    assert timed._part.size == timed.size == 4
    with pytest.raises(AttributeError, match="nothing"):
        _ = timed.nothing


def test_without_spans_nothing_is_counted_or_changed() -> None:
    spans, items = NoSpans(), iter([1])
    with spans.span("validation"), spans.span("forward"):
        assert spans.each("data", items) is items
    assert spans.span("data") is spans.span("forward")
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
