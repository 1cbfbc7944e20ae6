"""Fewer rows than the data have: of a smoke run, and of one that is to learn a few samples by heart."""

from __future__ import annotations

from dataclasses import replace

from omegaconf import DictConfig

from lightkit.data import Data

_WINDOWS = 2
"""Optimizer steps of an epoch of a smoke run."""
_LEAST = 32
"""Rows that are left where there are as many, for folds, shares that are held out, and metrics of classes."""
_EPOCH_STEPS = 25
"""Optimizer steps of an epoch that learns a few samples by heart, again and again."""


def few_rows(trainer: DictConfig, data: Data, seed: int, *, single: bool) -> Data:
    """Return the data with as few rows as the run is to see; as they are where it is to see all.

    Args:
        trainer: The node of the trainer.
        data: All of it.
        seed: Seed of the run.
        single: Whether one model is trained, rather than several on parts of the rows.
    """
    if trainer.smoke:
        kept = _of_smoke(data, (_WINDOWS if single else 2 * _WINDOWS) * trainer.accumulate)
        whole = ", ".join(f"{count:,} of {data.loaders()[name].num_samples:,} {name}" for name, count in kept.items())
        return _noted(data.shortened(kept, seed=seed), f"trainer.smoke: {whole} rows are used")
    samples = trainer.overfit.samples
    if samples is None:
        return data
    counts = {name: min(samples, loader.num_samples) for name, loader in data.loaders().items()}
    data = data.shortened(counts, seed=seed)
    again = max(1, _EPOCH_STEPS * data.train.batch_size // counts["train"])
    # In their order: each batch then is made of other samples than the one before, and all of them count the same.
    data = replace(data, train=data.train.with_rows(data.rows["train"].repeat(again), shuffle=False))
    return _noted(data, f"trainer.overfit: {counts['train']} training rows, again and again")


def _noted(data: Data, note: str) -> Data:
    return replace(data, notes=(*data.notes, note))


def _of_smoke(data: Data, windows: int) -> dict[str, int]:
    """Count the rows to keep of each split: so many batches, the last as large as it will be in the whole run.

    A last batch of one sample, which is too few for batch norm, so shows here too.
    """
    kept = {}
    for name, loader in data.loaders().items():
        size, batches = loader.batch_size, windows if name == "train" else 1
        while size * batches < _LEAST:
            batches += 1
        rest = loader.num_samples % size
        kept[name] = min(loader.num_samples, size * batches + (rest if name != "train" else rest - size if rest else 0))
    return kept
