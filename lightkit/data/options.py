"""How batches are made."""

from __future__ import annotations

from dataclasses import dataclass

from lightkit.common.errors import UserError


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are made.

    Args:
        batch_size: Samples per batch, over all processes that train together.
        shuffle: Draw a new order each epoch; otherwise rows come as they are.
        drop_last: Leave out a last smaller batch.
        seed: Seed of the order.
        pin_memory: Put batches into page-locked memory.
        num_workers: Processes that read samples, for data sets without `take`.
        persistent_workers: Keep them alive between epochs.
        prefetch_factor: Batches each of them prepares ahead.
        timeout_seconds: Longest wait for a batch of those processes; None or 0 waits for as long as it takes.
        replica: Which part of every batch to read, where processes share the batches.
        replicas: Number of those parts.
        split: Name of the split, for messages.

    Raises:
        UserError: A value is out of range.
    """

    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    pin_memory: bool = False
    num_workers: int = 0
    persistent_workers: bool = True
    prefetch_factor: int = 2
    timeout_seconds: float | None = None
    replica: int = 0
    replicas: int = 1
    split: str = ""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_workers", 0), ("prefetch_factor", 1), ("timeout_seconds", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError("too small", argument=name, expected=f"{least} or more", received=value)
