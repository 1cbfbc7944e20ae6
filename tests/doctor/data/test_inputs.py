"""Faults of inputs: features, scale, leaks, pictures, augmentation, and rows that several splits have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import Tensor

from lightkit.data import DataInfo, TensorData
from lightkit.data.csv_file import csv
from lightkit.data.images import ImageFolder
from lightkit.data.series import Series
from lightkit.data.tables import breast_cancer, diabetes, digits, digits_multilabel, wine
from lightkit.data.text import Text
from lightkit.data.transforms import RandomAffine, RandomErasing, RandomFlip, RandomShift
from tests.doctor.data.conftest import Rows, drawn, findings, planted, seeded, table

NAMES = ["a", "b", "c", "d", "e", "f"]
NO_PAIRS = [{"x": torch.zeros(3)}] * 60


def changed(column: int, rows: slice, value: float) -> TensorData:
    """A table in which some numbers are another."""
    base = table()
    x = base.x.clone()
    x[rows, column] = value
    return TensorData(x, base.y, feature_names=NAMES)


def blank() -> TensorData:
    base = digits()
    x = base.x.clone()
    x[::20] = 0.0
    return TensorData(x, base.y)


def skewed() -> TensorData:
    normal = torch.randn(2000, 4, generator=seeded())
    parts = [normal[:, 0].exp(), normal[:, 1].relu(), normal[:, 2].abs().pow(3), normal[:, 3].exp().exp()]
    return TensorData(torch.stack(parts, 1), (normal[:, 0] > 0).long())


FEATURES = {
    f"constant, {normalize}": planted(
        "warning constant features: 'constant': ['c']", "features", lambda: changed(2, slice(None), 7.0),
        normalize=normalize
    )
    for normalize in ("none", "standard", "minmax")
} | {
    f"missing as {mark}, {normalize}": planted(
        f"warning missing values: {mark:g} in 10% of b", "features",
        lambda mark=mark: changed(1, slice(None, None, 10), mark), normalize=normalize,
    )
    for mark in (-999.0, 9999.0)
    for normalize in ("none", "standard")
} | {
    "pixels at the rim": planted(
        "note constant features", "features", lambda: digits(image=False), normalize="standard"
    ),
    "blank images": planted("warning constant features: one number only | (4.", "features", blank),
    "images": planted("ok constant features", "features", digits),
    "heavy tails and many zeros": planted("ok", "features", skewed),
    "whole numbers": planted(
        "skipped missing values", "features", lambda: Rows([(torch.zeros(3, dtype=torch.int64), 0.5)] * 40)
    ),
}  # fmt: skip


def scaled(change: Any) -> Any:
    return lambda: TensorData(change(table().x), table().y)


def uneven() -> TensorData:
    base = table()
    return TensorData(base.x * torch.tensor([1e-3, 1.0, 1.0, 1.0, 5.0, 1.0]), base.y)


def with_rare_yes() -> TensorData:
    base = table()
    return TensorData(torch.cat([base.x, (torch.arange(400) % 50 == 0).float()[:, None]], 1), base.y)


SCALE = {
    "large": planted("warning input scale: data.normalize=standard | large inputs", "scale", scaled(lambda x: x * 255)),
    "tiny": planted("warning input scale: tiny inputs", "scale", scaled(lambda x: x * 1e-4)),
    "far from 0": planted("warning input scale: how far they lie from 0", "scale", scaled(lambda x: x + 1000)),
    "all the same": planted("error input scale: show data", "scale", scaled(lambda x: x * 0 + 3)),
    "unlike units": planted("warning input scale: times as wide | data.normalize=standard", "scale", uneven),
    "unlike units, scaled": planted("ok", "scale", uneven, normalize="standard"),
    "levels of images": planted(
        "warning input scale: data.normalize=image", "scale", lambda: TensorData(digits().x * 255, digits().y)
    ),
    "images": planted("ok", "scale", digits),
    "yes and no beside measurements": planted("ok", "scale", with_rare_yes),
    "wine": planted("warning input scale", "scale", wine),
    "wine, scaled": planted("ok", "scale", wine, normalize="standard"),
    "far targets": planted(
        "warning target scale: data.dataset.target_scale=100", "scale", diabetes, normalize="standard"
    ),
    "scaled targets": planted("ok", "scale", lambda: diabetes(target_scale=100.0), normalize="standard"),
    "no numbers": planted("skipped input scale", "scale", lambda: Rows(NO_PAIRS)),
    "series": planted(
        "skipped input scale: a scale of its own", "scale",
        lambda: Series(path=pa.table({"time": range(300), "value": [1000.0 + row % 7 for row in range(300)]})),
        split={"by": "file"},
    ),
}  # fmt: skip


def with_column(
    column: Tensor, y: Tensor | None = None, name: str = "extra", info: DataInfo | None = None
) -> TensorData:
    """A healthy table with one more column."""
    base = table(len(column))
    x = torch.cat([base.x, column[:, None].float()], 1)
    return TensorData(x, base.y if y is None else y, info, feature_names=[*NAMES, name])


def knowing(kind: str) -> TensorData:
    """A column that knows the target."""
    generator, y = seeded(1), table(600).y
    if kind == "noise":
        return with_column(y + 0.05 * torch.randn(600, generator=generator), y)
    if kind == "another order":
        return with_column(torch.tensor([5.0, -2.0, 1.0])[y], y)
    if kind == "regression":
        goal = torch.randn(600, generator=generator)
        return with_column((3 * goal + 0.01 * torch.randn(600, generator=generator)).exp(), goal)
    if kind == "multilabel":
        labels = torch.randint(2, (600, 3), generator=generator).float()
        return with_column(1 - labels[:, 1], labels, info=DataInfo("multilabel", (7,), 3))
    yes = torch.randint(2, (600,), generator=generator).float()
    return with_column(yes * 2, yes, info=DataInfo("binary", (7,), 1))


def numbered() -> TensorData:
    y = table(600).y.sort().values
    return with_column(torch.arange(600), torch.where(torch.rand(600, generator=seeded()) < 0.2, (y + 1) % 3, y))


def dated(kind: str) -> TensorData:
    generator = seeded(2)
    when = torch.rand(600, generator=generator, dtype=torch.float64)
    y = ((when + 0.15 * torch.randn(600, generator=generator)) > 0.5).long()
    if kind == "seconds":
        return with_column((1.6e9 + when * 3e7).round(), y)
    if kind == "days":
        days = torch.randint(1, 28, (600,), generator=generator)
        return with_column(20200000 + (1 + (when * 11.99).floor()) * 100 + days, y)
    return with_column((when * 1000).floor(), y, "visit_date")


def watermark() -> TensorData:
    generator = seeded(3)
    x, y = torch.rand(400, 3, 20, 20, generator=generator), torch.randint(2, (400,), generator=generator)
    x[:, 1, 19, 0] = y.float() * 0.5 + 0.2
    return TensorData(x, y)


def scaled(by: slice) -> TensorData:
    base = table()
    x = (3 + base.x - (3 + base.x)[by].mean(0)) / base.x[by].std(0)
    return TensorData(x, base.y, feature_names=NAMES)


LEAKS = {
    "scaled by all rows": planted(
        "warning scaled before: a, b, c and 3 more | data.normalize=standard", "leaks", lambda: scaled(slice(None)),
        normalize="standard",
    ),
    "scaled by training rows": planted(
        "ok", "leaks", lambda: scaled(slice(280)), split={"by": "ordered", "val": 0.1, "test": 0.2}
    ),
} | {
    f"knowing, {kind}": planted(
        "warning leaking features: 'features': ['extra'] | data.dataset.features", "leaks",
        lambda kind=kind: knowing(kind), normalize="standard",
    )
    for kind in ("noise", "another order", "regression", "multilabel", "binary")
} | {
    f"{kind}, {normalize}": planted(
        "warning leaking features: dates the rows", "leaks", lambda kind=kind: dated(kind), normalize=normalize
    )
    for kind in ("seconds", "days", "name")
    for normalize in ("none", "standard")
} | {
    f"numbered, {normalize}": planted(
        "warning leaking features: numbers or dates the rows | 'features': ['extra']", "leaks", numbered,
        normalize=normalize
    )
    for normalize in ("none", "standard")
} | {
    "a number that tells nothing": planted(
        "note leaking features: extra numbers", "leaks", lambda: with_column(torch.arange(600))
    ),
    "watermark": planted(
        "warning leaking features: element (1, 19, 0) predicts the target | a mark of the class at this place", "leaks",
        watermark,
    ),
    "wine": planted("ok", "leaks", wine, normalize="standard"),
    "breast cancer": planted("ok", "leaks", lambda: breast_cancer(binary=True), normalize="standard"),
    "diabetes": planted("ok", "leaks", lambda: diabetes(target_scale=100.0), normalize="standard"),
    "no pairs": planted("skipped leaking features", "leaks", lambda: Rows(NO_PAIRS)),
}  # fmt: skip


def smooth(rows: int = 200, channels: int = 3) -> Tensor:
    """Pictures of 16 x 16 pixels without sharp edges, 0 to 255, with some noise."""
    generator = seeded()
    coarse = torch.randn(rows, channels, 4, 4, generator=generator)
    wide = torch.nn.functional.interpolate(coarse, (16, 16), mode="bicubic")
    return (128 + 60 * wide + 2 * torch.randn(wide.shape, generator=generator)).clamp(0, 255)


def page(noise: float) -> Tensor:
    """Black strokes on white paper, as it was scanned."""
    generator = seeded()
    ink = torch.where(torch.rand(200, 1, 16, 16, generator=generator) < 0.3, 8.0, 247.0)
    return (ink + noise * torch.randn(ink.shape, generator=generator)).clamp(0, 255)


def silent_channel() -> Tensor:
    x = smooth()
    x[:, 1] = 7
    return x


def pictures(x: Tensor) -> TensorData:
    return TensorData(x, torch.arange(len(x)) % 3)


PICTURES = {
    name: planted("warning overflow: float", "pictures", lambda x=x: pictures(x().round() % 256), normalize="image")
    for name, x in {
        "brighter": lambda: smooth() + 90,
        "steeper": lambda: smooth() * 1.7,
        "shifted": lambda: smooth() - 128,
    }.items()
} | {
    name: planted("ok", "pictures", lambda x=x: pictures(x()))
    for name, x in {
        "smooth": smooth,
        "page": lambda: page(0.0),
        "scanned": lambda: page(4.0),
        "noise": lambda: 255 * torch.rand(200, 1, 16, 16, generator=seeded(1)),
        "bright": lambda: (smooth() + 90).clamp(0, 255),
        "black and white": lambda: (smooth(channels=1) > 128).float(),
        "grey": lambda: smooth(channels=1).repeat(1, 3, 1, 1),
        "one channel": lambda: smooth(channels=1),
        "places": lambda: torch.cat([smooth(), torch.arange(16.0).expand(200, 1, 16, 16)], 1),
    }.items()
} | {
    "a silent channel": planted(
        "warning constant channel: 'channels': [1]", "pictures", lambda: pictures(silent_channel()), normalize="image"
    ),
}  # fmt: skip


class UpsideDown:
    """Turns a sample upside down, always."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.flip(-2)


