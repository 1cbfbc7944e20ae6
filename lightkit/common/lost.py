"""Telling that a worker process of PyTorch's data loader is gone, without importing torch."""

from __future__ import annotations


def is_dead_worker(error: BaseException) -> bool:
    """Whether a `torch.utils.data.DataLoader` noticed that a worker process of its own is gone.

    PyTorch may raise this from a signal handler, in the middle of anything: it says nothing about what was being done.
    """
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
