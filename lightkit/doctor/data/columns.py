"""Features that say nothing: constant ones, numbers that stand for a missing value, images without a picture.

Shapes in this file: N rows, F features.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lightkit.data.tensors import TensorData
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

CONSTANT, MISSING = "constant features", "missing values"
_SENTINEL_SHARE = 0.01
_APART = 3.0
"""How far a number that stands for a missing value lies from all others, in widths of these."""
_FILLED = 0.5
"""Share of a column from which filling it in makes most of it up."""
_BLANK = 0.01
_ENOUGH_ROWS = 20_000
_MANY = 32
"""Features from which on some that are always 0 (pixels at the rim, words that are rare) are no surprise."""


def check(patient: Patient) -> Iterator[Finding]:
    """Look at the features of the training rows."""
    yield from find_constant_features(patient.sample)
    yield from find_missing_values(patient.sample)


def find_constant_features(sample: DataSample) -> Iterator[Finding]:
    """Find columns of a table that never change, and images of one colour."""
    x = sample.train.x
    if x is None or not x.is_floating_point():
        yield Finding(CONSTANT, "skipped", "inputs are no tensors of fractional numbers")
        return
    if not sample.is_table:
        yield _blank_samples(x)
        return
    columns = _whole(sample)
    fixed = (columns == columns[:1]).all(0)
    names = [name for name, is_fixed in zip(sample.columns(), fixed.tolist()) if is_fixed]
    numbers = {"constant": names, "features": columns.shape[1]}
    if not names:
        yield Finding(CONSTANT, "ok", f"none of {columns.shape[1]:,} features is constant", numbers=numbers)
        return
    values = sample.unscaled(columns[:1])[0, fixed]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    # Pixels at the rim and words that do not occur are 0 in every row, and nobody takes them for information.
    is_rim = columns.shape[1] >= _MANY and bool((values.abs() < 1e-6).all()) and len(names) < columns.shape[1] / 2
    measured = f"{len(names)} of {columns.shape[1]:,} features are the same in all training rows: {shown}"
    why = "they tell rows apart in no way; where they should, reading or joining them went wrong"
    fix = "look at where the columns come from, or leave them out"
    yield Finding(CONSTANT, "note" if is_rim else "warning", measured, why, sample.key("features"), fix, numbers)


def _blank_samples(x: Tensor) -> Finding:
    flat = x.flatten(1)
    blank = (flat == flat[:, :1]).all(1) if flat.shape[1] > 1 else torch.zeros(len(flat), dtype=torch.bool)
    count, share = int(blank.sum()), float(blank.float().mean())
    bad = share >= _BLANK and count >= 3
    measured = f"{count:,} of {len(x):,} training inputs ({share:.1%}) hold one number only, as blank images do"
    why = "their labels cannot be learned from nothing; the files may be broken" if bad else ""
    key = "data.dataset" if bad else ""
    fix = "look at them with `lightkit show data`, and leave them out" if bad else ""
    return Finding(CONSTANT, "warning" if bad else "ok", measured, why, key, fix, {"blank": count, "share": share})


def find_missing_values(sample: DataSample) -> Iterator[Finding]:
    """Find numbers that stand for a missing value (-999), and columns most of which was filled in."""
    if not sample.is_table:
        yield Finding(MISSING, "skipped", "inputs are no table")
        return
    rows, generator = _whole(sample), torch.Generator().manual_seed(0)
    columns = sample.unscaled(rows[torch.randperm(len(rows), generator=generator)[:_ENOUGH_ROWS]])
    names = sample.columns()
    found = {name: mark for name, column in zip(names, columns.unbind(1)) if (mark := _sentinel(column)) is not None}
    if found:
        shown = ", ".join(f"{value:g} in {share:.0%} of {name}" for name, (value, share) in list(found.items())[:5])
        measured = f"numbers far from all others, which may stand for a missing value: {shown}"
        why = "the network takes them for measurements, and scaling squeezes the true ones together"
        fix = (
            "leave such cells empty in the file, and fill them: data.dataset.missing=median"
            if sample.takes("missing")
            else "put what is usual in their place, with a feature that says where"
        )
        numbers = {"columns": {name: {"value": value, "share": share} for name, (value, share) in found.items()}}
        yield Finding(MISSING, "warning", measured, why, sample.key("missing"), fix, numbers)
        return
    filled = _filled(sample)
    most = {name: share for name, share in filled.items() if share >= _FILLED}
    if most:
        shown = ", ".join(f"{share:.0%} of {name}" for name, share in list(most.items())[:5])
        measured = f"most of a column was filled in: {shown}"
        why = "such a column tells more about what was asked for than about what was measured"
        fix = "leave the column out, or data.dataset.add_indicator=true"
        yield Finding(MISSING, "warning", measured, why, "data.dataset.features", fix, {"filled": filled})
        return
    told = f", and filled in: {', '.join(f'{share:.0%} of {name}' for name, share in filled.items())}" if filled else ""
    yield Finding(MISSING, "ok", f"no number stands for a missing value{told}", numbers={"filled": filled})


def _whole(sample: DataSample) -> Tensor:
    """Return all training rows of a table in memory, otherwise those that were read."""
    source, x = sample.data.source, sample.train.x
    assert x is not None, "asked before"
    if isinstance(source, TensorData) and source.x.is_floating_point() and source.x.numel() <= 50_000_000:
        return source.x[sample.data.rows["train"]]
    return x


def _sentinel(column: Tensor) -> tuple[float, float] | None:
    """Return the number that stands for a missing value in a column, and its share; None where none does."""
    values, counts = column.unique(return_counts=True)
    if len(values) < 10:
        return None
    for at, rest in ((0, values[1:]), (-1, values[:-1])):
        share, width = float(counts[at]) / len(column), float(rest[-1] - rest[0])
        gap = float((values[at] - rest).abs().min())
        # A measured number does not come back to the digit, far from all others.
        if share >= _SENTINEL_SHARE and counts[at] >= 3 and gap > _APART * width > 0:
            return float(f"{values[at]:.4g}"), share
    return None


def _filled(sample: DataSample) -> dict[str, float]:
    """Return the share of each column that was filled in, as far as the data know it."""
    filling, source = sample.data.filling, sample.data.source
    if filling is None or not isinstance(source, TensorData):
        return {}
    shares, x = dict[str, float](), sample.unscaled(_whole(sample))
    for gaps in filling.columns:
        value = filling.values[gaps.name]
        if gaps.kinds is None and gaps.strategy != "most_frequent":
            same = (x[:, gaps.first] - value[0]).abs() <= 1e-4 * max(abs(value[0]), 1e-3)
            shares[gaps.name] = float(same.float().mean())
    return {name: share for name, share in shares.items() if share >= 0.05}
