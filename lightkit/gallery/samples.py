"""The samples that a page shows, where they come from, and the page: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lightkit.common.drawing import png, render
from lightkit.common.errors import writing_to
from lightkit.data import Data, DataInfo, Loader
from lightkit.data.collates import apart
from lightkit.data.orders import spread
from lightkit.data.placed import PLACED, found_in, lies_within
from lightkit.gallery.views import InputView, PlacedView, TableView, TextView, view_of
from lightkit.runner.evaluation import rows_of


@dataclass(frozen=True)
class Sample:
    """One sample as the network gets it."""

    row: int
    """Its row in the data set."""
    x: Any
    """Its input; of a picture in which something lies a tuple of it and this, and later what was found."""
    y: Tensor | None
    """Its target; None where the samples are no pairs of an input and a target."""
    target: str
    """The target in words."""
    file: str = ""
    """The file it was read from, where that is known."""
    answer: Prediction | None = None
    """What a model says of it."""
    loss: float | None = None
    """The loss of that."""

    def plain(self) -> dict[str, Any]:
        """Return what a program may want to know."""
        facts: dict[str, Any] = {"row": self.row, "target": self.target}
        facts |= {"file": self.file} if self.file else {}
        if self.answer is not None:
            facts |= {"prediction": self.answer.text, "confidence": self.answer.confidence}
            facts |= {"right": self.answer.is_right}
        return facts | ({"loss": self.loss} if self.loss is not None else {})


def loader_of(data: Data, split: str, *, training: bool = True) -> Loader:
    """Return the loader of a split.

    Args:
        data: The splits.
        split: `train`, `val` or `test`.
        training: Take training samples as they are trained on, shuffled and augmented; else as they are evaluated.

    Raises:
        UserError: There is no such split.
    """
    return data.train if split == "train" and training else rows_of(data, split, "--split")


def read_samples(data: Data, split: str, count: int, *, epoch: int = 0) -> tuple[list[Sample], InputView]:
    """Read samples of a split as the network gets them.

    Args:
        data: The splits.
        split: `train` (the first samples of an epoch, augmented), `val` or `test` (spread evenly).
        count: How many at most.
        epoch: Number of the training epoch, from 0, which decides order and augmentation.

    Raises:
        UserError: There is no such split.
    """
    loader = loader_of(data, split)
    if split == "train":
        order = loader.order(epoch)[: loader.epoch_samples]
    else:
        loader = loader.with_rows(spread(loader.rows, count))
        order = loader.rows
    return read_in_order(data, loader, order[:count], epoch=epoch)


def read_in_order(data: Data, loader: Loader, rows: Tensor, *, epoch: int = 0) -> tuple[list[Sample], InputView]:
    """Read the first samples of a loader.

    Args:
        data: The splits.
        loader: Its epoch begins with `rows`.
        rows: Their rows in the data set, `(N,)`.
        epoch: Number of the epoch.

    Returns:
        The samples, and how their inputs are shown.
    """
    parts = list[tuple[Any, Tensor | None]]()
    with closing(loader.epoch(epoch)) as batches:
        for batch in batches:
            parts += _apart(loader.unweighted(batch), min(loader.batch_size, loader.num_samples - len(parts)))
            if len(parts) >= len(rows):
                break
    parts = parts[: len(rows)]
    view = view_of(data, parts[0][0] if parts else None)
    view.look([x for x, _ in parts])
    if isinstance(view, PlacedView):
        parts = [((x, y), y) for x, y in parts]
    decode = view.decode if isinstance(view, TextView) else None
    samples = [
        Sample(row, x, y, "" if y is None else target_words(y, data.info, decode), file_of(loader, row))
        for row, (x, y) in zip(rows.tolist(), parts)
    ]
    return samples, view


def _apart(batch: Any, size: int) -> list[tuple[Any, Tensor | None]]:
    """Take a batch apart into samples, each as input and target."""
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    if pair and (all(isinstance(part, Tensor) for part in batch) or lies_within(*batch)):
        return list(zip(*batch))
    if pair and isinstance(batch[0], Mapping) and isinstance(batch[1], Tensor) and batch[1].shape[:1] == (size,):
        return list(zip(apart(batch[0], size), batch[1]))
    return [(sample, None) for sample in apart(batch, size)]


def variants(data: Data, samples: list[Sample], epochs: int) -> list[list[Sample]]:
    """Read the same training samples in several epochs, to see what the augmentation makes of them.

    Args:
        data: The splits.
        samples: Training samples.
        epochs: How many epochs.

    Returns:
        A list for each sample, with its variants.
    """
    rows = torch.tensor([sample.row for sample in samples])
    loader = data.train.with_rows(rows, shuffle=False, drop_last=False)
    read = [read_in_order(data, loader, rows, epoch=epoch)[0] for epoch in range(epochs)]
    return [list(of_one) for of_one in zip(*read)]


def file_of(data: Data | Loader, row: int) -> str:
    """Return the file that a row was read from; empty where the data set does not know."""
    files = getattr(getattr(data.source, "base", None), "files", None)
    return str(files[row]) if isinstance(files, (list, tuple)) and 0 <= row < len(files) else ""


_SHARES = 2
"""Classes that a mixed target names."""
_NUMBERS = 4
"""Numbers that a target of several shows."""


@dataclass(frozen=True)
class Prediction:
    """What a model says of a sample."""

    text: str
    """The class, the labels, the numbers, or the text."""
    confidence: float | None = None
    """Probability of the class it chose; None where there is none."""
    is_right: bool | None = None
    """Whether it is the target; None where nothing is simply right."""
    pieces: tuple[str, ...] = ()
    """Of a text, each token that was predicted."""


def target_words(target: Tensor, info: DataInfo, decode: Callable[[Tensor], str] | None = None) -> str:
    """Put the target of a sample in words.

    Args:
        target: A class `()`, shares of classes `(C,)` as mixup makes them, labels `(L,)`, numbers, or tokens or tags
            `(T,)`.
        info: What the data is.
        decode: Makes text of tokens; None shows their numbers.
    """
    if info.task in PLACED:
        labels = found_in(target)
        labels = (labels if isinstance(labels, Tensor) else labels["labels"]).unique()
        return ", ".join(_named(info, int(label)) for label in labels if label) or "none"
    if info.task == "language_modeling":
        return decode(target) if decode else _numbers(target)
    if info.task == "binary":
        value = float(target)
        return _binary(value, info) if value in (0.0, 1.0) else f"{value:.2f} {_named(info, 0)}"
    if info.task == "multilabel":
        return _labels(target, info)
    if info.task == "tagging":
        return " ".join(_named(info, int(tag)) for tag in target if tag >= 0)
    if info.task == "multiclass":
        return _named(info, int(target)) if not target.ndim else _mixed(target, info)
    return _numbers(target, info)


def answer(output: Tensor, target: Tensor | None, info: DataInfo, decode: Callable[[Tensor], str] | None) -> Prediction:
    """Put what a model gives for a sample in words.

    Args:
        output: Raw output: scores `(C,)` or `(L,)`, numbers, scores of tokens `(T, V)`, or of tags `(C, T)`.
        target: The target; None where there is none.
        info: What the data is.
        decode: Makes text of tokens; None shows their numbers.
    """
    if info.task in PLACED:
        return Prediction(target_words(output, info))
    if info.task == "tagging" and target is not None:
        tags = output.argmax(0).where(target >= 0, target)
        return Prediction(target_words(tags, info), None, bool((tags == target).all()))
    if info.task == "multiclass" and output.ndim == 1:
        chosen = int(output.argmax())
        right = None if target is None or target.ndim else chosen == int(target)
        return Prediction(_named(info, chosen), float(output.softmax(0)[chosen]), right)
    if info.task == "binary":
        p = float(output.reshape(()).sigmoid())
        right = None if target is None else (p > 0.5) == bool(float(target) > 0.5)
        return Prediction(_binary(float(p > 0.5), info), max(p, 1 - p), right)
    if info.task == "multilabel" and output.ndim == 1:
        found = (output.sigmoid() > 0.5).to(torch.float32)
        right = None if target is None else bool((found == target.to(torch.float32)).all())
        return Prediction(_labels(found, info), None, right)
    if info.task == "language_modeling" and output.ndim == 2:
        tokens = output.argmax(-1)
        pieces = tuple(decode(token.reshape(1)) if decode else str(int(token)) for token in tokens)
        return Prediction(decode(tokens) if decode else _numbers(tokens), pieces=pieces)
    return Prediction(_numbers(output, info))


def _named(info: DataInfo, number: int) -> str:
    return info.class_names[number] if 0 <= number < len(info.class_names) else str(number)


def _binary(value: float, info: DataInfo) -> str:
    if not info.class_names:
        return f"{value:g}"
    return info.class_names[0] if value else f"not {info.class_names[0]}"


def _labels(values: Tensor, info: DataInfo) -> str:
    chosen = [_named(info, int(place)) for place in (values > 0.5).nonzero()[:, 0]]
    return ", ".join(chosen) or "none"


def _mixed(shares: Tensor, info: DataInfo) -> str:
    """Name the largest shares of a mixed target: `0.70 cat + 0.30 dog`."""
    values, places = shares.sort(descending=True)
    named = [(float(share), _named(info, int(place))) for share, place in zip(values, places) if share > 0]
    if len(named) == 1:
        return named[0][1]
    return " + ".join(f"{share:.2f} {name}" for share, name in named[:_SHARES])


def _numbers(values: Tensor, info: DataInfo | None = None) -> str:
    flat: Sequence[float] = (values if info is None else info.in_unit(values)).flatten().tolist()
    return ", ".join(f"{value:.4g}" for value in flat[:_NUMBERS]) + (", …" if len(flat) > _NUMBERS else "")


_TEMPLATE = Path(__file__).with_name("samples.html")
_COLUMNS = 60
"""Features of a table that are shown."""


@dataclass(frozen=True)
class PageSection:
    """A part of the page; what it holds is shown in the order of these fields."""

    title: str
    note: str = ""
    facts: Sequence[tuple[str, str]] = ()
    """Names and values."""
    samples: Sequence[Sample] = ()
    """Each with its row, target and prediction."""
    strips: Sequence[tuple[str, Sequence[Any]]] = ()
    """Names, and several forms of one input."""
    figure: Figure | None = None

    def picture(self) -> tuple[str, int]:
        """Return the figure as text in base 64, and its width in pixels."""
        assert self.figure is not None
        return base64.b64encode(png(self.figure)).decode(), round(self.figure.get_figwidth() * 96)


@dataclass
class Page:
    """What a command shows."""

    title: str
    subtitle: str
    view: InputView
    """How inputs are shown."""
    picture: Figure
    """The samples as one figure."""
    samples: list[Sample]
    sections: list[PageSection] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    """Lines of what is printed, each with a value by name."""

    def html(self) -> str:
        """Return the whole page."""
        facts = {"title": self.title, "subtitle": self.subtitle, "sections": self.sections, "view": self.view}
        return render(
            _TEMPLATE, **facts, is_text=self.view.data.info.task == "language_modeling", table=self._table, repr=repr
        )

    def _table(self, samples: Sequence[Sample]) -> tuple[list[str], list[tuple[Sample, list[str]]]] | None:
        """Return heads and lines of samples that are rows of a table; None where they are none."""
        if not isinstance(self.view, TableView):
            return None
        names = self.view.names[:_COLUMNS]
        more = [f"… {len(self.view.names) - _COLUMNS} more"] if len(self.view.names) > _COLUMNS else []
        judged, lossy = any(each.answer for each in samples), any(each.loss is not None for each in samples)
        heads = ["row", *(["loss"] if lossy else []), "target", *(["prediction"] if judged else []), *names, *more]
        raw = [self.view.raw(each.x)[:_COLUMNS].tolist() for each in samples]
        return heads, [(each, [f"{value:.5g}" for value in values]) for each, values in zip(samples, raw)]

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write the page and the picture; return both files.

        Args:
            folder: Made where it is missing.
            name: Name of the files without their ends.

        Raises:
            UserError: They cannot be written.
        """
        page, picture = folder / f"{name}.html", folder / f"{name}.png"
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            page.write_text(self.html(), encoding="utf-8")
            picture.write_bytes(png(self.picture))
        return [page, picture]
