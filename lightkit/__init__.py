"""lightkit: PyTorch training from a checked configuration.

The public names are imported when they are first used, so that `import lightkit` costs nothing and the command line
answers before torch is there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkit.common.errors import UserError as UserError
    from lightkit.config.compose import compose as compose
    from lightkit.loggers import Logger as Logger
    from lightkit.runner import Runner as Runner
    from lightkit.runner.predictor import load as load
    from lightkit.runner.trained_ensemble import load_ensemble as load_ensemble
    from lightkit.trainer import Trainer as Trainer

__version__ = "0.1.0"
__all__ = ["Logger", "Runner", "Trainer", "UserError", "__version__", "compose", "load", "load_ensemble"]

_HOME = {
    "Logger": "lightkit.loggers",
    "Runner": "lightkit.runner",
    "Trainer": "lightkit.trainer",
    "UserError": "lightkit.common.errors",
    "compose": "lightkit.config",
    "load": "lightkit.runner.predictor",
    "load_ensemble": "lightkit.runner.trained_ensemble",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'lightkit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
