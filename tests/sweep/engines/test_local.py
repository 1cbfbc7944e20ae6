"""The engines of this machine: a process for each job, and all jobs in one."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.sweep.engines import base, local
from lightkit.sweep.engines.base import TogetherEngine
from lightkit.sweep.engines.local import LocalEngine, Slot, build_local, cpu_slots, gpu_slots
from lightkit.sweep.job import Job, Start
from tests.waiting import until

GPUS = ("GPU-a", "GPU-b", "GPU-c")


def visible(slots: Sequence[Slot]) -> list[str]:
    return [slot.variables["CUDA_VISIBLE_DEVICES"] for slot in slots]


@pytest.mark.parametrize(
    ("asked", "per_job", "processes", "expected"),
    [
        (None, None, 1, ["GPU-a", "GPU-b", "GPU-c"]),
        (2, None, 1, ["GPU-a", "GPU-b"]),
        (4, None, 1, ["GPU-a", "GPU-b", "GPU-c", "GPU-a"]),
        (None, None, 2, ["GPU-a,GPU-b"]),
        (None, 2, 1, ["GPU-a,GPU-b"]),
        (None, 0.5, 1, ["GPU-a", "GPU-b", "GPU-c", "GPU-a", "GPU-b", "GPU-c"]),
        (1, 1.0, 1, ["GPU-a"]),
    ],
)
def test_gpus_are_shared_out(asked: int | None, per_job: float | None, processes: int, expected: list[str]) -> None:
    slots = gpu_slots(GPUS, asked, per_job, processes)
    assert visible(slots) == expected
    if per_job == 2:
        assert [slot.name for slot in slots] == ["gpu 0, 1"]


@pytest.mark.parametrize(
    ("slots", "per_job", "said"),
    [
        (None, 1.5, "a job has whole GPUs"),
        (None, 4, r"sweep.gpus_per_job: there are not so many free GPUs"),
        (4, 1, r"sweep.slots: there are not so many free GPUs"),
    ],
)
def test_what_cannot_be_shared_out(slots: int | None, per_job: float, said: str) -> None:
    with pytest.raises(UserError, match=said):
        gpu_slots(GPUS, slots, per_job, 1)
    with pytest.raises(UserError, match="0 free, 1 a job"):
        gpu_slots([], None, 1, 1)


def test_slots_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(local, "usable_cpus", lambda: 8)
    monkeypatch.setattr(local, "machine_memory", lambda: (64 << 30, 64 << 30))
    assert cpu_slots(None, None, 1) == 1  # a job takes all of them
    assert cpu_slots(3, None, 1) == 3
    assert cpu_slots(None, 2, 1) == 4
    assert cpu_slots(None, 2, 4) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cpu_slots(None, None, 1) == 8
    monkeypatch.setattr(local, "machine_memory", lambda: (64 << 30, 3 << 30))
    assert cpu_slots(None, None, 1) == 3


def test_the_slots_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, auto = (Job("a", Path("a"), (), f"device: {{name: {name}, nproc: 1}}\n") for name in ("cpu", "auto"))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert [slot.variables for slot in build_local({"slots": 2}, [cpu] * 3).slots] == [
        {"OMP_WAIT_POLICY": "PASSIVE"}
    ] * 2
    assert [slot.name for slot in build_local({"slots": 8}, [cpu] * 3).slots] == ["slot 0", "slot 1", "slot 2"]
    assert [build_local({"slots": 1, "warm": warm}, [cpu])._warm for warm in (True, False)] == [True, False]
    hidden = build_local({"slots": 1, "gpus_per_job": 0}, [auto])
    assert visible(hidden.slots) == [""]


def command(start: Start) -> list[str]:
    seconds = start.job.overrides[0]
    text = f"import os, time; print(os.environ['SLOT'], flush=True); time.sleep({seconds}); raise SystemExit(3)"
    return [sys.executable, "-c", text]


def test_jobs_are_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "job_command", command)
    engine = LocalEngine([Slot("one", {"SLOT": "1"}), Slot("two", {"SLOT": "2"})])
    for name, seconds in (("short", "0"), ("long", "600")):
        (tmp_path / name).mkdir()
        engine.start(Start(Job(name, tmp_path / name, (seconds,), "")))
    assert (engine.room(), engine.place("short"), engine.place("long")) == (0, "one", "two")
    assert until(lambda: engine.wait(0.1), "the short job") == {"short": 3}
    assert (engine.room(), engine.place("short")) == (1, "")
    until(lambda: (tmp_path / "long" / "output.log").read_text() == "2\n", "the long one to print")
    began = time.monotonic()
    assert engine.wait(0.01) == {}
    assert time.monotonic() - began >= 0.01
    engine.stop("long")
    assert until(lambda: engine.wait(0.1), "the long job") == {"long": 143}
    engine.close()


def test_a_job_that_hangs_is_killed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    monkeypatch.setattr(local, "job_command", lambda start: ["sh", "-c", deaf])
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.3)
    engine = LocalEngine([Slot("one")])
    engine.start(Start(Job("a", tmp_path, (), "")))
    until(lambda: (tmp_path / "output.log").read_text() == "up\n", "the job")
    engine.stop("a")
    assert engine.wait(0.2) == {}
    engine.close()
    assert engine._running["a"].process.returncode == -9


def test_what_the_system_killed_ran_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([7, 7, 7, 8])
    monkeypatch.setattr(local, "_memory_kills", lambda: next(counts))
    monkeypatch.setattr(local, "job_command", lambda start: ["sh", "-c", "kill -9 $$"])
    engine, job = LocalEngine([Slot("one")]), Job("a", tmp_path, (), "")
    codes = []
    for _ in range(2):
        engine.start(Start(job))
        codes.append(until(lambda: engine.wait(0.1), "the job")["a"])
    assert codes == [137, 4]


def test_all_jobs_are_trained_in_one_go(tmp_path: Path) -> None:
    trained: list[Sequence[str]] = []

    def train(names: Sequence[str]) -> dict[str, int]:
        trained.append(names)
        return dict.fromkeys(names, 3)

    engine = TogetherEngine(tmp_path, train)
    for name in "ab":
        assert engine.room() > 0
        engine.start(Start(Job(name, tmp_path / name, (), "")))
    assert engine.wait(0) == {"a": 3, "b": 3}
    assert engine.wait(0) == {}
    assert trained == [["a", "b"]]
    engine.start(Start(Job("c", tmp_path / "c", (), "")))
    engine.stop("c")
    assert engine.wait(0) == {"c": 128 + signal.SIGTERM}
    assert trained == [["a", "b"]]


def test_who_asks_the_sweep_to_end_reaches_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_POLL_SECONDS", 0.01)
    asked = threading.Event()
    monkeypatch.setattr(base.os, "kill", lambda pid, number: asked.set())  # type: ignore[attr-defined]

    def train(names: Sequence[str]) -> dict[str, int]:
        (tmp_path / run_files.SWEEP_STOP).touch()
        assert asked.wait(60)
        return dict.fromkeys(names, 143)

    engine = TogetherEngine(tmp_path, train)
    engine.start(Start(Job("a", tmp_path / "a", (), "")))
    assert engine.wait(0) == {"a": 143}
