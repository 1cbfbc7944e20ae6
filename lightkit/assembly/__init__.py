"""From a checked configuration to the parts of a run, one function a part, in the order of their needs."""

from __future__ import annotations

from lightkit.assembly.learner import build, build_learner, build_own, build_shared, build_twin
from lightkit.assembly.network import build_model, build_network
from lightkit.assembly.parts import (
    build_console,
    build_engine,
    build_logger,
    build_splits,
    build_store,
    build_timetable,
)
from lightkit.trainer.learner import Learner, Network, Shared

__all__ = [
    "Learner",
    "Network",
    "Shared",
    "build",
    "build_console",
    "build_engine",
    "build_learner",
    "build_logger",
    "build_model",
    "build_network",
    "build_own",
    "build_shared",
    "build_splits",
    "build_store",
    "build_timetable",
    "build_twin",
]
