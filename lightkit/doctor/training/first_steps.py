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
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_out_of_memory, user_frame
from lightkit.common.lengths import Length
from lightkit.doctor.after.traceback import explain
from lightkit.doctor.finding import Finding, able
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import kept_graphs, named, sized
from lightkit.runner.faults import as_user_error
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
ENDS = "a run would end here too"


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
            self.graphs.append(kept_graphs(self._learner))
            self.alive.append(sum(issubclass(type(each), torch.Tensor) and _has_graph(each) for each in objects))
        self._until += time.perf_counter() - self.times[-1]  # looking takes longer than a small step
        if time.monotonic() > self._until and len(self.times) > _FEWEST:
            trainer.stop("the time for first steps is over")


def _has_graph(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None


@able(always=True)
def check(patient: Patient) -> Iterator[Finding]:
    """Make a few steps, the last one of the first epoch, and a validation, with callbacks and metrics of the run."""
    learner, look = patient.learner(), None
    train = learner.data.train.with_rows(learner.data.train.rows)
    with closing(train):
        try:
            data = _few_judged(patient, replace(learner.data, train=train))
            look = _Look(learner)
            learner = replace(learner, data=data, callbacks={**learner.callbacks, NAME: look})
            _train(patient, learner, Length(_STEPS, "step"))
            patient.seconds_per_row = _seconds_per_row(learner, look)
            _to_last_window(learner)
            _train(patient, learner, Length(learner.state.epoch + 1))
        except Exception as error:
            patient.step_error = in_short(error)
            yield failure(error, NAME, graphs=kept_graphs(learner))
            return
    validated = "" if data.val is None else f", and {sized(data.val.num_samples, 'row')} of val were evaluated"
    yield Finding(NAME, "ok", f"{sized(learner.state.step, 'step')} of the run's own loop went through{validated}")
    yield from _growing(look)


def _few_judged(patient: Patient, data: Any) -> Any:
    if data.val is None:
        return data
    most = min(_VALIDATED, data.val.num_samples)
    return data if most == data.val.num_samples else data.shortened({"val": most}, seed=patient.cfg.seed)


def _train(patient: Patient, learner: Learner, stop: Length) -> None:
    """Train up to a length that counts from the beginning of the run."""
    metrics, options = patient.cfg.metrics, patient.cfg.trainer.nonfinite
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
    last = (timetable.epoch_samples - 1) // size * size
    if state.epoch == 0 and state.samples_done < last:
        state.samples_done = last


def _seconds_per_row(learner: Learner, look: _Look) -> float:
    steps = [after - before for before, after in pairwise(look.times)]
    return min(steps) / learner.timetable.window(0)


def failure(error: Exception, name: str, *, graphs: dict[str, int] | None = None) -> Finding:
    """Say what an error means that would end the run: as `lightkit train` and `lightkit explain` do.

    Args:
        error: The error.
        name: The check in which it came.
        graphs: Attributes that hold results of earlier steps.
    """
    if is_out_of_memory(error):
        return Finding(name, "error", "memory ran out", ENDS, "data.batch_size", "device.batch_size=auto")
    shown = error if isinstance(error, UserError) else as_user_error(error)
    place = user_frame(error)
    at = f" ({place})" if place else ""
    if graphs and "a second time" in str(error):
        names = [each.rpartition(".")[2] for each in graphs]
        measured = (
            f"the backward pass goes through the step before a second time{at}: "
            f"{named([f'`{each}`' for each in graphs])} is kept from it with its graph"
        )
        fix = "; ".join(f"self.{each} = self.{each}.detach() at the beginning of forward" for each in names[:2])
        return Finding(GRAPH, "error", measured, ENDS, "model", fix, {"graphs": graphs})
    if shown is not None:
        received = f", received {shown.received}" if getattr(shown, "received", None) is not None else ""
        return Finding(name, "error", f"{shown.what}{received}{at}", ENDS, shown.key or "", shown.fix or "")
    known = explain(in_short(error)).known[:1]
    fix = "; ".join(text for each in known for text in (each.fix, each.key) if text)
    measured = f"{in_short(error)}{at}"
    why = f"{known[0].cause}: {ENDS}" if known else ENDS
    return Finding(name, "error", measured, why, "model", fix or "LIGHTKIT_DEBUG=1 lightkit train shows where")


def _growing(look: _Look) -> Iterator[Finding]:
    """Find graphs that have more operations, and tensors of which there are more, after each step."""
    grown = [
        name
        for name in look.graphs[-1]
        if len(look.graphs) > 2 and _grows([graphs.get(name, 0) for graphs in look.graphs])
    ]
    more = look.alive[-1] - look.alive[-2] if len(look.alive) > 3 and _grows(look.alive[1:]) else 0
    if grown:
        sizes = [graphs.get(grown[0], 0) for graphs in look.graphs]
        attribute = grown[0].rpartition(".")[2]
        measured = (
            f"`{grown[0]}` keeps the graph of every step: {', '.join(map(str, sizes))} operations after steps 1 to "
        )
        fix = f"keep no graph between steps: self.{attribute} = value.detach(), or value.item() for a number"
        yield _kept(f"{measured}{len(sizes)}", fix, {"attribute": grown[0], "operations": sizes})
    elif more:
        measured = (
            f"after each step {sized(more, 'more tensor')} with a graph stay alive: {', '.join(map(str, look.alive))}"
        )
        fix = "keep no result of a step: value.detach(), or value.item() for a number, where it is appended or added up"
        yield _kept(measured, fix, {"tensors": look.alive})


def _grows(sizes: list[int]) -> bool:
    return all(after > before for before, after in pairwise(sizes))


def _kept(measured: str, fix: str, numbers: dict[str, Any]) -> Finding:
    why = "memory and time of a step grow until the run dies: what is kept holds on to all that it was computed from"
    return Finding(GRAPH, "error", measured, why, "model", fix, numbers)
