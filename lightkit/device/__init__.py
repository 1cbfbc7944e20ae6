"""Where and how the numbers are computed: placement, parallelism, precision, seeds, and how the machine is used.

The public names are imported when they are first used: what only asks for GPUs must not wait for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightkit.common.exports import exporting

if TYPE_CHECKING:
    from lightkit.device.engine import Engine
    from lightkit.device.parallel import Parallel
    from lightkit.device.process import configure_process

__all__ = ["Engine", "Parallel", "configure_process"]
_HOME = {"Engine": "engine", "Parallel": "parallel", "configure_process": "process"}
__getattr__ = exporting(__name__, _HOME)
