"""Faults of targets, and of how rows lie: each is told by the check that is for it; what only looks so is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightkit.data import DataInfo, TensorData
from lightkit.data.tables import breast_cancer, digits, wine
from lightkit.doctor.data.order import count_rows
from tests.doctor.data.conftest import Broken, Rows, drawn, labelled, planted, seeded, table

ORDERED = {"by": "ordered"}
FILE = {"by": "file"}


def never_given() -> TensorData:
    y = drawn(300, 4, high=2).float()
    y[:, 2] = 0.0
    return labelled(y, DataInfo("multilabel", (4,), 4, ("a", "b", "c", "d")))


def out_of_range(label: int) -> Rows:
    """Labels that nothing looked at before, as the data set has no list of them."""
    samples = [(torch.randn(3), value) for value in drawn(200).tolist()]
    samples[7] = (samples[7][0], label)
    return Rows(samples, classes=3)


def two_labels() -> TensorData:
    base = table(400)
    return TensorData(torch.cat([base.x, base.x[:60]]), torch.cat([base.y, (base.y[:60] + 1) % 3]))


def rare() -> TensorData:
    return labelled((torch.rand(2000, generator=seeded()) < 0.03).long())


LABELS = {
    "classes": planted("ok", "labels", lambda: labelled(drawn(200))),
    "yes and no": planted("ok", "labels", lambda: labelled(drawn(200, high=2).float(), DataInfo("binary", (4,), 1))),
    "several labels": planted(
        "ok", "labels", lambda: labelled(drawn(200, 5, high=2).float(), DataInfo("multilabel", (4,), 5))
    ),
    "numbers": planted("ok", "labels", lambda: labelled(torch.randn(200, generator=seeded(1)))),
    "coarse inputs": planted(
        "ok", "labels", lambda: TensorData(drawn(400, 5, high=2).float(), drawn(400, seed=9))
    ),
    "tags": planted(
        "skipped labels", "labels", lambda: labelled(drawn(200, 5, high=5), DataInfo("tagging", (4,), 5))
    ),
    "a task of one's own": planted("skipped labels", "labels", lambda: Rows([{"x": torch.zeros(3)}] * 40)),
    "counts from one": planted(
        "warning labels: count from 1 | count labels from 0", "labels", lambda: labelled(drawn(200) + 1)
    ),
    "a class that only test has": planted(
        "error labels: 'lacking': [2] | data.split.by=stratified", "labels",
        lambda: labelled(torch.cat([drawn(150, high=2), torch.full((50,), 2)])), split=ORDERED,
    ),
    "a handful of rows": planted(
        "warning labels: 'few': ['2']", "labels",
        lambda: labelled(torch.cat([drawn(300, high=2), torch.full((3,), 2)])), "class balance",
    ),
    "below the range": planted("error labels: out of range", "labels", lambda: out_of_range(-1), split={"val": 0.5,
        "test": 0}),
    "above the range": planted("error labels: out of range", "labels", lambda: out_of_range(3), split={"val": 0.5,
        "test": 0}),
    "a row that cannot be read": planted(
        "3 error labels: of the data set could not be read", "labels",
        lambda: Broken([(torch.randn(3), row % 2) for row in range(60)], targets=[row % 2 for row in range(60)], at=5),
    ),
    "never given": planted("warning labels: 'lacking': [2]", "labels", never_given, "class balance"),
    "one input, two labels": planted("warning conflicting labels: 'share': 0.1", "labels", two_labels),
    "the same input each time": planted(
        "error conflicting labels: only 1 different inputs", "labels",
        lambda: Rows([(torch.ones(3, 8, 8), row % 2) for row in range(100)], targets=[row % 2 for row in range(100)]),
    ),
    "a constant target": planted("error labels: never changes", "labels", lambda: labelled(torch.full((100,), 2.5))),
    "rare": planted("warning class balance: metrics.monitor | 'most_frequent': 0.9", "labels", rare),
    "rare, by a metric that minds": planted("note class balance", "labels", rare, monitor="val/f1"),
    "rare, by a loss that minds": planted("note class balance", "labels", rare, loss={"weight": [1.0, 30.0]}),
}  # fmt: skip


def with_wrong(data: TensorData, share: float) -> TensorData:
    """Give a share of the rows a label drawn from the others."""
    generator, classes = seeded(2), int(data.y.max()) + 1
    other = (data.y + torch.randint(1, classes, data.y.shape, generator=generator)) % classes
    return TensorData(data.x, torch.where(torch.rand(len(data.y), generator=generator) < share, other, data.y))


def blobs(rows: int, classes: int, gap: float) -> TensorData:
    generator = seeded()
    y = torch.randint(classes, (rows,), generator=generator)
    return TensorData(
        gap * torch.randn(classes, 8, generator=generator)[y] + torch.randn(rows, 8, generator=generator), y
    )


def by_kind(rows: int = 1000) -> TensorData:
    """One feature is yes or no, and makes a class likely."""
    generator = seeded()
    x, y = torch.randn(rows, 5, generator=generator), torch.randint(3, (rows,), generator=generator)
    is_told = torch.rand(rows, generator=generator) < 0.6
    x[:, 0] = torch.where(is_told, y, torch.randint(3, (rows,), generator=generator))
    return TensorData(x, y)


def noise() -> TensorData:
    generator = seeded()
    y = (torch.rand(800, generator=generator) < 0.3).long()
    return TensorData(torch.randn(800, 6, generator=generator), y)


def ages(*names: str) -> TensorData:
    generator = seeded(1)
    x = torch.randn(1200, 6, generator=generator)
    age = (40 + 12 * x[:, 0] + 6 * x[:, 1] + 4 * torch.randn(1200, generator=generator)).round().clamp(18, 80)
    return TensorData(x, age.long() - 18, DataInfo("multiclass", (6,), 63, names))


NEIGHBOURS = {
    "digits, a quarter wrong": planted("warning wrong labels: show data", "answers", lambda: with_wrong(digits(),
        0.25)),
    "clouds, two fifths wrong": planted(
        "warning wrong labels: show data", "answers", lambda: with_wrong(blobs(600, 3, 1.5), 0.4)
    ),
    "two classes may be hard": planted("note wrong labels", "answers", lambda: with_wrong(blobs(800, 2, 3.0), 0.25)),
    "digits": planted("ok", "answers", digits),
    "wine": planted("ok", "answers", wine),
    "breast cancer": planted("ok", "answers", breast_cancer),
    "a weak relation": planted("ok", "answers", lambda: table(1000, 4)),
    "clouds over each other": planted("ok", "answers", lambda: blobs(1000, 4, 0.6)),
    "more clouds over each other": planted("ok", "answers", lambda: blobs(1500, 8, 0.7)),
    "many near classes": planted("ok", "answers", lambda: blobs(2000, 30, 0.8)),
    "many far classes": planted("ok", "answers", lambda: blobs(2000, 30, 3.0)),
    "nothing to know": planted("ok", "answers", noise),
    "kinds of rows": planted("ok", "answers", by_kind),
    "a few wrong ones": planted("ok", "answers", lambda: with_wrong(digits(), 0.05)),
    "ages": planted("warning ordered classes: loss=mse", "answers", ages),
    "named ages": planted("warning ordered classes: loss=mse", "answers", lambda: ages(*map(str, range(18, 81)))),
    "named kinds": planted("ok", "answers", lambda: ages(*(f"kind {number}" for number in range(63)))),
}  # fmt: skip


def series(kind: str) -> TensorData:
    """A series: of wandering features, with a trend in its target, with dates, or with states that last."""
    generator = seeded(3)
    x = torch.randn(800, 6, generator=generator).cumsum(0) + 0.3 * torch.randn(800, 6, generator=generator)
    noise, trend = torch.randn(800, generator=seeded(4)), torch.arange(800) / 200
    if kind == "trend":
        return TensorData(torch.randn(800, 3, generator=seeded(5)), trend + 0.3 * noise)
    if kind == "dates":
        days = 1.6e9 + 86400.0 * torch.arange(800) + 3600 * noise.abs()
        return TensorData(torch.stack([days, noise, noise**2], 1), trend, feature_names=["date", "a", "b"])
    if kind == "states":
        state = (torch.arange(800) // 37) % 3
        return TensorData(x, torch.where(torch.arange(800) < 560, state % 2, state))
    return TensorData(x, x[:, 0] + x[:, 1] + noise)


def load() -> TensorData:
    """A series with a season and a trend, one feature of which is the time."""
    hour = torch.arange(800) * 6.28 / 24
    values = 0.002 * torch.arange(800) + hour.sin() + 0.3 * torch.randn(800, generator=seeded(6))
    x = torch.stack([hour.sin(), hour.cos(), torch.arange(800) / 800, values.roll(24)], 1)
    return TensorData(x[24:], values[24:])


def sorted_by(kind: str) -> TensorData:
    base = table(600)
    x, y = base.x, base.y
    if kind != "classes":
        y = x[:, 0] + (0.3 * x[:, 1] if kind == "a feature" else x[:, 1])  # type: ignore[assignment]
    order = (x[:, 0] if kind == "a feature" else y).argsort()
    return TensorData(x[order], y[order])


def with_splits(y: Tensor, train: int, val: int) -> TensorData:
    return labelled(y, splits={"train": torch.arange(train), "val": torch.arange(train, train + val)})


def drifting() -> TensorData:
    return with_splits(torch.cat([drawn(600, high=2), torch.ones(200).long()]), 600, 200)


def timed(times: torch.Tensor) -> TensorData:
    return labelled(drawn(len(times)), times=times)


SERIES = "row order: follow each other in time"
TIME = "leaking features: 'feature 2'"
ORDER = {
    "wandering": planted(f"note {SERIES}", "order", lambda: series("wandering"), split=ORDERED),
    "trend": planted(f"note {SERIES}", "order", lambda: series("trend"), split=ORDERED),
    "dates": planted(f"note {SERIES}", "order", lambda: series("dates"), split=ORDERED),
    "states": planted(f"note {SERIES}", "order", lambda: series("states"), split=ORDERED),
    "a series, drawn": planted(
        "warning groups: data.split.by=ordered", "order, splits, labels", lambda: series("wandering")
    ),
    "the time of a series": planted("note leaking features: trend", "leaks", load, split=ORDERED),
    "the time of what is drawn": planted("warning leaking features: numbers or dates the rows", "leaks", load),
    "sorted targets": planted(
        "warning row order: data.split.by=random", "order", lambda: sorted_by("targets"), split=ORDERED
    ),
    "sorted classes": planted("warning row order: cut from one end", "order", lambda: sorted_by("classes"),
        split=ORDERED),
    "sorted by a feature": planted("warning row order", "order", lambda: sorted_by("a feature"), split=ORDERED),
    "sorted, drawn": planted("ok row order: lie between those of train", "order", lambda: sorted_by("classes")),
    "numbers only, sorted": planted(
        "warning row order", "order", lambda: labelled(torch.linspace(0, 1, 600)), split=ORDERED
    ),
    "numbers only, drawn": planted("ok", "order", lambda: labelled(torch.linspace(0, 1, 600))),
    "another mixture": planted("warning target drift", "order", drifting, split=FILE),
    "times, drawn": planted(
        "2 warning order of time: 'later': 0. | data.split.by=time", "order", lambda: timed(torch.arange(600))
    ),
    "times, cut": planted("2 ok order of time", "order", lambda: timed(torch.arange(600)), split=ORDERED),
    "no times": planted("0 ok order of time", "order", lambda: labelled(drawn(600))),
    "one row": planted("warning size of splits: data.split.val", "order", lambda: with_splits(drawn(400), 300, 1),
        split=FILE),
    "three rows": planted("warning size of splits", "order", lambda: with_splits(drawn(400), 300, 3), split=FILE),
    "twelve rows": planted("note size of splits", "order", lambda: with_splits(drawn(400), 300, 12), split=FILE),
    "sixty rows": planted("0 note size of splits", "order", lambda: with_splits(drawn(400), 300, 60), split=FILE),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_targets_that_cannot_be_learned(name: str) -> None:
    LABELS[name].judge()


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_labels_beside_those_of_rows_nearby(name: str) -> None:
    NEIGHBOURS[name].judge()


@pytest.mark.parametrize("name", ORDER)
def test_the_order_of_rows(name: str) -> None:
    ORDER[name].judge()


def test_a_mask_has_the_classes_of_its_pixels() -> None:
    masks = torch.tensor([[[0, 1], [1, 255]], [[0, 0], [0, 0]], [[255, 255], [2, 2]]])
    assert count_rows(masks, 4).tolist() == [2, 1, 1, 0]
