"""What the surroundings of a run give the loop; by default all of it does nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from pathlib import Path
from time import perf_counter
from typing import Any

from lightkit.data import Loader
from lightkit.diagnostics.spans import NoSpans
from lightkit.loggers.base import Logger
from lightkit.trainer.audit.watch import NoWatch
from lightkit.trainer.callbacks import RunInfo
from lightkit.trainer.evaluate import ValidationMeter, evaluate
from lightkit.trainer.interrupt import Interrupt
from lightkit.trainer.learner import Learner
from lightkit.trainer.report import Clock, Reporter


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
    save: Callable[[float | None], Path | None] = lambda value: None
    """Writes a checkpoint, and returns where; called with the monitored value, None between validations."""
    rescues: Callable[[str], None] | None = None
    """Says what became of the last whole step where an error ends training; None where nothing is saved."""
    results: Callable[[str, Mapping[str, Any]], None] = lambda split, found: None
    """Keeps results of metrics that are no numbers, such as curves: split and results by name."""
    meters: Sequence[ValidationMeter] = ()
    """Look at validations beside the metrics."""
    run: RunInfo = field(default_factory=RunInfo)
    """What callbacks may know of the run."""
    scope: ExitStack | None = None
    """Ends with the run, which goes on after training; None where training is all of it."""


class Validator:
    """Measures the averaged weights on the validation split and further sets, with random numbers of its own.

    It changes nothing that is saved, and its time does not count as training.

    Args:
        learner: The model and its data.
        services: Signals, clock, names of stretches of time, and what looks at validations beside the metrics.
        watch: May look whether everything is as it was afterwards.
        report: Tells the console how far the validation is.
    """

    def __init__(self, learner: Learner, services: Services, watch: NoWatch, report: Reporter) -> None:
        self._learner, self._services, self._watch, self._report = learner, services, watch, report

    def run(self) -> dict[str, float]:
        """Return the values of the validation split and of further sets; none without any.

        Raises:
            AskedToEnd: A signal came while a batch was waited for.
            Interrupted: A signal came while a batch was computed.
        """
        learner, services, began = self._learner, self._services, perf_counter()
        loaders = {name: own for name, own in learner.data.loaders().items() if name not in ("train", "test")}
        if not loaders:
            return {}
        with services.spans.span("validation"):
            learner.engine.seed_validation(learner.state.step)
            with self._watch.evaluation(learner), learner.average.applied():
                # Not in a comprehension: its frame would keep all of this where an error keeps the frame.
                found = [*map(self._measured, loaders, loaders.values())]
            services.clock.leave_out(perf_counter() - began)
        return reduce(or_, found)

    def _measured(self, split: str, loader: Loader) -> dict[str, float]:
        """Return the values of a split; of members that train together a list of them."""
        learner, services, state, metrics = self._learner, self._services, self._learner.state, self._learner.metrics
        meters = services.meters if split == "val" else ()
        for meter in (metrics[split], *meters):
            meter.reset()
        how: dict[str, Any] = {"each": partial(self._after_batch, split, len(loader)), "interrupt": services.interrupt}
        evaluate(learner, loader, [metrics[split], *meters], span=services.spans.span, **how)
        for meter in meters:
            meter.validated(state.step, state.epoch + state.samples_done / learner.timetable.epoch_samples)
        values: dict[str, float] = metrics[split].compute()
        services.results(split, metrics[split].figures_data)
        return values

    def _after_batch(self, split: str, batches: int, batch: int) -> None:
        """End here when a signal asked for it; tell the console how far the validation is."""
        services = self._services
        services.interrupt.raise_at(self._learner.state.step)
        if perf_counter() > self._report.next_show:
            with services.spans.span("logging"):
                self._report.show(split, batch, batches)
