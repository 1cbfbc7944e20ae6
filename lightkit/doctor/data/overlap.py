"""Whether inputs of validation and test are in the training split too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from lightkit.data.groups import row_marks
from lightkit.doctor.data.neighbours import find_near_duplicates, find_shared_groups
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.data.text_overlap import find_repeated_text
from lightkit.doctor.finding import Finding, Status
from lightkit.doctor.patient import Patient

EXACT = "overlap of splits"
_WARNED, _WRONG = 0.01, 0.1
"""Shares of the rows of a split from which what is repeated is a warning, and an error."""
_FEWEST = 3
_MOST_NUMBERS = 400_000_000
"""Numbers of inputs in memory up to which all of them are compared."""
_FILE_BYTES, _FILE_SECONDS = 256 << 20, 5.0
_SPLIT_FIX = "leave repeated rows out of the data set, or give it splits of its own: data.split.by=file"


def check(patient: Patient) -> Iterator[Finding]:
    """Look for rows of validation and test in the training split."""
    sample = patient.sample
    if sample.is_tokens and sample.data.info.task == "language_modeling":
        yield from find_repeated_text(sample)
        return
    yield from find_duplicates(sample)
    yield from find_near_duplicates(sample)
    yield from find_shared_groups(sample)


def find_duplicates(sample: DataSample) -> Iterator[Finding]:
    """Find inputs of validation and test that the training split has as well, bit for bit."""
    others = [name for name in sample.splits if name != "train"]
    marks = _all_marks(sample)
    if "train" not in marks or not others:
        yield Finding(EXACT, "skipped", _why_not(sample, others))
        return
    known, chance = marks["train"].unique(), sample.chance_of_equals
    for name in (name for name in others if name in marks):
        twins = int(torch.isin(marks[name], known).sum())
        share = twins / max(len(marks[name]), 1)
        measured = f"{twins:,} of {len(marks[name]):,} rows of {name} ({share:.1%}) are in train too, bit for bit"
        numbers = {"split": name, "twins": twins, "share": share, "rows": len(marks[name])}
        by_chance = share <= 3 * chance
        if twins and by_chance:
            measured += f"; such coarse features make {chance:.1%} of them equal by chance"
        status: Status = "ok"
        if twins:
            few = twins < _FEWEST or share < _WARNED
            status = "note" if by_chance or few else "error" if share >= _WRONG else "warning"
        why = "" if status == "ok" else f"the score on {name} counts rows that the network may know by heart"
        key = "" if status == "ok" else "data.split.by"
        yield Finding(EXACT, status, measured, why, key, "" if status == "ok" else _SPLIT_FIX, numbers)


def _all_marks(sample: DataSample) -> dict[str, Tensor]:
    """Hash the inputs of each split: all where they lie in memory or in files, otherwise those that were read."""
    source, rows = sample.data.source, sample.data.rows
    x = getattr(source, "x", None)
    if isinstance(x, Tensor) and len(x) == len(source) and x.numel() <= _MOST_NUMBERS:
        step = max(1, (1 << 22) // max(x[:1].numel(), 1))
        marks = torch.cat([row_marks(piece) for piece in x.split(step)])
        return {name: marks[rows[name]] for name in sample.splits}
    files = sample.files()
    of_files = _file_marks(files) if files else None
    if of_files is not None:
        return {name: of_files[rows[name]] for name in sample.splits}
    return {name: found for name in sample.splits if (found := sample[name].marks) is not None}


def _file_marks(files: list[Path]) -> Tensor | None:
    """Hash the contents of files; None where there are too many, or one cannot be read."""
    marks, until, left = list[int](), time.monotonic() + _FILE_SECONDS, _FILE_BYTES
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:
            return None
        left -= len(content)
        if left < 0 or time.monotonic() > until:
            return None
        marks.append(int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True))
    return torch.tensor(marks)


def _why_not(sample: DataSample, others: list[str]) -> str:
    if not others:
        return "there is one split only"
    return "samples are no pairs of a tensor and a target" if not sample.has_inputs else "inputs cannot be compared"
