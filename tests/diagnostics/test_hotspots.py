"""Tables of where the time went, from what a profiler saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.diagnostics.profiling import (
    Operator,
    Recorded,
    device_seconds,
    operators,
    operators_table,
    stretches_table,
)

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
    assert device_seconds(trace, ORDER) == {"forward": 4.0, "backward": 3.0, "validation": 8.0, "other": 48.0}


def test_without_a_gpu_there_is_no_time_of_one() -> None:
    assert device_seconds({"traceEvents": [event("user_annotation", "forward", 0, 1)]}, ORDER) == {}


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


def test_a_run_that_took_no_time() -> None:
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
