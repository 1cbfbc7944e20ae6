"""Imported by what forks processes that train: what each would import anew, for longer than it trains."""

from __future__ import annotations

import importlib

from lightkit.sweep.warm_server import PRELOADED

OFTEN = (
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "encodings.cp437",
    "lightkit.data.class_folders",
    "lightkit.data.csv_reader",
    "lightkit.data.table_reader",
    "lightkit.doctor.checks",
    "lightkit.doctor.data.leaks",
    "lightkit.doctor.data.order",
    "lightkit.doctor.data.overlap",
    "pyarrow.csv",
    "tensorboard.plugins.hparams.metadata",
    "torch._dynamo",
    "torchmetrics.classification.accuracy",
    "torchmetrics.classification.auroc",
    "torchmetrics.classification.f_beta",
    "torchmetrics.classification.precision_recall",
)
"""Of which a process that trains for seconds imports each when it comes to it."""

for name in (*PRELOADED, *OFTEN):
    importlib.import_module(name)
