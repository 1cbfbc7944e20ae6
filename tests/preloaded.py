"""Imported by what forks processes that train: what each would import anew, for longer than it trains."""

from __future__ import annotations

import importlib

for name in (
    "lightkit.data.shapes",
    "lightkit.data.tables",
    "lightkit.metrics.drawing",
    "lightkit.metrics.figures",
    "lightkit.models",
    "lightkit.runner",
    "psutil",
    "sklearn.datasets",
    "torch.utils.serialization.config",
    "torch.utils.tensorboard",
    "torchmetrics.classification",
    "torchmetrics.regression",
):
    importlib.import_module(name)
