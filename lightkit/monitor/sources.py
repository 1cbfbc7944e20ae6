"""The best way there is to ask the GPUs of this machine."""

from __future__ import annotations

from lightkit.monitor.gpus import Source, Unavailable
from lightkit.monitor.nvml import Nvml
from lightkit.monitor.smi import Smi


def open_source() -> Source:
    """NVML, else `nvidia-smi`, else a source without GPUs that says why."""
    reasons = []
    for make in (Nvml, Smi):
        try:
            return make()
        except Unavailable as error:
            reasons.append(str(error))
    return Source("; ".join(reasons))
