"""The loop under a profiler computes what it always does, and names what it does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.diagnostics.profiling import Recorder, Window
from lightkit.trainer import Callback, Trainer
from lightkit.trainer.average import Ema
from tests.trainer import parts

CPU = torch.device("cpu")


class Watching(Callback):
    """Keeps the hooks that were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_fit_start(self, trainer: Any) -> None:
        self.calls.append("start")

    def on_step(self, trainer: Any) -> None:
        self.calls.append(f"step {trainer.state.step}")

    def on_epoch(self, trainer: Any, values: dict[str, float]) -> None:
        self.calls.append("epoch")


class Sleeping(Callback):
    def on_step(self, trainer: Any) -> None:
        time.sleep(0.002)


def recorder(folder: Path, window: Window | None = None) -> Recorder:
    return Recorder(window or Window(1, 1, 3), CPU, folder, tell=lambda line: None)


def made(recording: Recorder | None, **changes: Any) -> Trainer:
    """A trainer of small parts, under the recorder if there is one."""
    model = parts.network(dropout=0.3)
    if changes.pop("ema", False):
        changes["average"] = Ema(model, 0.9)
    if recording is not None:
        changes["spans"] = recording
    return parts.trainer(model, **changes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"timetable": {"accumulate": 2, "epochs": 3}},
        {"timetable": {"validate_unit": "step", "validate_every": 1}, "ema": True, "clip_norm": 0.1},
    ],
    ids=["plain", "accumulation", "validation and average"],
)
def test_the_same_bits_as_ever(tmp_path: Path, changes: dict[str, Any]) -> None:
    plain = made(None, **changes)
    state = plain.fit()
    recording = recorder(tmp_path)
    under = made(recording, **changes)
    assert under.fit().__dict__.keys() == state.__dict__.keys()
    recording.close()
    assert recording.recorded is not None
    assert parts.same_weights(plain, under)
    loggers: list[Any] = [plain.logger, under.logger]
    for name in ("train/loss_step", "train/loss", "val/loss", "grad/norm", "lr/0"):
        assert loggers[0].series(name) == loggers[1].series(name) != [] or name == "lr/0"


def test_every_stretch_has_a_name_and_little_is_left(tmp_path: Path) -> None:
    recording, watching = recorder(tmp_path), Watching()
    saved: list[float | None] = []
    times = {"save_steps": 1, "validate_unit": "step", "validate_every": 2}
    under = made(recording, callbacks=[watching, Sleeping()], save=saved.append, timetable=times)
    under.fit()
    recording.close()
    epochs = [[*(f"step {at}" for at in steps), "epoch"] for steps in (range(1, 5), range(5, 9))]
    assert watching.calls == ["start", *epochs[0], *epochs[1]]
    assert len(saved) == 8
    names = "data forward backward optimizer metrics checks callbacks logging validation checkpoint tuning"
    assert recording.seconds.keys() == set(names.split())
    assert all(seconds > 0 for seconds in recording.seconds.values())
    assert sum(recording.seconds.values()) <= recording.whole
    assert recording.recorded is not None
    assert recording.recorded.host["callbacks"] >= 3 * 0.002
    assert sum(recording.recorded.host.values()) <= recording.recorded.seconds


def test_a_callback_that_looks_around_finds_and_changes_what_it_always_does(tmp_path: Path) -> None:
    class Meddling(Callback):
        def on_step(self, trainer: Any) -> None:
            assert [type(found) for found in trainer.callbacks if isinstance(found, Meddling)]
            assert isinstance(trainer.average, Ema)
            trainer.average.decay = 0.5

    plain = made(None, callbacks=[Meddling()], ema=True)
    under = made(recorder(tmp_path), callbacks=[Meddling()], ema=True)
    plain.fit()
    under.fit()
    loggers: list[Any] = [plain.logger, under.logger]
    assert loggers[0].series("val/loss") == loggers[1].series("val/loss")


def test_an_error_in_the_window_leaves_the_trace(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_step(self, trainer: Any) -> None:
            if trainer.state.step == 4:
                raise KeyError("mine")

    recording = recorder(tmp_path)
    with pytest.raises(KeyError, match="mine"):
        made(recording, callbacks=[Failing()]).fit()
    recording.close()
    assert recording.recorded is not None
    assert recording.recorded.steps == 2
    assert recording.trace is not None


def test_recording_is_no_part_of_the_speed_that_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, left_out = recorder(tmp_path), []
    monkeypatch.setattr(recording, "before_step", lambda step: 7.0 if step == 2 else 0.0)
    under = made(recording, timetable={"steps": 4})
    monkeypatch.setattr(under._clock, "leave_out", left_out.append)
    under.fit()
    assert left_out.count(7.0) == 1
