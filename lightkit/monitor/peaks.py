"""What GPUs can compute at best, by the data sheets of NVIDIA: dense, without sparsity."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lightkit.common.reading import data_beside

PEAKS: Mapping[str, Mapping[str, float]] = data_beside(__file__)
"""TFLOP/s by a part of the name and the kind of numbers: `half`, `tf32`, `fp32` or `fp64`; those that lack a kind have
no fast way to compute it."""
_KINDS = {"bf16": "half", "bf16-true": "half", "fp16": "half"}


def peak_tflops(name: str, precision: str) -> float | None:
    """Return the peak of a GPU in TFLOP/s; None where it is not known, as of a part of a GPU (MIG).

    Args:
        name: As PyTorch tells it: `NVIDIA H100 80GB HBM3`.
        precision: What matrix products are computed in: `bf16`, `fp16`, `tf32`, `fp32` or `fp64`.
    """
    if "MIG" in name:
        return None
    known = [part for part in PEAKS if re.search(rf"\b{re.escape(part)}\b", name)]
    return PEAKS[max(known, key=len)].get(_KINDS.get(precision, precision)) if known else None
