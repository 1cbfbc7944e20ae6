"""Alike members with their weights in one stack, and the state of each as a run of its own would have it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightkit.checkpoint import content
from lightkit.data.loaders import Batches, Loader
from lightkit.ensemble.unlike import UnlikeSteps, dropouts, made_alike, own_settings
from lightkit.ensemble.vmapped import Computation, StackedModel, StackedTask
from lightkit.loggers.base import Logger
from lightkit.metrics import SplitMetrics
from lightkit.metrics.stacked import StackedMetrics
from lightkit.trainer.average import Ema, NoAverage
from lightkit.trainer.learner import Learner
from lightkit.trainer.report import Clock, Reporter
from lightkit.trainer.state import State


class RowLog(Logger):
    """Keeps what a member logs, to be written when it has ended."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Keep a row."""
        self.rows.append({"step": step, "epoch": epoch, "time": round(time.time(), 3), **values})


@dataclass(eq=False)
class StackMember:
    """One of several members that train together: what it has to itself. Callbacks take it for their trainer."""

    name: str
    """Its name."""
    learner: Learner
    """As it was built; the weights in training are those of the stack."""
    history: RowLog = field(default_factory=RowLog)
    """What it has logged."""
    best: dict[str, Any] | None = None
    """Content of its checkpoint of the best monitored value; None before the first."""
    last: dict[str, Any] | None = None
    """Content of its last checkpoint; None until it has ended."""
    lost: str | None = None
    """Why it has to be trained alone; None while it has not."""
    improved: bool = False
    """Whether the newest monitored value is the best so far."""

    def __post_init__(self) -> None:
        learner = self.learner
        self.model, self.optimizer, self.state = learner.model, learner.optimizer, learner.state
        self.clock = SharedClock()
        self.report = Reporter(self.history, self.state, learner.timetable, self.clock)

    def stop(self, reason: str) -> None:
        """End its training with the epoch under way."""
        self.state.stop_reason = reason

    def log(self, values: Mapping[str, float]) -> None:
        """Log values of its own."""
        self.report.values(dict(values))

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the weights in training."""
        callbacks = {name: part.state_dict() for name, part in self.learner.callbacks.items()}
        return {
            "state": self.state.state_dict(),
            "callbacks": {name: state for name, state in callbacks.items() if state},
            "rows": list(self.history.rows),
            "best": self.best,
            "last": self.last,
            "lost": self.lost,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.state.load_state_dict(saved["state"])
        for name, state in saved["callbacks"].items():
            self.learner.callbacks[name].load_state_dict(state)
        self.history.rows = list(saved["rows"])
        self.best, self.last, self.lost = saved["best"], saved["last"], saved["lost"]


class SharedClock(Clock):
    """Tells all members what the clock of the loop has read."""

    def __init__(self) -> None:
        super().__init__(lambda: self.machine)
        self.speed: dict[str, float] = {}
        self.machine: Mapping[str, float] = {}

    def read(self, samples: int) -> dict[str, float]:
        """See `Clock.read`."""
        return self.speed


class StackedLoader:
    """Batches of many members, `(M, B, ...)` each: of every member its own rows, order and augmentation.

    Args:
        loaders: Those of the members, with as many rows each.
    """

    def __init__(self, loaders: Sequence[Loader]) -> None:
        first = loaders[0]
        self.loaders = list(loaders)
        self.num_samples, self.batch_size, self.epoch_samples = first.num_samples, first.batch_size, first.epoch_samples
        self.options, self.source = first.options, first.source

    def __len__(self) -> int:
        return len(self.loaders[0])

    @property
    def plain(self) -> bool:
        """Tell whether the rows of all members can be read from the data set at once."""
        return all(
            loader.source is self.source
            and loader.mixup is None
            and not loader.prepare.augment
            and loader.prepare.normalizer is None
            for loader in self.loaders
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Leave out all members but these, from the next epoch on."""
        self.loaders = [self.loaders[row] for row in rows]

    def epoch(self, epoch: int, start: int = 0, *, place: Callable[[Any], Iterable[Any]] = iter) -> Batches:
        """Yield the batches of an epoch from a sample on; see `Loader.epoch`."""
        if not self.plain:
            for batches in zip(*(loader.epoch(epoch, start, place=place) for loader in self.loaders), strict=True):
                yield tuple(torch.stack(parts) for parts in zip(*batches, strict=True))
            return
        orders = torch.stack([loader.order(epoch) for loader in self.loaders])
        for first in range(start, self.epoch_samples, self.batch_size):
            rows = orders[:, first : min(first + self.batch_size, self.epoch_samples)]
            x, y = self.source.take(rows.reshape(-1))
            yield x.unflatten(0, rows.shape), y.unflatten(0, rows.shape)

    def close(self) -> None:
        """Close the loaders of the members."""
        for loader in self.loaders:
            loader.close()


