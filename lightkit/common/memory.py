"""Telling that memory ran out, without importing torch."""

from __future__ import annotations

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "_alloc_failed")
"""The last one is how NVIDIA's libraries say it: CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED, ..."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the GPU or of the machine."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # PyTorch's allocator of the CPU has no error class of its own.
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)
