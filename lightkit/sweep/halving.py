"""Successive halving: jobs pause at rungs, and the best of them go on from where they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from lightkit.common.errors import UserError
from lightkit.common.lengths import Length
from lightkit.common.reading import yaml_or_nothing
from lightkit.config.schema.sweeping import HalvingConfig
from lightkit.sweep.job import Job, JobOutcome, JobSearch, Start

Unit = Literal["epoch", "step"]
_KEY = "sweep.halving"


class Halving(JobSearch):
    """Let the jobs of a sweep compete in brackets.

    Args:
        jobs: All jobs, in the order in which they start.
        brackets: Each job is in one of them.
        unit: What their rungs count, `epoch` or `step`.
    """

    def __init__(self, jobs: Iterable[Job], brackets: Iterable[Bracket], *, unit: Unit = "epoch") -> None:
        self.jobs, self.brackets, self.unit = {job.name: job for job in jobs}, list(brackets), unit
        self._bracket = {name: bracket for bracket in self.brackets for name in bracket.names}
        self._under_way = set[str]()

    def next(self, room: int) -> Sequence[Start]:
        """Name jobs that are to start, or to go on from a rung; those that are further come first."""
        wanted = [(rung, name) for bracket in self.brackets for rung, name in bracket.wanted()]
        left = [(rung, name) for rung, name in wanted if name not in self._under_way]
        named = sorted(left, key=lambda one: -one[0])[: max(0, room)]
        self._under_way |= {name for _, name in named}
        return [Start(self.jobs[name], self._stop_at(name, rung)) for rung, name in named]

    def tell(self, outcome: JobOutcome) -> None:
        """Take how far a job has come, and with which value.

        A job that was interrupted is named again for the same rung. One that failed, was pruned or stopped is out.
        """
        bracket = self._bracket[outcome.name]
        self._under_way.discard(outcome.name)
        if outcome.status in ("failed", "pruned", "stopped"):
            bracket.lose(outcome.name)
        elif outcome.status in ("paused", "finished"):
            done = outcome.epoch if self.unit == "epoch" else outcome.step
            reached, value = sum(rung <= done for rung in bracket.rungs), outcome.values.get("objective")
            bracket.record(outcome.name, reached, value, ended=outcome.status == "finished")

    @property
    def ended(self) -> bool:
        """Tell whether no job is to come to any rung."""
        return not any(stage.pending for bracket in self.brackets for stage in bracket.stages())

    def out_of_race(self) -> list[str]:
        """Return the jobs that have paused and never go on: their checkpoints are of no use any more."""
        return [name for bracket in self.brackets for name in bracket.out()]

    def leave_out(self, names: Iterable[str]) -> None:
        """Never let jobs go on whose checkpoints were removed, also where the sweep has become larger since.

        Args:
            names: The jobs, after what they came to before was told.
        """
        gone = {*names}
        for bracket in self.brackets:
            bracket.leave_out(gone & {*bracket.names})

    def _stop_at(self, name: str, rung: int) -> str | None:
        rungs = self._bracket[name].rungs
        return str(Length(rungs[rung], self.unit)) if rung < len(rungs) else None


def build_halving(jobs: Sequence[Job], options: HalvingConfig) -> Halving | None:
    """Build the search that `sweep.halving` asks for; None where it asks for none.

    Args:
        jobs: The jobs of the sweep.
        options: The section `sweep.halving`.

    Raises:
        UserError: The settings make no sense for these jobs.
    """
    if not jobs or (options.method is None and options.rungs is None):
        return None
    terms = _read_terms(jobs, options.unit)
    rungs = _rungs(options, terms)
    order = [job.name for job in jobs]
    facts: dict[str, Any] = {"eta": options.eta, "mode": terms.mode}
    if options.method == "hyperband":
        dealt = deal(order, hyperband_shares(len(rungs) + 1, options.eta))
        brackets = [Bracket(names, rungs[first:], **facts) for first, names in enumerate(dealt) if names]
    else:
        brackets = [Bracket(order, rungs, **facts)]
    return Halving(jobs, brackets, unit=options.unit)


class Terms(NamedTuple):
    """What all jobs have in common that compete."""

    monitor: str
    """The value they are compared by."""
    mode: str
    """Whether `min` or `max` of it is better."""
    length: int | None
    """How long they are, in the unit of the rungs; None where only the data tell."""
    first_value: int | None
    """How far they are at the first validation; None where only the data tell."""


def _read_terms(jobs: Sequence[Job], unit: Unit) -> Terms:
    """Read what jobs are compared by.

    Raises:
        UserError: They cannot be compared, or cannot pause.
    """
    found: Terms | None = None
    for job in jobs:
        cfg = yaml_or_nothing(job.config)
        if not all(isinstance(cfg.get(name), dict) for name in ("trainer", "metrics", "checkpoint", "ensemble")):
            what, fix = "the configuration of a job cannot be read", "`lightkit train -m` plans the sweep anew"
            raise UserError(what, key=_KEY, received=job.name, fix=fix)
        trainer, metrics = cfg["trainer"], cfg["metrics"]
        if not cfg["checkpoint"]["enabled"]:
            what, fix = "jobs without checkpoints cannot go on from a rung", "no checkpoint=none"
            raise UserError(what, key=_KEY, received=" ".join(job.overrides), fix=fix)
        if trainer.get("stop_at") is not None:
            what = "halving says itself where jobs pause"
            raise UserError(what, key="trainer.stop_at", received=trainer["stop_at"], fix="trainer.stop_at=null")
        if not cfg["ensemble"]["_target_"].endswith(".NoEnsemble"):
            raise UserError(
                "an ensemble does not pause", key=_KEY, received=" ".join(job.overrides), fix="ensemble=none"
            )
        steps, epochs = trainer["steps"], trainer["epochs"]
        length = steps if unit == "step" else (epochs if steps is None else None)
        first = trainer["validate_every"] if trainer["validate_unit"] == unit else None
        terms = Terms(metrics["monitor"], metrics["mode"], length, first)
        if found is not None and found != terms:
            what = "jobs that compete have the same length, validations and monitored value"
            fix = "sweep over other keys than trainer.epochs, trainer.steps, trainer.validate_* and metrics.monitor"
            raise UserError(what, key=_KEY, received=" ".join(job.overrides), fix=fix)
        found = terms
    assert found is not None, "there are jobs"
    return found


def _rungs(options: HalvingConfig, terms: Terms) -> list[int]:
    """Return the rungs below the end of the jobs.

    Raises:
        UserError: They do not rise, lie before the first value, or cannot be told.
    """
    rungs, key, length = options.rungs, f"{_KEY}.rungs", terms.length
    if rungs is None:
        if length is None:
            what = f"how many {options.unit}s the jobs have is known from the data only"
            raise UserError(what, key=key, fix=f"name the rungs: {key}=[…], or trainer.{options.unit}s=N")
        count = math.ceil(math.log(max(1, length / options.first), options.eta)) + 1
        rungs, key = [options.first * options.eta**power for power in range(count)], f"{_KEY}.first"
    if not rungs or rungs[0] < 1 or sorted({*rungs}) != list(rungs):
        raise UserError("rungs rise from 1 or more", key=key, expected="such as [1, 3, 9]", received=rungs)
    if terms.first_value is not None and rungs[0] < terms.first_value:
        what = f"there is no value to compare the jobs by: the first validation comes after {terms.first_value}"
        raise UserError(what, key=key, expected=f"at least {terms.first_value}", received=rungs[0])
    below = [rung for rung in rungs if length is None or rung < length]
    if not below:
        raise UserError("no rung lies before the end of the jobs", key=key, expected=f"below {length}", received=rungs)
    return below


def hyperband_shares(stages: int, eta: int) -> list[int]:
    """Return how many jobs each bracket of Hyperband begins with; the first begins at the first rung.

    Args:
        stages: Rungs, the end included.
        eta: One in so many goes on.
    """
    return [math.ceil(stages / (left + 1) * eta**left) for left in reversed(range(stages))]


def deal(names: Sequence[str], shares: Sequence[int]) -> list[list[str]]:
    """Deal jobs out in proportion to shares, without regard to what neighbours in a grid have in common.

    Args:
        names: The jobs; each hand keeps their order.
        shares: How much each hand gets.
    """
    mixed = sorted(names, key=lambda name: sha256(name.encode()).digest())
    ends = [round(len(names) * sum(shares[: count + 1]) / sum(shares)) for count in range(len(shares))]
    hands = [{*mixed[start:end]} for start, end in zip([0, *ends], ends)]
    return [[name for name in names if name in hand] for hand in hands]


@dataclass(frozen=True)
class Stage:
    """How far the jobs at a rung are.

    Attributes:
        rung: Its number; the last one is the end of the jobs.
        pending: Those that are to come to it and have not.
        ranked: Those that have, the best first.
        out: Those that have and will not go on.
    """

    rung: int
    pending: tuple[str, ...]
    ranked: tuple[str, ...]
    out: tuple[str, ...]


class Bracket:
    """Let the best of a number of jobs go on.

    Who goes on follows from the values at a rung, not from the order in which they came: a job goes on before the
    others have come to its rung only if it is among the best whatever they bring. So repeated sweeps, with more slots
    or fewer, let the same jobs go on.

    Args:
        names: The jobs; of equal values the job that comes first here is the better.
        rungs: Where they pause, in rising order; after the last of them comes their end.
        eta: One in so many goes on from a rung, but at least one.
        mode: Whether `min` or `max` of the value is better.

    Example:
        ```python
        bracket = Bracket(["a", "b", "c"], rungs=[1])
        for name, value in (("a", 0.5), ("b", 0.7), ("c", 0.6)):
            bracket.record(name, reached=1, value=value)
        assert list(bracket.wanted()) == [(1, "b")]
        ```
    """

    def __init__(self, names: Iterable[str], rungs: Iterable[int], *, eta: int = 3, mode: str = "max") -> None:
        self.names, self.rungs, self.mode = tuple(names), tuple(rungs), mode
        self._place = {name: place for place, name in enumerate(self.names)}
        self._values: list[dict[str, float]] = [{} for _ in range(len(self.rungs) + 1)]
        self._lost, self._left_out, self._ended = set[str](), set[str](), set[str]()
        self._places = [len(self.names)]
        for _ in self.rungs:
            self._places.append(max(1, self._places[-1] // eta))

    def record(self, name: str, reached: int, value: float | None, *, ended: bool = False) -> None:
        """Take the value of a job that has come to a rung.

        Args:
            name: The job.
            reached: Rungs that it has come to so far.
            value: Its value; None and NaN never go on.
            ended: Whether it has come to its end, maybe early; then it stands at all rungs with this value.
        """
        for values in self._values if ended else self._values[:reached]:
            values.setdefault(name, math.nan if value is None else value)
        if ended:
            self._ended.add(name)

    def lose(self, name: str) -> None:
        """Take that a job comes to no further rung; its place there is nobody's."""
        self._lost.add(name)

    def leave_out(self, names: Iterable[str]) -> None:
        """Let jobs not go on from where they are, as their checkpoints are gone.

        Args:
            names: The jobs, after their values were recorded.
        """
        self._left_out |= {*names}

    def wanted(self) -> Iterator[tuple[int, str]]:
        """Yield the number of a rung and the name of a job that is to come to it, later rungs first."""
        for stage in reversed([*self.stages()]):
            yield from ((stage.rung, name) for name in stage.pending)

    def out(self) -> list[str]:
        """Return the jobs that have paused and will not go on."""
        return [name for stage in self.stages() for name in stage.out if name not in self._ended]

    def stages(self) -> Iterator[Stage]:
        """Yield what is known of each rung that jobs have come to, or are to come to."""
        rung, last, coming = 0, len(self.rungs), 0
        entrants = self.names
        while entrants or coming:
            values = self._values[rung]
            pending = tuple(name for name in entrants if name not in values and name not in self._lost)
            ranked = self._ranked(rung, entrants)
            waiting = len(pending) + coming
            if rung == last:
                yield Stage(rung, pending, ranked, ())
                return
            further = self._going_on(rung, ranked, waiting)
            safe = {*further, *(self._fit(rung, ranked)[: self._places[rung + 1]] if waiting else ())}
            yield Stage(rung, pending, ranked, tuple(name for name in entrants if name in values and name not in safe))
            coming = max(0, self._places[rung + 1] - len(further)) if waiting else 0
            alone = len(further) == 1 and not waiting  # nobody is left to compare it with
            rung, entrants = last if alone else rung + 1, further

    def _ranked(self, rung: int, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the jobs that have a value at a rung, the best first."""
        values, sign = self._values[rung], -1 if self.mode == "max" else 1
        known = [name for name in names if math.isfinite(values.get(name, math.nan))]
        return tuple(sorted(known, key=lambda name: (sign * values[name], self._place[name])))

    def _fit(self, rung: int, ranked: Iterable[str]) -> list[str]:
        further = self._values[rung + 1]
        return [name for name in ranked if name not in self._left_out or name in further]

    def _going_on(self, rung: int, ranked: tuple[str, ...], waiting: int) -> tuple[str, ...]:
        """Return the jobs that go on from a rung whatever those bring that are to come to it."""
        sure = self._fit(rung, ranked)[: max(0, self._places[rung + 1] - waiting)]
        # Where the sweep was smaller, other jobs may have gone on: they stay in the race.
        before = {*self._values[rung + 1]} - self._ended
        return (*sure, *(name for name in ranked if name in before and name not in sure))