class NoisyRows(Rows):
    """Adds noise to each sample that is asked for, whatever for."""

    def __getitem__(self, row: int) -> Any:
        x, y = self.samples[row]
        return x + 0.1 * torch.randn(x.shape), y


def sides() -> Rows:
    """Light on the left, on the right, or in the middle."""
    y = torch.arange(400) % 3
    x = 0.1 * torch.rand(400, 1, 12, 12, generator=seeded())
    x[y == 0, :, :, :4] += 1.0
    x[y == 1, :, :, 8:] += 1.0
    x[y == 2, :, 4:8] += 1.0
    return Rows([(image, int(label)) for image, label in zip(x, y)], targets=y.tolist())


SMALL = RandomAffine(degrees=10, scale=0.1, translate=0.1)
AUGMENTATION = {
    "small turns and moves": planted("2 ok augmentation", "augmentation", digits, augment=[SMALL]),
    "of labels": planted("2 ok augmentation", "augmentation", digits_multilabel, augment=[SMALL]),
    "never": planted("warning augmentation: 'varied': 0", "augmentation", digits, augment=[RandomFlip(0.0)]),
    "by nothing": planted("warning augmentation: 'varied': 0", "augmentation", digits, augment=[RandomShift(0)]),
    "out of sight": planted(
        "warning augmentation: data.augment[1] | 'transform': 'RandomShift'", "augmentation", digits,
        augment=[RandomAffine(degrees=5), RandomShift(8)],
    ),
    "erased": planted(
        "warning augmentation: data.augment[1] | 'transform': 'RandomErasing'", "augmentation", digits,
        augment=[RandomAffine(degrees=5), RandomErasing(1.0, 0.9, 1.0)],
    ),
    "left for right": planted("warning augmentation: 'lost': ['0', '1']", "augmentation", sides,
        augment=[RandomFlip()]),
    "upside down": planted("2 ok augmentation", "augmentation", sides, augment=[RandomFlip(vertical=True)]),
    "in validation": planted(
        "2 warning evaluation inputs", "augmentation",
        lambda: NoisyRows([(torch.zeros(4), row % 2) for row in range(80)], targets=[row % 2 for row in range(80)]),
    ),
    "none": planted("skipped augmentation: data.augment is empty", "augmentation", digits),
    "no pairs": planted("skipped augmentation", "augmentation", lambda: Rows(NO_PAIRS)),
}  # fmt: skip


