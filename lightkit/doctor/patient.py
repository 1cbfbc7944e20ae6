"""The run that a doctor looks at: its configuration, its data as it gets them, and a fresh model for each check."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightkit.assembly import Learner, Shared, build_engine, build_learner, build_shared
from lightkit.config import with_values
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.ensemble.methods.base import NO_ENSEMBLE
from lightkit.runner.ensemble.run import checked_method

_ALONE: dict[str, Any] = {
    "device.parallel": "none",
    "device.nproc": 1,
    "device.batch_size": None,
    "device.compile": "none",
    "device.cuda_graphs": False,
    "checkpoint.asynchronous": False,
}
"""What is examined is one model in one process, uncompiled: a fault shows there too, and sooner."""


_TRIED = 4
"""Rows that tell how long one takes."""


@dataclass
class Patient:
    """A run before it starts. All that checks do to it stays in memory and in a temporary folder."""

    cfg: DictConfig
    """The configuration, for one process; the asked-for one is `asked`."""
    asked: DictConfig
    """The configuration as it would run."""
    folder: Path
    """A temporary folder, which goes with everything in it."""
    shared: Shared
    """The data as the run gets them (`patient.shared.data.train`), and the device."""
    deadline: float
    """Until when checks may go on, by `time.monotonic()`."""
    step_error: str = ""
    """What the first steps of the run raise; empty where they go through, or were not made yet."""
    found: list[Finding] = field(default_factory=list)
    """What checks have found so far."""
    first: Learner | None = None
    """The first learner, which was built to see that this can be done; `learner` gives it away."""

    def learner(self) -> Learner:
        """Build the model and what trains it, with the same weights each time.

        Raises:
            UserError: A part cannot be built, or two of them do not fit together.
        """
        first, self.first = self.first, None
        if first is not None:
            return first
        # An engine of its own: a loss scale, and what it has learnt, stays with the learner.
        shared = Shared(build_engine(self.cfg), self.shared.data)
        return build_learner(self.cfg, shared, self.folder)

    @cached_property
    def sample(self) -> DataSample:
        """Rows of each split, read once for all checks of the data."""
        seconds = max(0.5, min(3.0, 0.05 * self.seconds_left()))
        return DataSample(self.shared.data, seconds=seconds, settings=[*map(str, self.cfg.data.dataset)])

    @property
    def title(self) -> str:
        """Return what is examined, in a line."""
        data = self.shared.data
        rows = ", ".join(f"{loader.num_samples:,} {name}" for name, loader in data.loaders().items())
        model, optimizer = (str(node["_target_"]).rpartition(".")[2] for node in (self.cfg.model, self.cfg.optim))
        name = self.cfg.name or data.info.task
        alone = self.cfg.ensemble._target_ == NO_ENSEMBLE
        name = name if alone else f"{name}, one model of its ensemble"
        return f"{name}: {model} with {optimizer} on {self.shared.engine.describe()}; rows: {rows}"

    def rows(self, most: int, *, seconds: float = 2.0, least: int = 4) -> int:
        """Return how many training rows can be read and learnt from in a time, for data and networks that are slow.

        Args:
            most: Rows that are wanted.
            seconds: The time.
            least: Rows that are needed, however long they take.
        """
        there = self.shared.data.train.num_samples
        affordable = max(least, int(seconds / self.seconds_per_row))
        return min(most, there, affordable)

    @cached_property
    def seconds_per_row(self) -> float:
        """Return how long it takes to read one training row and to learn from it, in small batches."""
        from lightkit.doctor.training.probing import plain_batch, train_step

        learner = self.learner()
        learner.network.train()
        rows = min(_TRIED, learner.data.train.num_samples)
        seconds = math.inf
        for number in range(2):  # the first step takes what is only once, too
            began = time.perf_counter()
            train_step(learner, plain_batch(learner, rows), key=number)
            seconds = min(seconds, time.perf_counter() - began)
        return seconds / rows

    def cause(self, *checks: str) -> Finding | None:
        """Return the worst that one of these checks has found, as far as it is bad."""
        bad = [each for each in self.found if each.is_bad and each.check in checks]
        return min(bad, key=lambda each: each.status, default=None)  # an error comes before a warning

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; none or fewer where it is over."""
        return self.deadline - time.monotonic()


@contextmanager
def examined(
    cfg: DictConfig, seconds: float, *, report: Callable[[str], None] = lambda line: None
) -> Iterator[Patient]:
    """Build what checks look at; nothing of it is left behind.

    Args:
        cfg: A composed and checked configuration.
        seconds: How long the checks may take.
        report: Called with a line now and then where reading the data takes long.

    Raises:
        UserError: A run of this configuration would be refused.
    """
    deadline, alone = time.monotonic() + seconds, changed(cfg, _ALONE)
    with tempfile.TemporaryDirectory(prefix="lightkit-doctor-") as name, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using a target size")  # a finding says so, once
        folder = Path(name)
        shared = build_shared(alone, folder, report=report)
        with closing(shared.data):
            checked_method(cfg, shared)
            patient = Patient(alone, cfg, folder, shared, deadline)
            patient.first = patient.learner()
            yield patient


def changed(cfg: DictConfig, values: dict[str, Any]) -> DictConfig:
    """Copy a configuration with other values, read-only; keys that it does not have are left out."""
    known = (key for key in values if OmegaConf.select(cfg, key, default=_ALONE) is not _ALONE)
    return with_values(cfg, {key: values[key] for key in known})
