"""The loop under a profiler: the same one, with a name for each stretch of its time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightkit.diagnostics.profiling import Recorder
from lightkit.diagnostics.spans import Timed
from lightkit.trainer.loop import Trainer

_METRICS = dict.fromkeys(("update", "compute", "reset"), "metrics")
_TIMED = {
    "engine": {"move": "data", "backward": "backward", "step": "optimizer", "discard": "optimizer"},
    "task": {"step": "forward"},
    "average": {"update": "optimizer"},
    "scheduler": {"step": "optimizer"},
    "train_metrics": _METRICS,
    "val_metrics": _METRICS,
    "guard": dict.fromkeys(("passes", "losses_finite", "on_step"), "checks"),
    "tuning": dict.fromkeys(("before_step", "train", "finish"), "tuning"),
    "logger": dict.fromkeys(("scalars", "progress", "message", "flush"), "logging"),
}
"""By part of the trainer: the stretch of time that each method stands for."""
_STREAMS = {"engine": {"prefetch": "data"}}
"""The same for methods that give items."""
_HOOKS = ("on_fit_start", "on_step", "on_validation", "on_epoch", "on_fit_end")


class ProfiledTrainer(Trainer):
    """A trainer that tells where its time goes. What it computes is the same, bit by bit.

    Args:
        parts: See `Trainer`.
        recorder: Counts, and profiles some steps.
        options: See `Trainer`.
    """

    def __init__(self, *parts: Any, recorder: Recorder, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._recorder = recorder
        spans = recorder.spans
        for part, methods in _TIMED.items():
            setattr(self, part, Timed(getattr(self, part), spans, methods, _STREAMS.get(part)))
        hooks = dict.fromkeys(_HOOKS, "callbacks")
        timed: dict[int, Any] = {id(callback): Timed(callback, spans, hooks) for callback in self.callbacks}
        self._on_step = [timed[id(callback)] for callback in self._on_step]
        self.callbacks = [timed[id(callback)] for callback in self.callbacks]

    def _step(self, batches: Iterator[Any]) -> None:
        self._clock.leave_out(self._recorder.before_step(self.state.step))
        super()._step(batches)
        self._recorder.after_step()

    def _log_step(self) -> None:
        with self._recorder.spans("logging"):
            super()._log_step()

    def _validate(self) -> dict[str, float]:
        with self._recorder.spans("validation"):
            return super()._validate()

    def _save(self) -> None:
        with self._recorder.spans("checkpoint"):
            super()._save()
