"""Some rows of each split, read once for all checks and without augmentation.

Shapes in this file: N rows read, D numbers that describe a row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.data import Data
from lightkit.data.groups import row_marks
from lightkit.data.loaders import Loader
from lightkit.data.sources import SampleData
from lightkit.data.tensors import TensorData

_PIECE_NUMBERS = 1 << 22
"""Numbers of the inputs that are read at once."""
_KEPT_BYTES = 256 << 20
"""Most memory for the inputs that are kept whole."""
_KEPT_ROWS = 4000
_LEAST_TOKENS = 32
_SIDE = 8
"""Pixels a side to which an image is averaged to describe it."""
_WIDTH = 256
"""Most numbers to describe a row; more are projected."""


@dataclass(frozen=True)
class SplitSample:
    """Rows of one split in a random order."""

    rows: Tensor
    """Their rows in the data set, `(N,)`."""
    y: Tensor | None = None
    """Their targets; None where samples are no pairs."""
    x: Tensor | None = None
    """Inputs of the first ones as a model gets them, without augmentation; None where they are no tensors."""
    marks: Tensor | None = None
    """A hash of each input, `(N,)`."""
    described: Tensor | None = None
    """What each input looks like, `(N, D)`: averaged pixels, or the numbers themselves; None for tokens."""
    total: int = 0
    """Rows of the split."""
    problem: Exception | None = field(default=None, compare=False)
    """What ended the reading before its time."""

    @property
    def share(self) -> float:
        """Return which part of the split was read."""
        return len(self.rows) / max(self.total, 1)


class DataSample:
    """Rows of the splits of some data, read when they are first asked for.

    Args:
        data: The data as a run gets them.
        most: Rows to read of the training split; of each other a tenth of that, or 300.
        seconds: How long the reading of a split may take.
        settings: Arguments of the data set in the configuration; none where it is not known which it takes.
        reads: Whether samples are read that do not lie in memory as tensors.
    """

    def __init__(
        self, data: Data, *, most: int = 50_000, seconds: float = 3, settings: Collection[str] = (), reads: bool = True
    ) -> None:
        self.data, self.most, self.seconds, self._settings, self._reads = data, most, seconds, settings, reads
        self._read: dict[str, SplitSample] = {}

    def takes(self, argument: str) -> bool:
        """Tell whether the data set has an argument."""
        return not self._settings or argument in self._settings

    def key(self, argument: str) -> str:
        """Return the key of an argument of the data set, or that of the data set where it has none of this name."""
        return f"data.dataset.{argument}" if self.takes(argument) else "data.dataset"

    @property
    def splits(self) -> list[str]:
        """Return the names of the splits there are, training first."""
        return [name for name in ("train", "val", "test") if name in self.data.rows]

    def __getitem__(self, split: str) -> SplitSample:
        if split not in self._read:
            self._read[split] = self._sampled(split)
        return self._read[split]

    @property
    def train(self) -> SplitSample:
        """Return the rows of the training split."""
        return self["train"]

    @cached_property
    def has_inputs(self) -> bool:
        """Tell whether samples are pairs of a tensor and a target."""
        return self.train.x is not None and self.train.y is not None

    @property
    def is_table(self) -> bool:
        """Tell whether inputs are rows of numbers."""
        x = self.train.x
        return x is not None and x.ndim == 2 and x.is_floating_point() and self.data.info.vocab_size is None

    @property
    def is_tokens(self) -> bool:
        """Tell whether inputs are sequences of tokens, long enough to compare passages of them."""
        x = self.train.x
        return x is not None and x.ndim == 2 and not x.is_floating_point() and x.shape[1] >= _LEAST_TOKENS

    @cached_property
    def chance_of_equals(self) -> float:
        """Estimate the share of rows that equal another training row by chance, from how coarse features are."""
        x = self.train.x
        if x is None or x.ndim != 2 or self.is_tokens:
            return 0.0
        logarithm = 0.0
        for piece in x.split(_WIDTH, 1):
            place = begins(piece).flatten().cumsum(0) - 1
            equals = place.bincount()[place].reshape(len(piece.T), -1)  # of each number, with itself
            logarithm += float((equals.double().mean(1) / len(x)).log().sum())
        return min(1.0, self.train.total * math.exp(logarithm))

    def columns(self) -> list[str]:
        """Name the features of a table."""
        names = getattr(self.data.source, "feature_names", ())
        width = 0 if self.train.x is None else self.train.x.shape[1]
        return list(names) if len(names) == width else [f"feature {number}" for number in range(width)]

    def unscaled(self, x: Tensor) -> Tensor:
        """Return inputs as they were before `data.normalize`."""
        scaling = self.data.normalizer
        return x if scaling is None else x * scaling.scale + scaling.shift

    def targets(self, split: str) -> Tensor | None:
        """Return all targets of a split where the data set knows them at once, otherwise those read; of boxes None."""
        source, rows = self.data.source, self.data.rows[split]
        if self.data.info.task == "detection":
            return None
        if isinstance(source, TensorData):
            return source.y[rows]
        base = getattr(source, "base", source)
        for name in ("targets", "labels"):
            given = getattr(base, name, None)
            if isinstance(given, (list, tuple, np.ndarray, Tensor)) and len(given) == len(source):
                with suppress(Exception):  # whatever a data set calls so
                    return torch.as_tensor(given)[rows]
        return self[split].y

    def files(self) -> list[Path]:
        """Return the file of each row where the data set lists them (`files`, or `samples` as in torchvision)."""
        base = getattr(self.data.source, "base", None)
        listed = getattr(base, "files", None) or getattr(base, "samples", None) or ()
        with suppress(Exception):
            named = [Path(item if isinstance(item, (str, Path)) else item[0]) for item in listed]
            return named if len(named) == len(self.data.source) else []
        return []

    def loader(self, split: str, rows: Tensor, batch_size: int) -> Loader:
        """Return a loader of some rows in their order, in this process, without augmentation, mixup and their weights.

        Args:
            split: The split that they are of.
            rows: Rows of the data set.
            batch_size: Rows at once.
        """
        train = self.data.train
        changes: dict[str, Any] = {"num_workers": 0, "persistent_workers": False, "pin_memory": False}
        changes |= {"batch_size": batch_size, "shuffle": False, "drop_last": False, "replica": 0, "replicas": 1}
        options = replace(train.options, split=split, weights=None, **changes)
        source = self.data.source
        source = source.reopened() if isinstance(source, SampleData) else source
        return Loader(source, rows, options, prepare=replace(train.prepare, augment=()))

    def drawn(self, split: str) -> Tensor:
        """Draw the rows of a split that are to be read."""
        rows, generator = self.data.rows[split], torch.Generator().manual_seed(mix("doctor", split))
        most = self.most if split == "train" else max(self.most // 10, 300)
        return rows[torch.randperm(len(rows), generator=generator)[:most]]

    def _sampled(self, split: str) -> SplitSample:
        """Read rows of a split at random until there are enough or the time is over."""
        rows, order = self.data.rows[split], self.drawn(split)
        if not self._reads and not isinstance(self.data.source, TensorData):
            order = order[:0]
        numbers = math.prod(self.data.info.input_shape) or 1
        size = max(1, min(256, _PIECE_NUMBERS // numbers))
        loader, read = self.loader(split, order, size), _Reading()
        until, problem = time.monotonic() + self.seconds, None
        try:
            with closing(loader):
                for batch in loader.epoch(0):
                    read.take(batch)
                    if time.monotonic() > until:
                        break
        except Exception as error:  # the data are examined, not trusted: what they raise is a finding
            problem = error
        return read.finish(order, len(rows), problem)


class _Reading:
    """What is kept of batches."""

    def __init__(self) -> None:
        self.count, self.bytes = 0, 0
        self.parts: dict[str, list[Tensor]] = {"x": [], "y": [], "marks": [], "described": []}

    def take(self, batch: Any) -> None:
        is_pair = isinstance(batch, tuple | list) and len(batch) == 2
        x, y = batch if is_pair else (None, None)
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.ndim < 2 or x.is_complex() or x.is_nested:
            self.count += len(x) if isinstance(x, Tensor) else 1
            return
        x = x.to(torch.uint8) if x.dtype == torch.bool else x
        self.count += len(x)
        self.parts["y"].append(y)
        self.parts["marks"].append(row_marks(x))
        if x.is_floating_point():
            self.parts["described"].append(describe(x))
        kept = sum(map(len, self.parts["x"]))
        if kept < _KEPT_ROWS and self.bytes < _KEPT_BYTES:
            self.parts["x"].append(x[: _KEPT_ROWS - kept])
            self.bytes += x.nbytes

    def finish(self, order: Tensor, total: int, problem: Exception | None) -> SplitSample:
        joined: dict[str, Tensor | None] = dict.fromkeys(self.parts)
        for name, parts in self.parts.items():
            with suppress(RuntimeError):  # batches of unlike shapes
                joined[name] = torch.cat(parts) if parts else None
        return SplitSample(order[: self.count], **joined, total=total, problem=problem)


def begins(x: Tensor) -> Tensor:
    """Tell where another value begins in the columns of a table `(N, D)`, each in its order, `(D, N)`."""
    known = (x.float() if x.dtype == torch.bfloat16 else x).detach().cpu().T.contiguous()  # which NumPy lacks
    ordered = torch.from_numpy(np.sort(known.numpy(), axis=1))  # several times as fast as that of torch
    return functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)


def describe(x: Tensor) -> Tensor:
    """Describe inputs `(N, ...)` by a few numbers each, `(N, D)`, alike where they look alike.

    Images are averaged to a few pixels and lose their brightness and contrast. Others keep their numbers, or so many
    random projections of them.
    """
    x = x.detach().to(torch.float32)
    if x.ndim == 4 and x.shape[3] <= 4 < x.shape[1]:
        x = x.movedim(3, 1)  # height, width, channels
    if x.ndim == 4 and min(x.shape[2:]) > 1:
        x = x if x.shape[1] <= 4 else x.mean(1, keepdim=True)
        flat = functional.adaptive_avg_pool2d(x, (min(x.shape[2], _SIDE), min(x.shape[3], _SIDE))).flatten(1)
        flat = flat - flat.mean(1, keepdim=True)
        return flat / flat.std(1, keepdim=True).clamp(min=1e-6)
    flat = x.flatten(1)
    if flat.shape[1] <= _WIDTH:
        return flat
    generator = torch.Generator().manual_seed(mix("doctor", "projection"))
    return flat @ torch.randn(flat.shape[1], _WIDTH // 2, generator=generator) / math.sqrt(_WIDTH // 2)
