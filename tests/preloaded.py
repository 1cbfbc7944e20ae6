"""Imported by what forks processes that train: what each would import anew, for longer than it trains."""

from __future__ import annotations

import importlib

from lightkit.sweep.warm_server import PRELOADED

OFTEN = ("encodings.cp437", "lightkit.doctor.checks", "pyarrow.csv", "torch._dynamo")
"""Of which a process that trains for seconds imports each when it comes to it."""

for name in (*PRELOADED, *OFTEN):
    importlib.import_module(name)
