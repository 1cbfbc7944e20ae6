"""What is fitted to the training rows before anything trains: values to fill in, and the scaling of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from time import monotonic
from typing import Any

import torch
from torch import Tensor

import lightkit.data.normalize as scaling
from lightkit.common.errors import UserError
from lightkit.data.impute import Filling
from lightkit.data.loaders import Loader
from lightkit.data.normalize import Normalizer
from lightkit.data.options import LoaderOptions
from lightkit.data.tensors import TensorData

PROGRESS_SECONDS = 10.0
"""How often a line tells how far the reading of the training rows is."""
_IN_MEMORY, _READ = 4096, 64
"""Rows at once; fixed, so that the last bits depend on no setting."""

Report = Callable[[str], None]


def fill_in(source: Any, rows: Tensor, fitted: Mapping[str, Any] | None = None) -> tuple[Any, Filling | None]:
    """Fill in the missing values of a data set in memory.

    Args:
        source: The data set; one without an imputer has none.
        rows: The training rows, which alone decide what is filled in.
        fitted: What was found before (`Filling.state_dict`), in place of fitting it.

    Returns:
        The data set without missing values, and what fills them in; None where nothing does.

    Raises:
        UserError: A column has no value in the training rows, or what was found before is for other columns.
    """
    imputer = source.imputer if isinstance(source, TensorData) else None
    if imputer is None:
        return source, None
    filling = imputer.fit(source.x[rows]) if fitted is None else imputer.load(fitted)
    note = filling.note(source.x)
    return source.with_inputs(filling(source.x), notes=[note] if note else []), filling


def fit_scaling(
    kind: str, source: Any, rows: Tensor, options: LoaderOptions, *, most: int | None = None, report: Report
) -> tuple[Normalizer | None, list[str]]:
    """Fit the scaling of inputs to training rows.

    Args:
        kind: See `lightkit.data.normalize.fit`.
        source: The data set.
        rows: The training rows.
        options: Workers and time limit of the reading, for data that is not in memory.
        most: Use at most so many of the rows, evenly spaced; None uses all.
        report: Called now and then with a line that tells how far it is.

    Returns:
        The scaling, and lines about what it was fitted to.

    Raises:
        UserError: The inputs cannot be scaled in this way.
    """
    some = rows
    if most is not None and most < len(rows):  # evenly spaced, the first and the last among them
        some = rows[torch.linspace(0, len(rows) - 1, most, dtype=torch.float64).round().to(torch.int64)]
    in_memory = isinstance(source, TensorData)
    at_once = (source.take(piece)[0] for piece in some.split(_IN_MEMORY))
    batches = at_once if in_memory else _read(source, some, options)
    fitted = scaling.fit(kind, _reported(batches, kind, len(some), report))
    if fitted is None or (in_memory and len(some) == len(rows)):
        return fitted, []
    share = f"{len(some):,} of the {len(rows):,}" if len(some) < len(rows) else f"all {len(rows):,}"
    return fitted, [f"data.normalize={kind} is fitted on {share} training rows"]


def _read(source: Any, rows: Tensor, options: LoaderOptions) -> Iterator[Tensor]:
    """Yield inputs as a loader gives them, whose processes end with the reading."""
    reading = LoaderOptions(
        _READ,
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch_factor,
        timeout_seconds=options.timeout_seconds,
        persistent_workers=False,
        split="train, read for data.normalize",
    )
    with closing(Loader(source, rows, reading)) as loader:
        for batch in loader.epoch(0):
            if not isinstance(batch, tuple):
                raise UserError("only pairs of input and target can be scaled", argument="normalize", expected="none")
            yield batch[0]


def _reported(batches: Iterator[Tensor], kind: str, rows: int, report: Report) -> Iterator[Tensor]:
    """Hand batches on, and report now and then how far they are."""
    done, reported = 0, monotonic()
    for batch in batches:
        yield batch
        done += len(batch)
        if monotonic() - reported >= PROGRESS_SECONDS:
            reported = monotonic()
            report(f"data.normalize={kind}: {done:,} of {rows:,} training rows read (data.normalize_rows: fewer)")
