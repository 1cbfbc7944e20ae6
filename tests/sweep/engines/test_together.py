"""The engine that trains all jobs of a sweep in its own process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import lightkit.sweep.engines.base as together
from lightkit.common import run_files
from lightkit.sweep.engines.base import TogetherEngine
from lightkit.sweep.job import Job, Start


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
    monkeypatch.setattr(together, "_POLL_SECONDS", 0.01)
    asked = threading.Event()
    monkeypatch.setattr(together.os, "kill", lambda pid, number: asked.set())  # type: ignore[attr-defined]

    def train(names: Sequence[str]) -> dict[str, int]:
        (tmp_path / run_files.SWEEP_STOP).touch()
        assert asked.wait(60)
        return dict.fromkeys(names, 143)

    engine = TogetherEngine(tmp_path, train)
    engine.start(Start(Job("a", tmp_path / "a", (), "")))
    assert engine.wait(0) == {"a": 143}
