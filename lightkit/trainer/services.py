"""What the surroundings of a run give the loop; by default all of it does nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from lightkit.loggers.base import Logger
from lightkit.trainer.clock import Clock
from lightkit.trainer.interrupt import Interrupt

_NOTHING = nullcontext()


class Profiler(Protocol):
    """What names the stretches of the loop's time; see `lightkit.diagnostics.profiling.Recorder`."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside for `name`."""

    def before_step(self, step: int) -> float:
        """Prepare for the next optimizer step.

        Args:
            step: Optimizer steps the run has taken.

        Returns:
            Seconds that this took, which are no training.
        """

    def after_step(self) -> None:
        """Count an optimizer step that is done."""


class NoProfiler:
    """The plain case: nothing is profiled, and naming a stretch of time costs next to nothing."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """Do nothing."""
        del name
        return _NOTHING

    def before_step(self, step: int) -> float:
        """Do nothing, which takes no time."""
        del step
        return 0.0

    def after_step(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Services:
    """What a session gives the loop of each of its models."""

    logger: Logger = field(default_factory=Logger)
    """Takes what is measured."""
    interrupt: Interrupt = field(default_factory=Interrupt)
    """Tells when a signal asked the run to end."""
    clock: Clock = field(default_factory=Clock)
    """Measures where the time goes."""
    profiler: Profiler = field(default_factory=NoProfiler)
    """Names the stretches of that time, and may record some steps."""
    save: Callable[[float | None], None] = lambda value: None
    """Writes a checkpoint; called with the monitored value, None between validations."""
