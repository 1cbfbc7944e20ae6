"""What comes with the clock: the end of a run that has had its time, and checkpoints by minutes.

Nothing that a run learns depends on it but how far it trains.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from lightkit.common.lengths import read_duration
from lightkit.trainer.callbacks import Callback, Training

TIME_LIMIT = "time_limit"
"""Name of the callback."""


class TimeLimit(Callback):
    """Ends training once all parts of the run have trained for some time; the step under way is made to its end.

    Args:
        seconds: How long.
        shown: How the limit was typed.
        agree: Tells whether all processes find it fine to go on; waits for them. None where there is one process.
        every: With several processes, steps between two looks at the clock.
    """

    def __init__(
        self, seconds: float, shown: str, *, agree: Callable[[bool], bool] | None = None, every: int = 1
    ) -> None:
        self.seconds, self._shown, self._agree, self._every = seconds, shown, agree, every
        self._before, self._began = 0.0, monotonic()

    def on_fit_start(self, trainer: Training) -> None:
        """Begin to count."""
        self._began = monotonic()

    def on_step(self, trainer: Training) -> None:
        """Look at the clock."""
        if passed(self._spent() >= self.seconds, trainer.state.step, self._agree, self._every):
            trainer.stop(f"trainer.max_time={self._shown} is over")

    def _spent(self) -> float:
        return self._before + monotonic() - self._began

    def state_dict(self) -> dict[str, Any]:
        """Return the time that was trained."""
        return {"seconds": self._spent()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where the checkpoint stood."""
        self._before = float(state["seconds"])


def time_limit(limit: float | str | None, ranks: Any, every: int) -> dict[str, Callback]:
    """Return the callback by its name that ends training after a time; nothing without a limit.

    Args:
        limit: As it was typed.
        ranks: The processes that train together.
        every: See `TimeLimit`.
    """
    if limit is None:
        return {}
    agree = ranks.agree if ranks.size > 1 else None
    return {TIME_LIMIT: TimeLimit(read_duration(limit), str(limit), agree=agree, every=every)}


def passed(own: bool, step: int, agree: Callable[[bool], bool] | None, every: int) -> bool:
    """Tell in all processes at the same step whether a time has passed in one of them.

    Args:
        own: Whether it has in this one.
        step: Optimizer steps taken.
        agree: See `TimeLimit`.
        every: See `TimeLimit`.
    """
    if agree is None:
        return own
    return step % every == 0 and not agree(not own)
