"""From a checked configuration to the parts of a run, one function a part, in the order of their needs."""

from __future__ import annotations

from lightkit.assembly.components import Components, build
from lightkit.assembly.network import Network, build_model, build_network
from lightkit.assembly.parts import (
    build_console,
    build_engine,
    build_logger,
    build_splits,
    build_store,
    build_timetable,
)

__all__ = [
    "Components",
    "Network",
    "build",
    "build_console",
    "build_engine",
    "build_logger",
    "build_model",
    "build_network",
    "build_splits",
    "build_store",
    "build_timetable",
]