def twice(rows: int) -> TensorData:
    once = table()
    return TensorData(torch.cat([once.x, once.x[:rows]]), torch.cat([once.y, once.y[:rows]]))


def repeated(rows: int) -> TensorData:
    """Of 1000 test rows so many are in training."""
    base = table(2000, splits={"train": torch.arange(1000), "test": torch.arange(1000, 2000)})
    base.x[1000 : 1000 + rows] = base.x[:rows].clone()
    return base


def coarse() -> TensorData:
    generator = seeded(1)
    x = torch.randint(2, (600, 6), generator=generator).float()
    return TensorData(x, torch.randint(2, (600,), generator=generator))


def alike(change: Any) -> Any:
    """Digits with changed copies of some."""

    def made() -> TensorData:
        base = digits()
        return TensorData(torch.cat([base.x, change(base.x[:300])]), torch.cat([base.y, base.y[:300]]))

    return made


def alike_rows() -> TensorData:
    base, units = table(500), torch.tensor([1.0, 1e-3, 1e5, 1.0, 10.0, 1.0])
    copies = base.x[:100] + 1e-3 * torch.randn(100, 6, generator=seeded(3))
    return TensorData(torch.cat([base.x, copies]) * units, torch.cat([base.y, base.y[:100]]))


def walk() -> TensorData:
    """Each row is a small step from the one before."""
    generator = seeded(5)
    x = torch.randn(600, 8, generator=generator).cumsum(0)
    return TensorData(x, torch.randint(2, (600,), generator=generator))


