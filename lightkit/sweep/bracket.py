"""Which of the jobs that compete go on from rung to rung."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


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
