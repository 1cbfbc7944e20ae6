"""A few samples of a training split, read without a trace, to find out whether they are any good."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lightkit.data.loaders import Loader
from lightkit.data.sources import SampleData


def small_batch(loader: Loader) -> Any:
    """Read two samples as a training batch, in this process.

    Raises:
        Exception: Whatever the data set or a transform raises.
    """
    options = replace(loader.options, shuffle=False, drop_last=False, num_workers=0, pin_memory=False)
    source = loader.source
    if isinstance(source, SampleData):
        # A data set that opens its files at the first sample must not hand them on to worker processes open.
        with suppress(Exception):  # it may refuse to be copied
            source = copy.copy(source)
            source.base = copy.copy(source.base)
    return next(iter(Loader(source, _rows(loader, 2), options, prepare=loader.prepare, mixup=loader.mixup).epoch(0)))


def whole_batch(loader: Loader) -> Any:
    """Read a batch of the full size in the way of training, workers and all; see `small_batch`."""
    other = loader.with_rows(_rows(loader, loader.batch_size), shuffle=False, drop_last=False, persistent_workers=False)
    try:
        return next(iter(other.epoch(0)))
    finally:
        other.close()


def _rows(loader: Loader, count: int) -> Tensor:
    """Return the first rows of the first epoch, one of the last class among them: a too small output lacks it."""
    rows = loader.order(0)[:count]
    strata = getattr(loader.source, "strata", None)
    if strata is None or not len(rows):
        return rows
    last = loader.rows[strata[loader.rows].argmax()]
    return torch.cat([rows[:-1], last[None]])
