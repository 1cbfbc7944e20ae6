"""What the loop tells the outside: logged values, learning rates, throughput, progress.

Times are those of the host: nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Any

from torch.optim import Optimizer

from lightkit.common.names import SPLIT_NAMES
from lightkit.loggers.base import Logger, Progress
from lightkit.trainer.state import State, Timetable

SECONDS_BETWEEN_PROGRESS = 0.1


def rates_of(optimizer: Optimizer) -> dict[str, float]:
    """Return the learning rate of each parameter group at this moment, under the name it is logged by."""
    groups = enumerate(optimizer.param_groups)
    return {f"lr/{group.get('name', index)}": float(group["lr"]) for index, group in groups}


class Clock:
    """Seconds spent waiting for data and seconds in all, since the last reading.

    The loop adds to `data_seconds` itself: a method call per batch would cost more than what it measures.

    Args:
        vitals: Gives values of the machine, to be logged beside those of the loop.
        per_sample: What else to tell of the speed: by name how much of it a sample is.
    """

    def __init__(
        self, vitals: Callable[[], Mapping[str, float]] = dict, per_sample: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self.vitals, self.data_seconds = vitals, 0.0
        self._per_sample = {"samples_per_second": 1.0, **per_sample}
        self._since, self._paused = perf_counter(), 0.0
        self._trained = self._waited = self._read = 0.0
        self._samples = 0

    def read(self, samples: int) -> dict[str, float]:
        """Return the throughput since the last reading; starts a new one.

        Args:
            samples: Training samples done in the meantime.

        Returns:
            `speed/samples_per_second`, what else is told of a sample, and `speed/data_wait`, the share of the time
            spent waiting for batches.
        """
        now = perf_counter()
        seconds = max(now - self._since - self._paused, 1e-9)
        self._trained, self._waited = self._trained + seconds, self._waited + self.data_seconds
        self._read, self._samples = self._read + seconds, self._samples + samples
        values = {f"speed/{name}": share * samples / seconds for name, share in self._per_sample.items()}
        values["speed/data_wait"] = min(1.0, self.data_seconds / seconds)
        self._since, self._paused, self.data_seconds = now, 0.0, 0.0
        return values

    def totals(self) -> tuple[float, float]:
        """Return the seconds of training in all, and those of them spent waiting for data."""
        rest = max(0.0, perf_counter() - self._since - self._paused)
        return self._trained + rest, self._waited + self.data_seconds

    def throughput(self) -> dict[str, float]:
        """Return the mean throughput over all readings, by name; empty before the first."""
        pace = self._samples / self._read if self._read else 0.0
        return {name: share * pace for name, share in self._per_sample.items()} if pace else {}

    def leave_out(self, seconds: float) -> None:
        """Take seconds that were no training, such as a validation, out of the next reading."""
        self._paused += seconds


class Reporter:
    """Hands numbers to the logger; the loop itself only asks whether it is time.

    Args:
        logger: Where numbers go.
        state: The counters of the run.
        timetable: Its lengths.
        clock: Where the time of the loop goes.
    """

    def __init__(self, logger: Logger, state: State, timetable: Timetable, clock: Clock) -> None:
        self.logger, self.state, self.timetable, self.clock = logger, state, timetable, clock
        self.next_show = 0.0
        self._began, self._first_step, self._counted = perf_counter(), state.step, self._samples()

    def values(self, values: dict[str, float], beside: Mapping[str, float] | None = None) -> None:
        """Log values of this step and keep them as the newest.

        Args:
            values: By name.
            beside: Those of the machine, in the same row: they are no part of the run's state.
        """
        self.state.last.update(values)
        self.state.rows += 1
        self.state.logged.add(values, step=self.state.step, epoch=self.state.epoch)
        self.logger.scalars({**values, **(beside or {})}, step=self.state.step, epoch=self.state.epoch)

    def step(self, loss: float, norm: float, rates: Mapping[str, float], vitals: Mapping[str, float]) -> None:
        """Log what belongs to single optimizer steps.

        Args:
            loss: Loss of the newest batch.
            norm: Norm of the gradients before clipping.
            rates: The learning rates that the step used, by name; see `rates_of`.
            vitals: Further values of the run itself, such as a loss scale.
        """
        samples, self._counted = self._samples() - self._counted, self._samples()
        values = {"train/loss_step": loss, "grad/norm": norm, **vitals, **rates, **self.clock.read(samples)}
        self.values(values, self.clock.vitals())

    def _samples(self) -> int:
        return self.state.epoch * self.timetable.epoch_samples + self.state.samples_done

    def show(self, phase: str, batch: int, batches: int) -> None:
        """Tell the console how far the run is, with the newest logged values."""
        state, timetable, now = self.state, self.timetable, perf_counter()
        self.next_show = now + SECONDS_BETWEEN_PROGRESS
        taken = state.step - self._first_step
        pace = (now - self._began) / taken if taken else None
        self.logger.progress(
            Progress(
                epoch=state.epoch + bool(state.samples_done),
                epochs=timetable.total_epochs,
                step=state.step,
                total_steps=timetable.total_steps,
                batch=batch,
                batches=batches,
                phase=phase,
                values=state.last,
                samples_per_second=state.last.get("speed/samples_per_second", 0.0),
                eta_seconds=None if pace is None else pace * (timetable.total_steps - state.step),
            )
        )


def result(
    state: State, *, status: str, monitor: str, mode: str, reason: str | None = None, **facts: Any
) -> dict[str, Any]:
    """Make the content of `result.json`.

    Args:
        state: The counters and newest values.
        status: `finished`, `paused`, `failed` or `interrupted`.
        monitor: Name of the value that decides what is best; the objective of a sweep.
        mode: Whether `min` or `max` of it is better.
        reason: Why the run ended, where it did not take its last step.
        facts: Whatever else belongs to the result.
    """
    return {
        "status": status,
        "reason": reason,
        **facts,
        "objective": {"name": monitor, "mode": mode, "value": state.best_value, "step": state.best_step},
        "best": dict(state.best),
        "test": {name: value for name, value in state.last.items() if name.startswith("test/")},
        "metrics": dict(state.last),
        "epochs": state.epoch,
        "steps": state.step,
        "skipped_steps": state.skipped,
        "scaler_skipped_steps": state.scaler_skipped,
        "rollbacks": state.rollbacks,
    }


def final_values(state: State, more: Iterable[str] = ()) -> dict[str, float]:
    """Pick the newest metrics of whole splits and further sets, without what belongs to single steps."""
    splits = (*SPLIT_NAMES, *more)
    values = {name: value for name, value in state.last.items() if name.partition("/")[0] in splits}
    return {name: value for name, value in values.items() if name != "train/loss_step"}


def final_table(values: Mapping[str, float], best: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    """Make column names and rows of a table with a line for each metric and a column for each split.

    Args:
        values: The newest values by name.
        best: The values at the best step, where that is not the last one; a column of their own.
    """
    columns = dict[str, dict[str, float]]()
    for split in dict.fromkeys(["train", "val", *(name.partition("/")[0] for name in values)]):
        for head, found in ((split, values), (f"best {split}", best)):
            own = {name.partition("/")[2]: v for name, v in found.items() if name.startswith(f"{split}/")}
            columns |= {head: own} if own else {}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return ["metric", *columns], [[n, *(_shown(column.get(n)) for column in columns.values())] for n in names]


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    plain = value == 0 or (math.isfinite(value) and 1e-3 <= abs(value) < 1e4)
    return f"{value:.4f}" if plain else f"{value:.4g}"
