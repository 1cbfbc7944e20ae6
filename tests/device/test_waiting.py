"""Waiting for free GPUs, on machines that stand in for ones with GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.device import visible
from lightkit.device.visible import waited_for
from tests.device.test_visible import Machine, SplitMachine, shown
from tests.device.test_visible import _environment as _environment

BUSY, FREE = 30_000, 100


def emptying(machine: Machine, *later: tuple[int, ...]) -> Callable[[float], None]:
    """Return a sleep that lets others leave the machine, a step with each look."""
    steps = iter(later)

    def sleep(_seconds: float) -> None:
        machine.used = next(steps)

    return sleep


@pytest.mark.parametrize(
    ("wanted", "later", "expected"),
    [
        ("auto:1", [(BUSY, BUSY, FREE, BUSY)], "2"),
        ("auto:1", [(BUSY,) * 4, (BUSY, BUSY, 4_096, FREE)], "3"),
        ("auto:2", [(BUSY, FREE, BUSY, BUSY), (0, FREE, BUSY, BUSY)], "0,1"),
        ([3, 0], [(BUSY, 0, 0, 0), (FREE, 0, 0, FREE)], "3,0"),
        ([1], [(0, 5_000, 0, 0), (0, 4_000, 0, 0)], "1"),
    ],
)
def test_it_waits_until_so_many_are_free(wanted: Any, later: Any, expected: str) -> None:
    machine, lines = Machine(used=(BUSY,) * 4), list[str]()
    with waited_for(wanted, tell=lines.append, look=lambda: machine, sleep=emptying(machine, *later)) as chosen:
        assert shown() == expected
        assert ",".join(str(gpu.index) for gpu in chosen) == expected
    assert machine.closed
    assert lines[0].startswith("waits for ")
    assert "73% of its memory in use" in lines[0]
    assert lines[1].startswith(f"goes on with GPU {expected[0]} (A100, GPU-")
    assert len(lines) == 2


def test_nothing_is_said_where_there_is_one() -> None:
    lines = list[str]()
    with waited_for("auto", tell=lines.append, look=Machine):
        assert shown() == "2"
    assert lines == []


def test_two_that_wait_at_the_same_time_take_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    first = waited_for("auto:1", tell=lines.append, look=lambda: Machine(used=(FREE, BUSY, 0, BUSY)))
    with first as one:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        with waited_for("auto:1", tell=lines.append, look=lambda: Machine(used=(FREE, BUSY, 0, BUSY))) as other:
            assert [one[0].index, other[0].index] == [2, 0]
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

            def ended(_seconds: float) -> None:
                raise KeyboardInterrupt

            third = waited_for(
                "auto:1", tell=lines.append, look=lambda: Machine(used=(FREE, BUSY, 0, BUSY)), sleep=ended
            )
            with pytest.raises(KeyboardInterrupt), third:
                pass
            assert "GPU 0 taken" in lines[-1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with waited_for("auto:2", tell=lines.append, look=lambda: Machine(used=(FREE, BUSY, 0, BUSY))):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,0"  # both were given back


def test_lines_come_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, lines = Machine(used=(BUSY,)), list[str]()
    later = [(BUSY,)] * 1_000
    with waited_for("auto", tell=lines.append, look=lambda: machine, sleep=emptying(machine, *later, (0,))):
        pass
    assert [line.partition(" (")[0] for line in lines[:-1]] == [
        "waits for a GPU that is free",
        *(f"waits for a GPU that is free, for {minutes} minutes so far" for minutes in (10, 20, 40, 80)),
    ]
    assert visible.POLL_SECONDS == 5.0


def test_an_instance_of_a_split_gpu_is_waited_for_too() -> None:
    with waited_for("auto:1", tell=pytest.fail, look=SplitMachine):
        assert shown() == "MIG-1111-1"


def test_what_is_not_there_is_not_waited_for() -> None:
    for wanted in ("auto:5", [7], "auto:x"):
        with pytest.raises(UserError), waited_for(wanted, tell=pytest.fail, look=Machine):
            pass
