"""Where and how the numbers are computed: placement, parallelism, precision, seeds, and how the machine is used.

The public names are imported when they are first used: what only asks for GPUs must not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkit.device.engine import Engine
    from lightkit.device.parallel import Parallel
    from lightkit.device.process import configure_process

__all__ = ["Engine", "Parallel", "configure_process"]
_HOME = {"Engine": "engine", "Parallel": "parallel", "configure_process": "process"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'lightkit.device' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"lightkit.device.{_HOME[name]}"), name)
    return value
