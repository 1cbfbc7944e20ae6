"""Whether inputs of validation and test are in the training split too.

Shapes in this file: B windows of a text, T tokens each, L tokens of a passage.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.data.groups import row_marks
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.neighbours import find_near_duplicates, find_shared_groups
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding, Status
from lightkit.runner.ensemble.finished import rows_of_base

EXACT, BASE = "overlap of splits", "rows of the base"
_WARNED, _WRONG = 0.01, 0.1
"""Shares of the rows of a split from which what is repeated is a warning, and an error."""
_FEWEST = 3
MOST_NUMBERS = 8_000
"""Numbers of inputs in memory for each row to be read, up to which all inputs are compared."""
_EACH_FILE = 1e-5
"""Seconds for each file, beside those for the sample, in which files are compared."""
_PASSAGE = 32
"""Tokens that are not the same by chance."""
_QUERIES, _WINDOWS = 300, 512
_MOST_TOKENS = 20_000_000
_SECONDS = 5.0
_KNOWN = 0.5
"""Share of the passages of a window from which it counts as known."""
_SPLIT_FIX = "leave repeated rows out of the data set, or give it splits of its own: data.split.by=file"


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Look for rows of validation and test in the training split."""
    sample = run.sample
    yield from find_rows_of_base(run)
    if sample.is_tokens and sample.data.info.task == "language_modeling":
        yield from find_repeated_text(sample)
        return
    yield from find_duplicates(sample)
    yield from find_near_duplicates(sample)
    yield from find_shared_groups(sample)


def find_rows_of_base(run: ExaminedRun) -> Iterator[Finding]:
    """Find rows of validation and test that the weights have learnt from with which the run begins."""
    data, others = run.sample.data, run.sample.splits[1:]
    seen = rows_of_base(run.cfg, data.info.fingerprint).rows
    known = {name: int(torch.isin(data.rows[name], seen).sum()) for name in others}
    if any(known.values()):
        counts = " and ".join(f"{count:,} of {len(data.rows[name]):,} rows of {name}" for name, count in known.items())
        measured, why = f"the base has learnt from {counts}", "scores on them are better than on new rows"
        yield Finding(BASE, "warning", measured, why, "data.split", "the values of data.split of the base", known)


def find_duplicates(sample: DataSample) -> Iterator[Finding]:
    """Find inputs of validation and test that the training split has as well, bit for bit."""
    others = [name for name in sample.splits if name != "train"]
    marks = _all_marks(sample)
    if "train" not in marks or not others:
        reason = "inputs cannot be compared" if others else "there is one split only"
        if others and not sample.has_inputs:
            reason = "samples are no pairs of a tensor and a target"
        yield Finding(EXACT, "skipped", reason)
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
        few = by_chance or twins < _FEWEST or share < _WARNED
        status: Status = "note" if few else "error" if share >= _WRONG else "warning"
        why = f"the score on {name} counts rows that the network may know by heart"
        yield Finding(EXACT, status if twins else "ok", measured, why, "data.split.by", _SPLIT_FIX, numbers)


