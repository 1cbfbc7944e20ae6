"""The inputs of rows, read piece by piece for what has to know all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.data.loaders import Loader
from lightkit.data.options import LoaderOptions
from lightkit.data.tensors import TensorData

_IN_MEMORY, _READ = 4096, 64
"""Rows at once; fixed, so that the last bits depend on no setting."""


def read_inputs(source: Any, rows: Tensor, options: LoaderOptions, *, purpose: str) -> Iterator[Tensor]:
    """Yield the inputs of rows piece by piece; loader processes, where they are used, end with the reading.

    Args:
        source: The data set.
        rows: The rows, `(N,)` int64.
        options: Workers and time limit of the reading, for data that is not in memory.
        purpose: What they are read for, for messages.

    Raises:
        UserError: Samples are no pairs of input and target.
    """
    if isinstance(source, TensorData):
        yield from (source.take(piece)[0] for piece in rows.split(_IN_MEMORY))
        return
    reading = LoaderOptions(
        _READ,
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch_factor,
        timeout_seconds=options.timeout_seconds,
        persistent_workers=False,
        split=f"train, read for {purpose}",
    )
    with closing(Loader(source, rows, reading)) as loader:
        for batch in loader.epoch(0):
            if not isinstance(batch, tuple):
                raise UserError("only pairs of input and target can be scaled", argument="normalize", expected="none")
            yield batch[0]
