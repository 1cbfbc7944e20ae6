"""Imported by what forks processes that train: what each would import anew, for longer than it trains."""

from __future__ import annotations

import importlib

from lightkit.sweep.warm_server import PRELOADED

for name in PRELOADED:
    importlib.import_module(name)
