"""Where and how the numbers are computed: placement, parallelism, precision, seeds, and how the machine is used.

The public names are imported when they are first used: what only asks for GPUs must not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkit.device.engine import Engine
    from lightkit.device.parallel import DataParallel, Parallel, make_parallel
    from lightkit.device.placement import Placement, choose
    from lightkit.device.precision import Bf16, Precision, make_precision
    from lightkit.device.process import MicroSeed, configure_process, seed_everything, set_threads, use_deterministic
    from lightkit.device.stepping import Clip, ClipNorm, ClipValue, make_clip
    from lightkit.monitor.monitor import Monitor, NoMonitor, Watch

__all__ = [
    "Bf16",
    "Clip",
    "ClipNorm",
    "ClipValue",
    "DataParallel",
    "Engine",
    "MicroSeed",
    "Monitor",
    "NoMonitor",
    "Parallel",
    "Placement",
    "Precision",
    "Watch",
    "choose",
    "configure_process",
    "make_clip",
    "make_parallel",
    "make_precision",
    "seed_everything",
    "set_threads",
    "use_deterministic",
]

_HOME = {
    "device.stepping": ("Clip", "ClipNorm", "ClipValue", "make_clip"),
    "device.engine": ("Engine",),
    "device.parallel": ("DataParallel", "Parallel", "make_parallel"),
    "device.placement": ("Placement", "choose"),
    "device.precision": ("Bf16", "Precision", "make_precision"),
    "monitor.monitor": ("Monitor", "NoMonitor", "Watch"),
    "device.process": ("MicroSeed", "configure_process", "seed_everything", "set_threads", "use_deterministic"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    home = next((module for module, names in _HOME.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'lightkit.device' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lightkit.{home}"), name)
    globals()[name] = value
    return value
