"""Trainers made of small real parts, without any configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightkit.data import DataInfo, TensorData, build_data
from lightkit.device import Engine
from lightkit.loggers.base import Logger
from lightkit.metrics import SplitMetrics
from lightkit.optim.schedulers import Schedule
from lightkit.trainer import Supervised, Timetable, Trainer

CPU = torch.device("cpu")


class Recorder(Logger):
    """Keeps everything that is logged."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def scalars(self, values: dict[str, float], *, step: int, epoch: int) -> None:
        self.rows.append((step, dict(values)))

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(step, values[name]) for step, values in self.rows if name in values]


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
    """A trainer over `rows` regression rows, 20 % of them for validation."""
    data = build_data(
        dataset=points(rows), split={"by": "random", "val": 0.2, "test": 0.0}, batch_size=batch_size, seed=seed
    )
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    times = Timetable(
        data.train.epoch_samples, data.train.batch_size, **{"epochs": 2, "log_steps": 1} | (timetable or {})
    )
    scheduler = Schedule(optimizer, total_steps=max(times.total_steps, 1), steps_per_epoch=times.steps_per_epoch)
    return Trainer(
        model,
        data.train,
        data.val,
        criterion=nn.MSELoss(),
        optimizer=optimizer,
        scheduler=scheduler,
        timetable=times,
        engine=Engine("cpu", clip_norm=clip_norm, seed=seed),
        train_metrics=SplitMetrics("train", dict, device=CPU),
        val_metrics=SplitMetrics("val", dict, device=CPU),
        **{"logger": Recorder(), "task": Supervised()} | changes,
    )
