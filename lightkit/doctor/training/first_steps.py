"""The first steps of the run, made by the loop that trains: what fails there would end the run as well."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from lightkit.assembly import Learner
from lightkit.common.failures import in_short, user_frame
from lightkit.common.lengths import Length
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, able, named, sized
from lightkit.doctor.traceback import ENDS, failure
from lightkit.doctor.training.probing import kept_graphs
from lightkit.trainer import Trainer
from lightkit.trainer.callbacks import Callback, Training
from lightkit.trainer.guard import Guard, SkipGuard

NAME, GRAPH = "training step", "kept graph"
_STEPS, _FEWEST, _WATCHED = 40, 4, 6
"""Most steps at the beginning, those that are made however long they take, and those after which graphs are counted."""
_SECONDS = 1.5
"""Time after which no further step is made."""
_VALIDATED = 256
"""Most rows of the validation."""


class _Look(Callback):
    """Looks at what is still there after each step, and ends training when the time is over."""

    def __init__(self, learner: Learner) -> None:
        self._learner, self._until = learner, math.inf
        self.graphs: list[dict[str, int]] = []
        self.alive: list[int] = []
        self.times = [time.perf_counter()]

    def on_step(self, trainer: Training) -> None:
        """Count what has a graph."""
        self.times.append(time.perf_counter())
        if len(self.times) == 2:  # the first step takes what is only once, too
            self._until = time.monotonic() + _SECONDS
        if len(self.alive) < _WATCHED:
            objects = gc.get_objects()
            kinds = {kind for kind in {*map(type, objects)} if issubclass(kind, torch.Tensor)}
            tensors = [each for each in objects if type(each) in kinds]
            self.graphs.append(kept_graphs(self._learner))
            self.alive.append(sum(each.grad_fn is not None for each in tensors))
        self._until += time.perf_counter() - self.times[-1]  # looking takes longer than a small step
        if time.monotonic() > self._until and len(self.times) > _FEWEST:
            trainer.stop("the time for first steps is over")


@able(always=True)
def check(run: ExaminedRun) -> Iterator[Finding]:
    """Make a few steps, the last one of the first epoch, and a validation, with callbacks and metrics of the run."""
    learner = run.learner()
    train = learner.data.train.with_rows(learner.data.train.rows)
    with closing(train):
        try:
            data = replace(learner.data, train=train)
            if data.val is not None and data.val.num_samples > _VALIDATED:
                data = data.shortened({"val": _VALIDATED}, seed=run.cfg.seed)
            look = _Look(learner)
            learner = replace(learner, data=data, callbacks={**learner.callbacks, NAME: look})
            _train(run, learner, Length(_STEPS, "step"))
            run.seconds_per_row = min(b - a for a, b in pairwise(look.times)) / learner.timetable.window(0)
            _to_last_window(learner)
            _train(run, learner, Length(learner.state.epoch + 1))
        except Exception as error:
            run.step_error, graphs = in_short(error), kept_graphs(learner)
            yield _second_time(error, graphs) if graphs and "a second time" in str(error) else failure(error, NAME)
            return
    validated = "" if data.val is None else f", and {sized(data.val.num_samples, 'row')} of val were evaluated"
    yield Finding(NAME, "ok", f"{sized(learner.state.step, 'step')} of the run's own loop went through{validated}")
    yield from _growing(look)


def _train(run: ExaminedRun, learner: Learner, stop: Length) -> None:
    """Train up to a length that counts from the beginning of the run."""
    metrics, options = run.cfg.metrics, run.cfg.trainer.nonfinite
    learner = replace(learner, timetable=replace(learner.timetable, stop_at=stop))
    guard = Guard(learner.engine.device, eager=True)
    if options.action != "stop":
        guard = SkipGuard(learner.engine.device, limit=options.limit, tell=lambda line: None)
    Trainer(learner, monitor=metrics.monitor, mode=metrics.mode, guard=guard).fit()


def _to_last_window(learner: Learner) -> None:
    """Go on at the last optimizer step of the epoch, which may have fewer rows than the others."""
    timetable, state = learner.timetable, learner.state
    state.stop_reason = None
    size = timetable.accumulate * timetable.batch_size
    if state.epoch == 0:
        state.samples_done = max(state.samples_done, (timetable.epoch_samples - 1) // size * size)


def _second_time(error: Exception, graphs: dict[str, int]) -> Finding:
    """Say which attributes hold the graph of the step before, through which the backward pass went again."""
    place = user_frame(error)
    measured = (
        f"the backward pass goes through the step before a second time{f' ({place})' if place else ''}: "
        f"{named([f'`{each}`' for each in graphs])} is kept from it with its graph"
    )
    names = [each.rpartition(".")[2] for each in graphs][:2]
    fix = "; ".join(f"self.{each} = self.{each}.detach() at the beginning of forward" for each in names)
    return Finding(GRAPH, "error", measured, ENDS, "model", fix, {"graphs": graphs})


def _growing(look: _Look) -> Iterator[Finding]:
    """Find graphs that have more operations, and tensors of which there are more, after each step."""
    sizes = {name: [graphs.get(name, 0) for graphs in look.graphs] for name in look.graphs[-1]}
    grown = [name for name, each in sizes.items() if len(each) > 2 and _grows(each)]
    more = look.alive[-1] - look.alive[-2] if len(look.alive) > 3 and _grows(look.alive[1:]) else 0
    why = "memory and time of a step grow until the run dies: what is kept holds on to all that it was computed from"
    if grown:
        counts = sizes[grown[0]]
        measured = (
            f"`{grown[0]}` keeps the graph of every step: {', '.join(map(str, counts))} operations after steps 1 to "
        )
        attribute = grown[0].rpartition(".")[2]
        fix = f"keep no graph between steps: self.{attribute} = value.detach(), or value.item() for a number"
        numbers: dict[str, Any] = {"attribute": grown[0], "operations": counts}
        yield Finding(GRAPH, "error", f"{measured}{len(counts)}", why, "model", fix, numbers)
    elif more:
        measured = f"after each step {sized(more, 'more tensor')} with a graph stay alive: "
        fix = "keep no result of a step: value.detach(), or value.item() for a number, where it is appended or added up"
        measured += ", ".join(map(str, look.alive))
        yield Finding(GRAPH, "error", measured, why, "model", fix, {"tensors": look.alive})


def _grows(sizes: list[int]) -> bool:
    return all(after > before for before, after in pairwise(sizes))
