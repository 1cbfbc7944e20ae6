"""Whether augmentation changes samples, leaves their labels recognisable, and keeps away from validation.

Shapes in this file: N rows, F numbers of an input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.data.prepare import Prepare
from lightkit.data.sources import kept_generators, seed_generators
from lightkit.data.transforms import alike_views
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding

CHECK, EVALUATION = "augmentation", "evaluation inputs"
_LOOKED_AT = 32
_LEARNED, _HELD_OUT, _VIEWS = 1200, 400, 6
_SECONDS = 3.0
"""How long it may take to augment the rows that are compared."""
_SIDE = 16
"""Pixels a side to which images are averaged before they are compared."""
_NEEDED, _LOST = 0.4, 0.5
"""What neighbours must recognise beyond chance without augmentation, and the share of it that must be left with it."""
_FEWEST_OF_CLASS = 8


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Look at what augmentation does to training rows, and at whether it reaches others."""
    yield from find_idle_augmentation(run.sample)
    yield from find_lost_labels(run.sample)
    yield from find_random_evaluation(run.sample)


def find_idle_augmentation(sample: DataSample) -> Iterator[Finding]:
    """Find transforms that change nothing, or the same way in each epoch."""
    augment, x = sample.data.train.prepare.augment, sample.train.x
    if not augment or x is None:
        why = "data.augment is empty" if not augment else "samples are no pairs of a tensor and a target"
        yield Finding(CHECK, "skipped", why)
        return
    x = x[:_LOOKED_AT]
    first, second = (_augmented(x, epoch, augment) for epoch in (0, 1))
    changed, varied = _differing(x, first), _differing(first, second)
    numbers = {"changed": changed, "varied": varied, "looked_at": len(x)}
    measured = f"augmentation changes {changed:.0%} of {len(x)} inputs, and {varied:.0%} differ from epoch to epoch"
    why = "each epoch shows the same inputs again, and the network can know them by heart"
    fix = "draw the change anew in each call, and with a probability above 0"
    yield Finding(CHECK, "ok" if varied else "warning", measured, why, "data.augment", fix, numbers)


def find_lost_labels(sample: DataSample) -> Iterator[Finding]:
    """Find transforms after which the nearest training views no longer tell the class of an input.

    Neighbours among views of training rows answer for held-out training rows, once without and once with augmentation
    on both sides. What they recognise only without it was told by something that augmentation destroys.
    """
    augment, labels = sample.data.train.prepare.augment, _classes(sample)
    if not augment or labels is None or sample.is_tokens or alike_views(augment):  # views are compared, not labelled
        return
    trial = _Trial.of(sample, labels)
    if isinstance(trial, str):
        yield Finding(CHECK, "skipped", f"whether labels survive cannot be told: {trial}")
        return
    plain = trial.recognised(())
    if plain.overall < _NEEDED:
        reason = f"neighbours recognise {plain.overall:.0%} beyond chance without augmentation"
        yield Finding(CHECK, "skipped", f"whether labels survive cannot be told: {reason}")
        return
    changed = trial.recognised(augment)
    names = sample.data.info.class_names if sample.data.info.task == "multiclass" else ()
    enough = (plain.counts >= _FEWEST_OF_CLASS) & (plain.of_class >= 0.7)  # classes that neighbours told before
    numbers_lost = (enough & (changed.of_class < 0.6 * plain.of_class)).nonzero()[:, 0].tolist()
    lost = [names[number] if names else str(number) for number in numbers_lost]
    measured = (
        f"with augmentation neighbours recognise {changed.overall:.0%} beyond chance, without {plain.overall:.0%}"
    )
    numbers: dict[str, Any] = {"with": changed.overall, "without": plain.overall, "lost": lost}
    if changed.overall >= _LOST * plain.overall and not lost:
        yield Finding(CHECK, "ok", measured, numbers=numbers)
        return
    alone = [trial.recognised([transform]).overall for transform in augment] if len(augment) > 1 else [0.0]
    culprit = alone.index(min(alone))
    steps = getattr(augment[culprit], "steps", None)
    numbers["transform"] = type(steps[0][0] if steps else augment[culprit]).__name__
    if 0 < len(lost) <= len(plain.counts) / 2:
        measured += f", least of all {', '.join(lost[:5])}"
    why = "what augmentation makes of an input is no longer of its class, so the network learns wrong answers"
    fix = f"a weaker {numbers['transform']}, or none"
    yield Finding(CHECK, "warning", measured, why, f"data.augment[{culprit}]", fix, numbers)


def find_random_evaluation(sample: DataSample) -> Iterator[Finding]:
    """Find a data set that changes the inputs of validation and test at random too."""
    for split in (name for name in sample.splits if name != "train"):
        rows = sample.data.rows[split][:_LOOKED_AT]
        if sample[split].x is None or sample.data.info.task == "language_modeling":  # hidden tokens are the task
            continue
        first, second = (_read(sample, rows, epoch) for epoch in (0, 1))
        varied = _differing(first, second)
        numbers = {"split": split, "varied": varied, "looked_at": len(rows)}
        measured = f"{varied:.0%} of {len(rows)} inputs of {split} differ between two readings"
        why = "the data set draws random numbers for them, so its own augmentation is judged with the network"
        fix = "move random transforms from the data set to data.augment, which is for training rows only"
        yield Finding(EVALUATION, "warning" if varied else "ok", measured, why, "data.augment", fix, numbers)


