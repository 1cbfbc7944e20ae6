"""How batches are made."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lightkit.common.argument_checks import check_range


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are made.

    Args:
        batch_size: Samples per batch, over all processes that train together.
        eval_batch_size: Samples per batch in validation and test; None takes `batch_size`.
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

    batch_size: int = 64
    eval_batch_size: int | None = None
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
        check_range("batch_size", self.batch_size, low=1, what="too small")
        check_range("num_workers", self.num_workers, low=0, what="too small")
        check_range("prefetch_factor", self.prefetch_factor, low=1, what="too small")
        check_range("timeout_seconds", self.timeout_seconds, low=0, what="too small")
        check_range("eval_batch_size", self.eval_batch_size, low=1, what="too small")

    def for_evaluation(self, split: str) -> LoaderOptions:
        """Return these options for the batches of an evaluation: in order, none left out.

        Args:
            split: Name of the split.
        """
        size = self.eval_batch_size or self.batch_size
        return replace(self, batch_size=size, shuffle=False, drop_last=False, split=split)
