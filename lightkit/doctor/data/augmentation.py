"""Whether augmentation changes samples, leaves their labels recognisable, and keeps away from validation.

Shapes in this file: N rows, V views of each, F numbers of a view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

CHECK, EVALUATION = "augmentation", "evaluation inputs"
_LOOKED_AT = 32
_LEARNED, _HELD_OUT, _VIEWS = 1200, 400, 6
_SIDE = 16
"""Pixels a side to which images are averaged before they are compared."""
_NEEDED, _LOST = 0.4, 0.5
"""What neighbours must recognise beyond chance without augmentation, and the share of it that must be left with it."""
_FEWEST_OF_CLASS = 8


def check(patient: Patient) -> Iterator[Finding]:
    """Look at what augmentation does to training rows, and at whether it reaches others."""
    yield from find_idle_augmentation(patient.sample)
    yield from find_lost_labels(patient.sample)
    yield from find_random_evaluation(patient.sample)


def find_idle_augmentation(sample: DataSample) -> Iterator[Finding]:
    """Find transforms that change nothing, or the same way in each epoch."""
    augment = sample.data.train.prepare.augment
    if not augment or not sample.has_inputs:
        why = "data.augment is empty" if not augment else "samples are no pairs of a tensor and a target"
        yield Finding(CHECK, "skipped", why)
        return
    rows = sample.train.rows[:_LOOKED_AT]
    plain, first, second = (
        _inputs(sample, rows, epoch, augmented=on) for epoch, on in ((0, False), (0, True), (1, True))
    )
    changed = _differing(plain, first)
    varied = _differing(first, second)
    numbers = {"changed": changed, "varied": varied, "looked_at": len(rows)}
    measured = f"augmentation changes {changed:.0%} of {len(rows)} inputs, and {varied:.0%} differ from epoch to epoch"
    if varied:
        yield Finding(CHECK, "ok", measured, numbers=numbers)
        return
    yield Finding(
        CHECK,
        "warning",
        measured,
        why="each epoch shows the same inputs again, so augmentation does not keep the network from knowing them by heart",
        key="data.augment",
        fix="draw the change anew in each call, and with a probability above 0",
        numbers=numbers,
    )


def find_lost_labels(sample: DataSample) -> Iterator[Finding]:
    """Find transforms after which the nearest training views no longer tell the class of an input.

    Neighbours among views of training rows answer for held-out training rows, once without and once with augmentation
    on both sides. What they recognise only without it was told by something that augmentation destroys.
    """
    augment, info, y = sample.data.train.prepare.augment, sample.data.info, sample.train.y
    if not augment or not sample.has_inputs or info.task != "multiclass" or y is None or sample.is_tokens:
        return
    learned, held = _two_parts(sample)
    if len(held) < 20:
        yield Finding(CHECK, "skipped", f"{len(y)} training rows are too few to see whether labels survive")
        return
    rows, targets = sample.train.rows, (y[learned], y[held])
    plain = _recognised(sample, rows, (learned, held), targets, None)
    if plain.overall < _NEEDED:
        told = f"neighbours recognise {plain.overall:.0%} beyond chance without augmentation"
        yield Finding(CHECK, "skipped", f"whether labels survive cannot be told: {told}")
        return
    with_all = _recognised(sample, rows, (learned, held), targets, augment)
    lost = _lost_classes(plain, with_all)
    names = info.class_names or tuple(map(str, range(info.num_classes)))
    measured = (
        f"with augmentation neighbours recognise {with_all.overall:.0%} beyond chance, without {plain.overall:.0%}"
    )
    numbers = {"with": with_all.overall, "without": plain.overall, "lost": [names[number] for number in lost]}
    if with_all.overall >= _LOST * plain.overall and not lost:
        yield Finding(CHECK, "ok", measured, numbers=numbers)
        return
    culprit = _worst(sample, rows, (learned, held), targets, augment) if len(augment) > 1 else 0
    which = ", most of all " + ", ".join(names[number] for number in lost[:5]) if lost else ""
    yield Finding(
        CHECK,
        "warning",
        measured + which,
        why="what augmentation makes of an input is no longer of its class, so the network learns wrong answers",
        key=f"data.augment[{culprit}]",
        fix=f"a weaker {_named(augment[culprit])}, or none",
        numbers=numbers | {"transform": _named(augment[culprit])},
    )


def find_random_evaluation(sample: DataSample) -> Iterator[Finding]:
    """Find a data set that changes the inputs of validation and test at random too."""
    for split in (name for name in sample.splits if name != "train"):
        rows = sample.data.rows[split][:_LOOKED_AT]
        if sample[split].x is None:
            continue
        first, second = (_inputs(sample, rows, epoch, augmented=False) for epoch in (0, 1))
        varied = _differing(first, second)
        numbers = {"split": split, "varied": varied, "looked_at": len(rows)}
        measured = f"{varied:.0%} of {len(rows)} inputs of {split} differ between two readings"
        if not varied:
            yield Finding(EVALUATION, "ok", measured, numbers=numbers)
            continue
        yield Finding(
            EVALUATION,
            "warning",
            measured,
            why="the data set draws random numbers for them, so its own augmentation is judged with the network",
            key="data.augment",
            fix="move random transforms from the data set to data.augment, which is for training rows only",
            numbers=numbers,
        )


class _Recognised:
    """How well neighbours tell classes.

    Args:
        hits: Right answers of each class.
        counts: Rows of each class.
        shares: Share of each class in what they learned from.
    """

    def __init__(self, hits: Tensor, counts: Tensor, shares: Tensor) -> None:
        chance = float(shares.max())
        self.counts = counts
        self.overall = max(0.0, (float(hits.sum() / counts.sum()) - chance) / max(1 - chance, 1e-9))
        self.of_class = hits / counts.clamp(min=1)


def _recognised(
    sample: DataSample,
    rows: Tensor,
    parts: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    augment: Sequence[Any] | None,
) -> _Recognised:
    """Let neighbours among training views name the class of held-out ones, with these transforms on both sides."""
    learned, held = parts
    views = _VIEWS if augment else 1
    known = torch.cat([_compared(sample, rows[learned], epoch, augment) for epoch in range(views)])
    asked = _compared(sample, rows[held], views, augment)
    classes = sample.data.info.num_classes
    nearest = (known.square().sum(1)[None] - 2 * asked @ known.T).argmin(1)
    answered = targets[0].repeat(views)[nearest]
    hits = torch.bincount(targets[1][answered == targets[1]], minlength=classes).double()
    counts = torch.bincount(targets[1], minlength=classes).double()
    return _Recognised(hits, counts, torch.bincount(targets[0], minlength=classes).double() / len(learned))


def _lost_classes(plain: _Recognised, changed: _Recognised) -> list[int]:
    """Return the classes that neighbours no longer tell, though they did before."""
    enough = (plain.counts >= _FEWEST_OF_CLASS) & (plain.of_class >= 0.7)
    return [int(number) for number in (enough & (changed.of_class < 0.6 * plain.of_class)).nonzero()[:, 0]]


def _worst(
    sample: DataSample,
    rows: Tensor,
    parts: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    augment: Sequence[Any],
) -> int:
    """Return the transform that alone costs most."""
    alone = [_recognised(sample, rows, parts, targets, [transform]).overall for transform in augment]
    return alone.index(min(alone))


def _two_parts(sample: DataSample) -> tuple[Tensor, Tensor]:
    """Return places of training rows to learn from and of others to ask about; rows with equal inputs stay together."""
    marks = sample.train.marks
    assert marks is not None, "asked before"
    some = marks[: _LEARNED + _HELD_OUT]
    asked = (some % 4 == 0).nonzero()[:, 0]
    return (some % 4 != 0).nonzero()[:, 0][:_LEARNED], asked[:_HELD_OUT]


def _compared(sample: DataSample, rows: Tensor, epoch: int, augment: Sequence[Any] | None) -> Tensor:
    """Return inputs as they are compared, `(N, F)`: images averaged to fewer pixels."""
    x = _inputs(sample, rows, epoch, augmented=augment is not None, augment=augment).to(torch.float32)
    if x.ndim == 4:
        x = functional.adaptive_avg_pool2d(x, [min(side, _SIDE) for side in x.shape[2:]])
    return x.flatten(1)


def _inputs(
    sample: DataSample, rows: Tensor, epoch: int, *, augmented: bool, augment: Sequence[Any] | None = None
) -> Tensor:
    """Read inputs of training rows, or of others without augmentation."""
    loader = sample.loader("train", rows, 128, augmented=augmented)
    if augment is not None:
        loader.prepare = replace(loader.prepare, augment=tuple(augment), seed=mix("doctor", "views"))
    with closing(loader):
        return torch.cat([x for x, _ in loader.epoch(epoch)])


def _differing(one: Tensor, other: Tensor) -> float:
    """Return the share of rows that differ."""
    if one.shape != other.shape:
        return 1.0
    return float((one != other).flatten(1).any(1).float().mean())


def _named(transform: Any) -> str:
    steps = getattr(transform, "steps", None)
    return type(steps[0][0] if steps else transform).__name__
