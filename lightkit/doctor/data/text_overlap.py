"""Whether the text of validation and test stands in the training text too.

Shapes in this file: B windows, T tokens each, L tokens of a passage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding

CHECK = "overlap of splits"
_PASSAGE = 32
"""Tokens that are not the same by chance."""
_QUERIES, _WINDOWS = 300, 512
_MOST_TOKENS = 20_000_000
_SECONDS = 5.0
_KNOWN = 0.5
"""Share of the passages of a window from which it counts as known."""


def find_repeated_text(sample: DataSample) -> Iterator[Finding]:
    """Find windows of validation and test most of whose passages the training text has as well."""
    others = [name for name in sample.splits if name != "train"]
    asked = {name: x[:_QUERIES] for name in others if (x := sample[name].x) is not None and x.ndim == 2}
    if not asked:
        yield Finding(CHECK, "skipped", "there is one split only" if not others else "inputs are no windows of a text")
        return
    length = min(_PASSAGE, next(iter(asked.values())).shape[1])
    passages = {name: (_passages(x, length), _is_varied(x, length)) for name, x in asked.items()}
    wanted = torch.cat([marks[varied] for marks, varied in passages.values()]).unique()
    if not len(wanted):
        yield Finding(CHECK, "skipped", "the windows repeat the same token")
        return
    known, share_read = _find_in_train(sample, wanted, length)
    for name, (marks, varied) in passages.items():
        found = torch.isin(marks, known) & varied
        of_window = found.sum(1) / varied.sum(1).clamp(min=1)
        repeated = int((of_window >= _KNOWN).sum())
        share = repeated / len(marks)
        numbers = {"split": name, "windows": len(marks), "repeated": repeated, "share": share, "read": share_read}
        measured = f"{repeated:,} of {len(marks):,} windows of {name} ({share:.1%}) stand in the training text too"
        measured += "" if share_read > 0.999 else f", of which {share_read:.0%} was read"
        bad = share >= 0.05
        why = "what was read in training is predicted by heart, so the score says little of new text" if bad else ""
        key = "data.dataset" if bad else ""
        fix = "leave out passages and files that are there twice, or under another name" if bad else ""
        yield Finding(CHECK, "error" if share >= 0.3 else "warning" if bad else "ok", measured, why, key, fix, numbers)


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
    until, found, read = time.monotonic() + _SECONDS, [wanted[:0]], 0
    for batch in sample.loader("train", some, _WINDOWS).epoch(0):
        marks = _passages(batch[0], length)
        place = torch.searchsorted(wanted, marks).clamp(max=len(wanted) - 1)
        found.append(marks[wanted[place] == marks].unique())
        read += len(batch[0])
        if time.monotonic() > until:
            break
    return torch.cat(found).unique(), read / max(len(rows), 1)
