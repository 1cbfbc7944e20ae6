"""lightkit: PyTorch training from a checked configuration.

The public names are imported when they are first used, so that `import lightkit` costs nothing and the command line
answers before torch is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightkit.common.exports import exporting

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

_HOME = {"Logger": "loggers", "Runner": "runner", "Trainer": "trainer", "UserError": "common.errors",
         "compose": "config", "load": "runner.predictor", "load_ensemble": "runner.trained_ensemble"}  # fmt: skip
__getattr__ = exporting(__name__, _HOME)
