"""The samples that a page shows, and where they come from."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.nesting import mapped, tensors
from lightkit.data import Data, Loader
from lightkit.gallery.views import InputView, TextView, view_of
from lightkit.gallery.words import Prediction, target_words


@dataclass(frozen=True)
class Sample:
    """One sample as the network gets it."""

    row: int
    """Its row in the data set."""
    x: Any
    """Its input."""
    y: Tensor | None
    """Its target; None where the samples are no pairs of an input and a target."""
    target: str
    """The target in words."""
    file: str = ""
    """The file it was read from, where that is known."""
    answer: Prediction | None = None
    """What a model says of it."""
    loss: float | None = None
    """The loss of that."""

    def plain(self) -> dict[str, Any]:
        """Return what a program may want to know."""
        found: dict[str, Any] = {"row": self.row, "target": self.target}
        found |= {"file": self.file} if self.file else {}
        if self.answer is not None:
            found |= {"prediction": self.answer.text, "confidence": self.answer.confidence}
            found |= {"right": self.answer.is_right}
        return found | ({"loss": self.loss} if self.loss is not None else {})


def loader_of(data: Data, split: str, *, training: bool = True) -> Loader:
    """Return the loader of a split.

    Args:
        data: The splits.
        split: `train`, `val` or `test`.
        training: Take training samples as they are trained on, shuffled and augmented; else as they are evaluated.

    Raises:
        UserError: There is no such split.
    """
    loader = data.train if split == "train" and training else data.evaluation(split)
    if loader is None:
        what = "the data has no such split"
        raise UserError(what, key="--split", received=split, choices=data.loaders(), family="split")
    return loader


def read_samples(data: Data, split: str, count: int, *, epoch: int = 0) -> tuple[list[Sample], InputView]:
    """Read samples of a split as the network gets them.

    Args:
        data: The splits.
        split: `train` (the first samples of an epoch, augmented), `val` or `test` (spread evenly).
        count: How many at most.
        epoch: Number of the training epoch, from 0, which decides order and augmentation.

    Raises:
        UserError: There is no such split.
    """
    loader = loader_of(data, split)
    if split == "train":
        order = loader.order(epoch)[: loader.epoch_samples]
    else:
        loader = loader.with_rows(spread(loader.rows, count))
        order = loader.rows
    return read_in_order(data, loader, order[:count], epoch=epoch)


def read_in_order(data: Data, loader: Loader, rows: Tensor, *, epoch: int = 0) -> tuple[list[Sample], InputView]:
    """Read the first samples of a loader.

    Args:
        data: The splits.
        loader: Its epoch begins with `rows`.
        rows: Their rows in the data set, `(N,)`.
        epoch: Number of the epoch.

    Returns:
        The samples, and how their inputs are shown.
    """
    parts = list[tuple[Any, Tensor | None]]()
    with closing(loader.epoch(epoch)) as batches:
        for batch in batches:
            parts += _apart(batch, min(loader.batch_size, loader.num_samples - len(parts)))
            if len(parts) >= len(rows):
                break
    parts = parts[: len(rows)]
    view = view_of(data, parts[0][0] if parts else None)
    view.look([x for x, _ in parts])
    decode = view.decode if isinstance(view, TextView) else None
    samples = [
        Sample(row, x, y, "" if y is None else target_words(y, data.info, decode), file_of(data, row))
        for row, (x, y) in zip(rows.tolist(), parts)
    ]
    return samples, view


def _apart(batch: Any, size: int) -> list[tuple[Any, Tensor | None]]:
    """Take a batch apart into samples, each as input and target."""
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
    if pair:
        return list(zip(batch[0].unbind(), batch[1].unbind()))
    whole = all(part.ndim and len(part) == size for part in tensors(batch))
    return [(mapped(lambda part, at=place: part[at], batch) if whole else batch, None) for place in range(size)]  # type: ignore[misc]


def spread(rows: Tensor, count: int) -> Tensor:
    """Return at most so many of these rows, evenly spaced, the first and the last among them."""
    if len(rows) <= count:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).round().to(torch.int64)]


def variants(data: Data, samples: list[Sample], epochs: int) -> list[list[Sample]]:
    """Read the same training samples in several epochs, to see what the augmentation makes of them.

    Args:
        data: The splits.
        samples: Training samples.
        epochs: How many epochs.

    Returns:
        A list for each sample, with its variants.
    """
    rows = torch.tensor([sample.row for sample in samples])
    loader = data.train.with_rows(rows, shuffle=False, drop_last=False)
    read = [read_in_order(data, loader, rows, epoch=epoch)[0] for epoch in range(epochs)]
    return [list(of_one) for of_one in zip(*read)]


def file_of(data: Data, row: int) -> str:
    """Return the file that a row was read from; empty where the data set does not know."""
    files = getattr(getattr(data.source, "base", None), "files", None)
    return str(files[row]) if isinstance(files, (list, tuple)) and 0 <= row < len(files) else ""
