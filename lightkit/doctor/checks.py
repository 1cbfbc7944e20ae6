"""All checks of a run before it starts, in the order in which they are made, and the run that they look at.

No check is imported before its turn.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import Learner, Shared, build_engine, build_learner, build_shared
from lightkit.common.doors import SHIPPED, import_path
from lightkit.common.errors import UserError
from lightkit.common.failures import is_out_of_memory
from lightkit.config import with_values
from lightkit.config.doors import load, names
from lightkit.diagnostics.memory import release
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.traceback import failure
from lightkit.ensemble.methods.base import NO_ENSEMBLE
from lightkit.runner.ensemble.run import checked_method

_METRICS = logging.getLogger("lightkit.metrics")
_ONE_PROCESS: dict[str, Any] = {
    "device.parallel": "none",
    "device.nproc": 1,
    "trainer.find_batch_size": None,
    "device.compile": "none",
    "device.cuda_graphs": False,
    "checkpoint.asynchronous": False,
}
"""What is examined is one model in one process, uncompiled: a fault shows there too, and sooner."""

_START_ROWS, _START_SECONDS = 1000, 0.1
"""How much is looked at where a run starts."""
_TRIED = 4
"""Rows that tell how long one takes."""


@dataclass
class ExaminedRun:
    """A run before it starts. All that checks do to it stays in memory and in a temporary folder."""

    cfg: DictConfig
    """The configuration, for one process."""
    full_cfg: DictConfig
    """The configuration as it would run."""
    folder: Path
    """A temporary folder, which goes with everything in it."""
    shared: Shared
    """The data as the run gets them (`run.shared.data.train`), and the device."""
    deadline: float
    """Until when checks may go on, by `time.monotonic()`."""
    step_error: str = ""
    """What the first steps of the run raise; empty where they go through, or were not made yet."""
    findings: list[Finding] = field(default_factory=list)
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

    def excused(self, finding: Finding, checks: Sequence[str]) -> Finding:
        """Return what is wrong as a note where one of these checks has found the reason, otherwise as it is."""
        bad = [each for each in self.findings if each.is_bad and each.check in checks]
        if not bad or not finding.is_bad:
            return finding
        cause = min(bad, key=lambda each: each.status)  # an error comes before a warning
        measured = f"{finding.measured}; what {cause.check!r} found is reason enough"
        return replace(finding, status="note", measured=measured, why="", key="", fix="")

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; none or fewer where it is over."""
        return self.deadline - time.monotonic()


@contextmanager
def examined(
    cfg: DictConfig, seconds: float, *, report: Callable[[str], None] = lambda line: None
) -> Iterator[ExaminedRun]:
    """Build what checks look at; nothing of it is left behind.

    Args:
        cfg: A composed and checked configuration.
        seconds: How long the checks may take.
        report: Called with a line now and then where reading the data takes long.

    Raises:
        UserError: A run of this configuration would be refused.
    """
    deadline, single = time.monotonic() + seconds, with_values(cfg, _ONE_PROCESS)
    with (
        tempfile.TemporaryDirectory(prefix="lightkit-doctor-") as name,
        warnings.catch_warnings(),
        ExitStack() as stack,
    ):
        warnings.filterwarnings("ignore", "Using a target size")  # a finding says so, once
        stack.callback(_METRICS.setLevel, _METRICS.level)
        _METRICS.setLevel(logging.ERROR)  # the few rows of a trial may be of one class
        shared = build_shared(single, Path(name), report=report)
        with closing(shared.data):
            checked_method(cfg, shared)
            run = ExaminedRun(single, cfg, Path(name), shared, deadline)
            run.first = run.learner()
            yield run


Check = Callable[[ExaminedRun], Iterator[Finding]]
"""Looks at a run and yields what it finds, also that all is well; what it has no time for it leaves out.

`always = True` on it makes it however little time there is; `as_run = True` says that it does what a run does, so that
what it cannot do would end the run."""
DOOR = "doctor"

CHECKS: tuple[tuple[str, str], ...] = tuple(SHIPPED[DOOR].items())
"""Name of a check, and the dotted path of it; the quick ones first, as time may run out."""


def own_checks(entries: Iterable[str] = ()) -> Iterator[tuple[str, Check]]:
    """Yield the checks that the project and packages add, by name.

    Args:
        entries: What `trust` adds.

    Raises:
        UserError: One may not be made, or cannot be imported.
    """
    for name in names(DOOR):
        if name not in SHIPPED[DOOR]:
            made, arguments = load(DOOR, name, entries=entries)
            yield name, made(**arguments) if isinstance(made, type) else partial(made, **arguments)


def examine(run: ExaminedRun, tell: Callable[[str], None] = lambda line: None) -> Iterator[Finding]:
    """Make all checks for which there is time, and yield what they find.

    A check that fails itself is a finding too, and keeps no other from being made. The first steps of the run are made
    however little time there is: what would end the run must not pass for lack of it.

    Args:
        run: The run.
        tell: Called with the name of each check before it is made.
    """
    late, own = list[str](), [*own_checks(run.cfg.get("trust") or ())]
    for name, check in chain(((name, import_path(place)) for name, place in CHECKS), own):
        if run.seconds_left() <= 0 and not getattr(check, "always", False):
            late.append(name)
            yield Finding(name, "skipped", "no time was left for it")
            continue
        tell(name)
        try:
            for finding in check(run):
                run.findings.append(finding)
                yield finding
        except Exception as error:
            run.findings.append(_failed(run, name, check, error))
            yield run.findings[-1]
        release()  # what the next one needs on a GPU
    if late:
        count = len(CHECKS) + len(own)
        few = 2 * len(late) > count
        measured = f"there was none for {len(late)} of {count} checks"
        why = "hardly anything was looked at, so nothing can be said of the run" if few else ""
        yield Finding("time", "error" if few else "note", measured, why, fix="a longer --seconds" if few else "")


def look_for_leaks(cfg: DictConfig, shared: Shared) -> Iterator[Finding]:
    """Make the checks of splits, order and leaks on a few rows where a run starts, in a moment.

    It looks at what lies in memory or in files; what has to be decoded is left to `lightkit doctor`. A check that fails
    says nothing here: whatever is wrong with the data, the run itself will tell.

    Args:
        cfg: The configuration of the run.
        shared: Its data.
    """
    run = ExaminedRun(cfg, cfg, Path(), shared, math.inf)
    run.sample = DataSample(shared.data, most=_START_ROWS, seconds=_START_SECONDS, reads=False)
    for name in ("splits", "order", "leaks"):
        with suppress(Exception):
            yield from import_path(SHIPPED[DOOR][name])(run)


def _failed(run: ExaminedRun, name: str, check: Check, error: Exception) -> Finding:
    """Say what it means that a check ended in an error."""
    if run.step_error:
        return Finding(name, "skipped", "a training step fails")
    finding = failure(error, name)
    if getattr(check, "as_run", False) or isinstance(error, UserError) or is_out_of_memory(error):
        return finding
    why = "the run's own steps go through; batches of another size, or with other inputs, do not"
    return replace(finding, status="note", measured=f"the check itself failed: {finding.measured}", why=why)
