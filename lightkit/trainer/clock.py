"""Where the time of the loop goes, by the host's clock: nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter


class Clock:
    """Seconds spent waiting for data and seconds in all, since the last reading.

    The loop adds to `data_seconds` itself: a method call per batch would cost more than what it measures.

    Args:
        vitals: Gives values of the machine, to be logged beside those of the loop.
    """

    def __init__(self, vitals: Callable[[], Mapping[str, float]] = dict) -> None:
        self.vitals, self.data_seconds = vitals, 0.0
        self._since, self._paused = perf_counter(), 0.0
        self._trained = self._waited = 0.0

    def read(self, samples: int) -> dict[str, float]:
        """Throughput since the last reading; starts a new one.

        Args:
            samples: Training samples done in the meantime.

        Returns:
            `speed/samples_per_second` and `speed/data_wait`, the share of the time spent waiting for batches.
        """
        now = perf_counter()
        seconds = max(now - self._since - self._paused, 1e-9)
        self._trained, self._waited = self._trained + seconds, self._waited + self.data_seconds
        values = {
            "speed/samples_per_second": samples / seconds,
            "speed/data_wait": min(1.0, self.data_seconds / seconds),
        }
        self._since, self._paused, self.data_seconds = now, 0.0, 0.0
        return values

    def totals(self) -> tuple[float, float]:
        """Seconds of training in all, and those of them spent waiting for data."""
        rest = max(0.0, perf_counter() - self._since - self._paused)
        return self._trained + rest, self._waited + self.data_seconds

    def leave_out(self, seconds: float) -> None:
        """Take seconds that were no training, such as a validation, out of the next reading."""
        self._paused += seconds