PATIENTS = torch.arange(40).repeat_interleave(10)
BY_PATIENT = {"groups": PATIENTS, "targets": drawn(400, high=2, seed=6).tolist()}


def of_patients(by: str) -> Any:
    x, y = torch.randn(400, 5, generator=seeded(6)), drawn(400, high=2, seed=6)
    if by == "column":
        names = ["a", "b", "c", "d", "e", "patient_id"]
        return TensorData(torch.cat([x, PATIENTS[:, None].float()], 1), y, feature_names=names)
    rows = [(row, int(label)) for row, label in zip(x, y)]
    if by == "files":
        files = [Path(f"p{patient:03d}_slice{row:03d}{'b' * (row % 2)}.png") for row, patient in enumerate(PATIENTS)]
        return Rows(rows, files=files, targets=y.tolist())
    splits = {"splits": {"train": torch.arange(300), "test": torch.arange(300, 400)}} if by == "own splits" else {}
    return Rows(rows, **BY_PATIENT, **splits)


def written(files: int) -> dict[str, str]:
    """Files of made-up words, none of which repeats another."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(400)]
    return {f"{number}.txt": " ".join(draw.choices(words, k=400)) for number in range(files)}


def texts(copied: str | None = None, *, padded: bool = False) -> Text:
    files = written(30 if copied is None else 20)
    if padded:
        draw = random.Random(1)
        files = {name: "".join(draw.choices("abcdefgh ", k=20)) + " " * 300 for name in files}
    files |= {} if copied is None else {f"copy of {name}": copied + words for name, words in files.items()}
    return Text(texts=files, context_length=64)


def sentences(copies: int) -> TensorData:
    """Padded sentences with labels."""
    generator = seeded()
    x = torch.zeros(400, 64, dtype=torch.int64)
    x[:, :10] = torch.randint(1, 500, (400, 10), generator=generator)
    y = torch.randint(2, (400,), generator=generator)
    return TensorData(torch.cat([x, x[:copies]]), torch.cat([y, y[:copies]]))


EXACT, NEAR, TEST = "overlap of splits", "near duplicates", {"val": 0}
TEXTS = {"split": {"by": "file", "val": 0.1, "test": 0.1}}
OVERLAP = {
    "a healthy table": planted("2 ok near duplicates", "splits", table),
    "rows that are there twice": planted(f"2 error {EXACT}: bit for bit", "splits", lambda: twice(100)),
    "5 % of the rows": planted(f"warning {EXACT}: (5.0%)", "splits", lambda: repeated(50), split=TEST),
    "5 of 1000 rows": planted(f"note {EXACT}: (0.5%)", "splits", lambda: repeated(5), split=TEST),
    "none of the rows": planted(f"ok {EXACT}: (0.0%)", "splits", lambda: repeated(0), split=TEST),
    "equal by chance": planted(f"2 note {EXACT}: by chance", "splits", coarse),
    "noise": planted(
        f"2 warning {NEAR}", "splits", alike(lambda x: x + 0.01 * torch.randn(x.shape, generator=seeded(2))),
        split={"by": "stratified"},
    ),
    "brightness": planted(f"2 warning {NEAR}", "splits", alike(lambda x: x * 0.8 + 0.1), split={"by": "stratified"}),
    "rounding": planted(
        f"2 warning {NEAR}", "splits", alike(lambda x: (x * 200).round() / 200 + 1e-4), split={"by": "stratified"}
    ),
    "rows of any unit": planted(f"2 warning {NEAR}", "splits", alike_rows),
    "rows beside each other": planted("warning groups: data.split.by=ordered", "splits", walk),
    "rows beside each other, in order": planted("skipped groups", "splits", walk, split={"by": "ordered"}),
    "groups by a column": planted(
        "warning groups: data.split.groups=patient_id | 'groups': 40", "splits", lambda: of_patients("column")
    ),
    "groups by a column, kept": planted(
        "ok groups", "splits", lambda: of_patients("column"), split={"groups": "patient_id"}
    ),
    "groups by files": planted("warning groups: 'groups': 40", "splits", lambda: of_patients("files")),
    "named groups": planted("ok groups: none of 40 groups", "splits", lambda: of_patients("")),
    "groups in splits of one's own": planted(
        "ok groups", "splits", lambda: of_patients("own splits"), split={"by": "file", "val": 0}
    ),
    "no pairs": planted(
        f"skipped {EXACT}", "splits", lambda: Rows(NO_PAIRS, info=DataInfo("custom", (), 0))
    ),
    "texts": planted(f"2 ok {EXACT}: 'repeated': 0", "splits", texts, **TEXTS),
    "texts under two names": planted(f"2 warning {EXACT}: (24.", "splits", lambda: texts(""), **TEXTS),
    "texts behind a header": planted(f"error {EXACT}: 'split': 'test'", "splits",
        lambda: texts("A licence that differs.\n"), **TEXTS),
    "padded texts": planted("ok", "splits", lambda: texts(padded=True), **TEXTS),
    "padded sentences": planted("ok", "splits", lambda: sentences(0)),
    "padded sentences, twice": planted(f"2 error {EXACT}", "splits", lambda: sentences(100)),
}  # fmt: skip
ALL = {
    f"{room}: {name}": case
    for room, cases in {
        "features": FEATURES,
        "scale": SCALE,
        "leaks": LEAKS,
        "pictures": PICTURES,
        "augmentation": AUGMENTATION,
        "overlap": OVERLAP,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", ALL)
def test_a_planted_fault_is_named_and_nothing_else(name: str) -> None:
    ALL[name].judge()


def test_a_column_that_was_mostly_filled_in(tmp_path: Path) -> None:
    lines = [f"{row % 7},{row if row % 4 == 0 else ''},{row % 2}" for row in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    planted(
        "warning missing values: most of a column was filled in: 7",
        "features",
        lambda: csv(str(tmp_path / "rows.csv"), "y", missing="median"),
        normalize="standard",
    ).judge()


def test_files_with_the_same_content_under_other_names(tmp_path: Path) -> None:
    generator = seeded(4)
    for split, count in (("train", 30), ("test", 10)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(256, (12, 12, 3), generator=generator, dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number}_{split}.png")
    for number in range(5):
        copied = (tmp_path / "train" / "cat" / f"{number}_train.png").read_bytes()
        (tmp_path / "test" / "dog" / f"other{number}.png").write_bytes(copied)
    found = findings("splits", ImageFolder(str(tmp_path), size=8), split={"by": "file", "val": 0})
    assert [each.numbers["twins"] for each in found if each.check == EXACT and each.is_bad] == [5]
