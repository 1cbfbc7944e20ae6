"""How exact products of fp32 matrices are: one setting for the whole process."""

from __future__ import annotations

import warnings

import torch

LEVELS = ("highest", "high", "medium")


def set_matmul(level: str, *, convolutions: bool) -> None:
    """Set how fp32 matrix products and convolutions are computed.

    PyTorch has newer names for this (`torch.backends.cuda.matmul.fp32_precision`), which the calls here set as well.
    Setting only those makes it refuse to read the older ones, with an error in the middle of whatever library asks.

    Args:
        level: `highest` computes in fp32, `high` in TF32 where there is one, `medium` in bfloat16 where that pays.
        convolutions: Let convolutions and recurrent layers of cuDNN use TF32; PyTorch does by default.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions recommend the newer names
        torch.set_float32_matmul_precision(level)
        torch.backends.cudnn.allow_tf32 = convolutions
