"""What the surroundings of a run give the loop; by default all of it does nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightkit.diagnostics.spans import NoSpans
from lightkit.loggers.base import Logger
from lightkit.trainer.evaluate import ValidationMeter
from lightkit.trainer.interrupt import Interrupt
from lightkit.trainer.report import Clock


@dataclass(frozen=True)
class Services:
    """What a session gives the loop of each of its models."""

    logger: Logger = field(default_factory=Logger)
    """Takes what is measured."""
    interrupt: Interrupt = field(default_factory=Interrupt)
    """Tells when a signal asked the run to end."""
    clock: Clock = field(default_factory=Clock)
    """Measures where the time goes."""
    spans: NoSpans = field(default_factory=NoSpans)
    """Names the stretches of that time, and may record some steps."""
    save: Callable[[float | None], None] = lambda value: None
    """Writes a checkpoint; called with the monitored value, None between validations."""
    rescues: Callable[[str], None] | None = None
    """Says what became of the last whole step where an error ends training; None where nothing is saved."""
    results: Callable[[str, Mapping[str, Any]], None] = lambda split, found: None
    """Keeps results of metrics that are no numbers, such as curves: split and results by name."""
    meters: Sequence[ValidationMeter] = ()
    """Look at validations beside the metrics."""