def same_rows(one: Loader, other: Loader) -> bool:
    """Tell whether two loaders give the same samples."""
    return one.source is other.source and one.rows.equal(other.rows)


class Stack:
    """The members in training, and the parts that train them at once.

    Args:
        members: Alike: see `lightkit.ensemble.alike.unlikeness`.
    """

    def __init__(self, members: Sequence[StackMember]) -> None:
        self.members, self.active = list(members), list(members)
        learners = [member.learner for member in members]
        first = learners[0]
        lead = max(learners, key=lambda one: len(dropouts(one.model)))  # only what it drops others can drop, too
        unlike = any(dropouts(one.model) != dropouts(lead.model) for one in learners)
        networks = [one.network for one in learners] if unlike else []
        self.model = StackedModel([learner.model for learner in learners], template=lead.model)
        self.computation = Computation(self.model, lead.network, first.task, first.criterion, networks=networks)
        self.loader = StackedLoader([learner.data.train for learner in learners])
        judged = [learner.data.val for learner in learners if learner.data.val is not None]
        self.judged = StackedLoader(judged) if judged and not all(map(same_rows, judged, judged[1:])) else None
        optimizer, settings = stacked_optimizer(first, self.model), [*map(own_settings, learners)]
        self.steps = UnlikeSteps(optimizer, settings)
        if any(own != settings[0] for own in settings):
            optimizer.step = self.steps  # type: ignore[method-assign, assignment]
        scheduler = copy.copy(first.scheduler)
        scheduler.optimizer = optimizer
        kept = first.average.decay if isinstance(first.average, Ema) else None
        metrics = {
            split: StackedMetrics(own, len(members))
            for split, own in first.metrics.items()
            if isinstance(own, SplitMetrics)
        }
        self.learner = replace(
            first,
            data=replace(first.data, train=self.loader, val=self.judged or first.data.val),  # type: ignore[arg-type]
            model=self.model,
            network=self.model,
            task=StackedTask(self.computation, shared=self.judged is None),
            optimizer=optimizer,
            scheduler=scheduler,
            metrics=metrics,  # type: ignore[arg-type]
            average=NoAverage() if kept is None else Ema(self.model, kept),
            callbacks={},
            store=None,
            state=State(),
        )

    def gather(self) -> dict[str, Any]:
        """Return the state of all members in training, in the layout of a checkpoint with stacked tensors."""
        self.steps.collect()
        return content.gather(**self._stateful())

    def _stateful(self) -> dict[str, Any]:
        """Return the stateful parts, as a checkpoint names them."""
        learner = self.learner
        return {
            "model": self.model,
            "optimizer": learner.optimizer,
            "scheduler": learner.scheduler,
            "precision": learner.engine.precision,
            "callbacks": {},
            "metrics": {"train": learner.metrics["train"]},
            "state": learner.state,
            "ema": learner.average if isinstance(learner.average, Ema) else None,
        }

    def contents(self, members: Sequence[StackMember]) -> list[dict[str, Any]]:
        """Return the content of an ordinary checkpoint of some members in training, with tensors of its own."""
        if not members:
            return []
        stacked, metrics = self.gather(), self.learner.metrics["train"]
        places = [self.active.index(member) for member in members]
        rows = torch.tensor(places, device=next(iter(stacked["model"].values())).device)
        versions = getattr(members[0].learner.model.state_dict(), "_metadata", {})  # of each of its modules
        optimizer, ema = stacked["optimizer"], stacked["ema"]
        models = _cut(stacked["model"], rows)
        states = {name: _cut(values, rows) for name, values in optimizer["state"].items()}
        averages = None if ema is None else _cut(ema["weights"], rows)
        return [
            {
                **stacked,
                "callbacks": {name: part.state_dict() for name, part in member.learner.callbacks.items()},
                "metrics": {"train": metrics.state_of(place)},  # type: ignore[union-attr]
                "state": member.state.state_dict(),
                "model": models[number],
                "model_versions": {
                    path: facts["version"] for path, facts in versions.items() if facts.get("version", 1) != 1
                },
                "optimizer": {
                    "kind": optimizer["kind"],
                    "state": {name: values[number] for name, values in states.items()},
                    "groups": self.steps.groups(place, optimizer["groups"]),
                },
                "scheduler": dict(stacked["scheduler"]),
                "ema": None if averages is None else {"steps": ema["steps"], "weights": averages[number]},
            }
            for number, (place, member) in enumerate(zip(places, members))
        ]

    def finite(self) -> list[bool]:
        """Tell of each member in training whether its weights are finite."""
        sums = [weight.detach().reshape(len(weight), -1).sum(1) for weight in self.model.parameters()]
        return torch.isfinite(torch.stack([part.double() for part in sums])).all(0).tolist()

    def leave(self, members: Sequence[StackMember]) -> None:
        """Take members out of training."""
        kept = [row for row, member in enumerate(self.active) if member not in members]
        self.active = [self.active[row] for row in kept]
        self.steps.collect()
        if not kept:
            return  # the tensors stay as they are: nothing computes with them any more
        rows = torch.tensor(kept, device=next(self.model.parameters()).device)
        learner = self.learner
        self.model.keep(rows)
        self.steps.keep(kept)
        self.computation.keep(kept)
        self.loader.keep(kept)
        if self.judged is not None:
            self.judged.keep(kept)
        for metrics in learner.metrics.values():
            metrics.keep(rows)  # type: ignore[union-attr]
        for values in learner.optimizer.state.values():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.ndim:
                    values[name] = value.index_select(0, rows)
        if isinstance(learner.average, Ema):
            learner.average.keep_rows(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on with the same bits."""
        return {
            "stack": self.gather(),
            "active": [member.name for member in self.active],
            "members": {member.name: member.state_dict() for member in self.members},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a state, of the same members."""
        for member in self.members:
            member.load_state_dict(saved["members"][member.name])
        self.leave([member for member in self.members if member.name not in saved["active"]])
        content.apply(saved["stack"], **self._stateful())
        self.steps.keep(range(len(self.active)))


def stacked_optimizer(learner: Learner, model: StackedModel) -> Optimizer:
    """Build the optimizer of a member anew, over the stacked parameters; it works element by element."""
    optimizer = learner.optimizer
    names = {parameter: name for name, parameter in learner.model.named_parameters()}
    groups = [
        {**group, "params": [model.weights[names[parameter]] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    return made_alike(optimizer, groups)


def _cut(stacked: Mapping[str, Any], rows: Tensor) -> list[dict[str, Any]]:
    """Cut tensors `(M, ...)` into those of single members; what has no dimensions is the same for all."""
    columns: dict[str, Sequence[Any]] = {}
    for name, value in stacked.items():
        if isinstance(value, Tensor) and value.ndim:
            columns[name] = value.detach().index_select(0, rows).unbind(0)
        else:
            columns[name] = [value.clone() if isinstance(value, Tensor) else value] * len(rows)
    return [{name: column[place] for name, column in columns.items()} for place in range(len(rows))]
