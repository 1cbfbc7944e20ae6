"""A callback that ends the process at the first optimizer step; imports nothing of its own before that."""

from __future__ import annotations

import os
import sys

from lightkit.trainer.callbacks import Callback
from lightkit.trainer.loop import Trainer

HEAVY = (
    "IPython", "PIL", "lightning", "matplotlib", "pandas", "pyarrow", "rich", "scipy", "sklearn", "sympy",
    "tensorboard", "timm", "torch._dynamo", "torch._inductor", "torch.utils.tensorboard", "torchensemble",
    "torchmetrics", "torchvision", "triton",
)  # fmt: skip
"""Modules that are slow to import and have no place before the first step."""


class FirstStep(Callback):
    """Says which slow modules are loaded and ends the process at once, without the run's closing work."""

    def on_step(self, trainer: Trainer) -> None:
        """After the first optimizer step."""
        loaded = [name for name in HEAVY if name in sys.modules]
        sys.stderr.write(f"{len(loaded)} slow modules: {' '.join(loaded)}\n")
        sys.stderr.flush()
        os._exit(0)
