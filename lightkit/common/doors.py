"""What is chosen by a name alone, and the classes and functions behind the names that lightkit brings.

A project or an installed package adds names of its own: see `lightkit.config.doors`. Nothing may compare such a name;
what one does is an attribute of the class or function behind it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

SHIPPED: Mapping[str, Mapping[str, str]] = {
    "sweep.engine": {
        "local": "lightkit.sweep.engines.local.LocalEngine",
        "slurm": "lightkit.sweep.engines.slurm.SlurmEngine",
        "ray": "lightkit.sweep.engines.ray.RayEngine",
    },
}
"""By the key or command that takes the name: names, each with the dotted path of what it stands for."""


def import_path(path: str) -> Any:
    """Import the object at a dotted path of lightkit's own."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