class _Recognised(NamedTuple):
    """How well neighbours tell classes."""

    overall: float
    """Share of right answers beyond chance."""
    counts: Tensor
    """Rows of each class."""
    of_class: Tensor
    """Share of right answers in each class."""


@dataclass(frozen=True)
class _Trial:
    """Training rows of which some are to be recognised by the others."""

    known: tuple[Tensor, Tensor]
    """Inputs to learn from, and their classes."""
    queries: tuple[Tensor, Tensor]
    """Inputs to recognise, and their classes."""
    views: int
    """How many times to augment the inputs to learn from."""

    @classmethod
    def of(cls, sample: DataSample, labels: Tensor) -> _Trial | str:
        """Choose rows, as many as there is time to augment, or say why there are none; equal inputs stay together."""
        x, marks = sample.train.x, sample.train.marks
        if x is None or marks is None:
            return "samples are no pairs of a tensor and a target"
        begin = time.perf_counter()
        _augmented(x[:_LOOKED_AT], 0, sample.data.train.prepare.augment)
        each = (time.perf_counter() - begin) / len(x[:_LOOKED_AT])
        possible = int(_SECONDS / max(each, 1e-9))
        held = marks[: len(x)] % 4 == 0
        learned, queries = (part.nonzero()[:, 0] for part in (~held, held))
        learned, queries = learned[: min(_LEARNED, possible // 2)], queries[: min(_HELD_OUT, possible // 2)]
        if len(queries) < 20 or len(learned) < 60:
            return f"{len(x):,} training rows are too few, or augmenting them takes too long"
        views = max(1, min(_VIEWS, (possible - len(queries)) // len(learned)))
        return cls((x[learned], labels[learned]), (x[queries], labels[queries]), views)

    def recognised(self, augment: Sequence[Any]) -> _Recognised:
        """Let the nearest view name the class of each input, with these transforms on both sides."""
        views = self.views if augment else 1
        known = torch.cat([_compared(_augmented(self.known[0], epoch, augment)) for epoch in range(views)])
        queries = _compared(_augmented(self.queries[0], views, augment))
        nearest = (known.square().sum(1)[None] - 2 * queries @ known.T).argmin(1)
        right = self.known[1].repeat(views)[nearest] == self.queries[1]
        classes = int(max(self.known[1].max(), self.queries[1].max())) + 1
        parts = self.queries[1][right], self.queries[1], self.known[1]
        hits, counts, learned = (torch.bincount(part, minlength=classes).double() for part in parts)
        chance = float((learned / learned.sum()).max())
        overall = max(0.0, (float(hits.sum() / counts.sum()) - chance) / max(1 - chance, 1e-9))
        return _Recognised(overall, counts, hits / counts.clamp(min=1))


def _classes(sample: DataSample) -> Tensor | None:
    """Return the class of each row that was read; rows with the same labels are a class. None where there are none."""
    y, task = sample.train.y, sample.data.info.task
    if y is None or task not in ("multiclass", "binary", "multilabel"):
        return None
    if task == "multiclass" and y.ndim == 1:
        return y.to(torch.int64)
    return y.reshape(len(y), -1).unique(dim=0, return_inverse=True)[1]


def _augmented(x: Tensor, epoch: int, augment: Sequence[Any]) -> Tensor:
    """Return inputs as an epoch of training would change them."""
    prepare = Prepare(mix("doctor", "views"), augment=tuple(augment))
    pieces = [prepare((piece, None), epoch=epoch, first=128 * i)[0] for i, piece in enumerate(x.split(128))]
    return torch.cat([piece[0] if isinstance(piece, tuple) else piece for piece in pieces])  # one of several views


def _compared(x: Tensor) -> Tensor:
    """Return inputs as they are compared, `(N, F)`: images averaged to fewer pixels."""
    x = x.to(torch.float32)
    if x.ndim == 4:
        x = functional.adaptive_avg_pool2d(x, (min(x.shape[2], _SIDE), min(x.shape[3], _SIDE)))
    return x.flatten(1)


def _read(sample: DataSample, rows: Tensor, epoch: int) -> Tensor:
    """Read inputs without augmentation; what is random differs between epochs, even where `draws = False` denies it."""
    with kept_generators(), closing(sample.loader("train", rows, 128)) as loader:
        seed_generators(mix("doctor", "reading", epoch))
        return torch.cat([x for x, _ in loader.epoch(epoch)])


def _differing(one: Tensor, other: Tensor) -> float:
    """Return the share of rows that differ."""
    if one.shape != other.shape:
        return 1.0
    return float((one != other).flatten(1).any(1).float().mean())