def _all_marks(sample: DataSample) -> dict[str, Tensor]:
    """Hash the inputs of each split: all where they lie in memory or in files, otherwise those that were read."""
    source, rows = sample.data.source, sample.data.rows
    x = getattr(source, "x", None)
    if isinstance(x, Tensor) and len(x) == len(source) and x.numel() <= MOST_NUMBERS * sample.most:
        step = max(1, (1 << 22) // max(x[:1].numel(), 1))
        marks = torch.cat([row_marks(piece) for piece in x.split(step)])
        return {name: marks[rows[name]] for name in sample.splits}
    with suppress(OSError):
        if files := sample.files():
            return _file_marks(sample, files)
    return {name: found for name in sample.splits if (found := sample[name].marks) is not None}


def _file_marks(sample: DataSample, files: list[Path]) -> dict[str, Tensor]:
    """Hash files that are drawn from other splits, and training files that are as large as one of these.

    Raises:
        OSError: One cannot be read, or that takes too long.
    """
    until = time.monotonic() + sample.seconds + _EACH_FILE * len(files)

    def in_time(rows: Iterable[int]) -> Iterator[Path]:
        for row in rows:
            if time.monotonic() > until:
                raise TimeoutError
            yield files[row]

    def mark(file: Path) -> int:
        return int.from_bytes(blake2b(file.read_bytes(), digest_size=8).digest(), "little", signed=True)

    sizes, train = torch.tensor([file.stat().st_size for file in in_time(range(len(files)))]), sample.data.rows["train"]
    drawn = {name: sample.drawn(name) for name in sample.splits[1:]}
    drawn["train"] = train[torch.isin(sizes[train], sizes[torch.cat([*drawn.values()])])]
    return {name: torch.tensor([*map(mark, in_time(own.tolist()))]).long() for name, own in drawn.items()}


def find_repeated_text(sample: DataSample) -> Iterator[Finding]:
    """Find windows of validation and test most of whose passages the training text has as well."""
    others = [name for name in sample.splits if name != "train"]
    asked = {name: x[:_QUERIES] for name in others if (x := sample[name].x) is not None and x.ndim == 2}
    if not asked:
        yield Finding(EXACT, "skipped", "there is one split only" if not others else "inputs are no windows of a text")
        return
    length = min(_PASSAGE, next(iter(asked.values())).shape[1])
    passages = {name: (_passages(x, length), _is_varied(x, length)) for name, x in asked.items()}
    wanted = torch.cat([marks[varied] for marks, varied in passages.values()]).unique()
    if not len(wanted):
        yield Finding(EXACT, "skipped", "the windows repeat the same token")
        return
    known, share_read = _find_in_train(sample, wanted, length)
    for name, (marks, varied) in passages.items():
        repeats = torch.isin(marks, known) & varied
        of_window = repeats.sum(1) / varied.sum(1).clamp(min=1)
        repeated = int((of_window >= _KNOWN).sum())
        share = repeated / len(marks)
        numbers = {"split": name, "windows": len(marks), "repeated": repeated, "share": share, "read": share_read}
        measured = f"{repeated:,} of {len(marks):,} windows of {name} ({share:.1%}) stand in the training text too"
        measured += "" if share_read > 0.999 else f", of which {share_read:.0%} was read"
        why = "what was read in training is predicted by heart, so the score says little of new text"
        fix = "leave out passages and files that are there twice, or under another name"
        status: Status = "error" if share >= 0.3 else "warning" if share >= 0.05 else "ok"
        yield Finding(EXACT, status, measured, why, "data.dataset", fix, numbers)


def _passages(x: Tensor, length: int) -> Tensor:
    """Hash every run of `length` tokens in windows `(B, T)`, `(B, T - length + 1)`."""
    generator = torch.Generator().manual_seed(mix("doctor", "passages"))
    weights = torch.randint(-(1 << 62), 1 << 62, (length,), generator=generator) * 2 + 1
    count = x.shape[1] - length + 1
    marks = torch.zeros(len(x), count, dtype=torch.int64)
    for place, weight in enumerate(weights.tolist()):
        marks += x[:, place : place + count] * weight
    return marks


def _is_varied(x: Tensor, length: int) -> Tensor:
    """Tell of every run of `length` tokens whether it is more than padding, spaces or a drawn line, as `_passages`."""
    changes = functional.pad((x[:, 1:] != x[:, :-1]).to(torch.int64).cumsum(1), (1, 0))
    return changes[:, length - 1 :] - changes[:, : changes.shape[1] - length + 1] >= length // 4


def _find_in_train(sample: DataSample, wanted: Tensor, length: int) -> tuple[Tensor, float]:
    """Return which of some passages the training windows hold, and the share of the windows that was read."""
    rows = sample.data.rows["train"]
    width = max(sample.data.info.input_shape[0] if sample.data.info.input_shape else 1, 1)
    some = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: _MOST_TOKENS // width]]
    until, known, read = time.monotonic() + _SECONDS, [wanted[:0]], 0
    for batch in sample.loader("train", some, _WINDOWS).epoch(0):
        marks = _passages(batch[0], length)
        place = torch.searchsorted(wanted, marks).clamp(max=len(wanted) - 1)
        known.append(marks[wanted[place] == marks].unique())
        read += len(batch[0])
        if time.monotonic() > until:
            break
    return torch.cat(known).unique(), read / max(len(rows), 1)
