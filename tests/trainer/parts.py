"""Trainers made of small real parts, without any configuration."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from lightkit.data import DataInfo, TensorData, build_data
from lightkit.device import Engine
from lightkit.loggers.base import Logger
from lightkit.metrics import SplitMetrics
from lightkit.optim.schedulers import Schedule
from lightkit.trainer import Supervised, Timetable, Trainer
from lightkit.trainer.learner import Learner, Network
from lightkit.trainer.services import Services

CPU = torch.device("cpu")


class Recorder(Logger):
    """Keeps everything that is logged."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def scalars(self, values: dict[str, float], *, step: int, epoch: int) -> None:
        self.rows.append((step, dict(values)))

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(step, values[name]) for step, values in self.rows if name in values]


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def points(rows: int = 50, features: int = 4) -> TensorData:
    """A linear regression without noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, features, generator=generator)
    y = x @ torch.arange(1.0, features + 1)
    return TensorData(x, y, DataInfo("regression", (features,), 1))


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def trainer(
    model: nn.Module | None = None,
    *,
    lr: float = 0.05,
    batch_size: int = 10,
    rows: int = 50,
    clip_norm: float | None = None,
    momentum: float = 0.9,
    seed: int = 0,
    timetable: dict[str, Any] | None = None,
    **changes: Any,
) -> Trainer:
    """A trainer over `rows` regression rows, 20 % of them for validation; `changes` are of any of its parts."""
    split = {"by": "random", "val": 0.2, "test": 0.0}
    data = build_data(dataset=points(rows), split=split, batch_size=batch_size, seed=seed)
    if not changes.pop("validates", True):
        data = replace(data, val=None)
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    options = {"epochs": 2, "log_steps": 1} | (timetable or {})
    times = Timetable(data.train.epoch_samples, data.train.batch_size, **options)
    scheduler = Schedule(optimizer, total_steps=max(times.total_steps, 1), steps_per_epoch=times.steps_per_epoch)
    hooks = {str(index): callback for index, callback in enumerate(changes.pop("callbacks", ()))}
    parts: dict[str, Any] = {
        "engine": Engine("cpu", clip_norm=clip_norm, seed=seed),
        "data": data,
        "model": model,
        "network": model,
        "made": Network(model),
        "task": Supervised(),
        "criterion": nn.MSELoss(),
        "optimizer": optimizer,
        "scheduler": scheduler,
        "timetable": times,
        "metrics": {split: SplitMetrics(split, dict, device=CPU) for split in ("train", "val")},
        "callbacks": hooks,
    }
    learner = Learner(**parts | _taken(changes, Learner))
    services = Services(**{"logger": Recorder()} | _taken(changes, Services))
    return Trainer(learner, services, **changes)


def _taken(changes: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The changes that are fields of a class, which are others' no more."""
    names = [field.name for field in fields(kind) if field.name in changes]
    return {name: changes.pop(name) for name in names}


def changed(run: Trainer, **changes: Any) -> Trainer:
    """The same trainer with other parts; what is not named is shared with it."""
    learner = replace(run.learner, **_taken(changes, Learner))
    services = replace(run.services, **_taken(changes, Services))
    return Trainer(learner, services, **{"monitor": run.monitor, "mode": run.mode, "guard": run.guard} | changes)


def stateful(run: Trainer) -> dict[str, Any]:
    """What a checkpoint gathers and applies."""
    return {
        "model": run.model,
        "optimizer": run.optimizer,
        "scheduler": run.scheduler,
        "precision": run.engine.precision,
        "callbacks": {},
        "metrics": {"train": run.learner.metrics["train"]},
        "state": run.state,
    }


def same_weights(one: Trainer, other: Trainer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one.model), weights(other.model), strict=True))


def saving(run: Trainer) -> tuple[Trainer, list[tuple[int, float | None]]]:
    """The same trainer, and the steps and values that it asks a checkpoint for."""
    saved: list[tuple[int, float | None]] = []
    return changed(run, save=lambda value: saved.append((run.state.step, value))), saved
