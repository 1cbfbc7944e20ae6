"""Charts of a data set: how the targets and the inputs of its splits are distributed, and losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lightkit.common.drawing import BLUE, COLOURS, FAINT, INK, add_legend, new_figure, panels, short, style
from lightkit.data import Data, Loader
from lightkit.data.orders import spread
from lightkit.gallery.samples import Sample
from lightkit.gallery.views import ImageView, InputView, TableView, TextView

MOST_ROWS = 2_000
"""Rows of a split whose inputs are looked at for the histograms, evenly spaced."""
_CLASSES = 40
_FEATURES = 40
_TOKENS = 40
_BINS = 30
_SPLIT_COLOURS = dict(zip(("train", "val", "test"), COLOURS))


def statistics(data: Data) -> dict[str, tuple[Tensor, Tensor]]:
    """Read inputs and targets of all splits as they are evaluated, at most `MOST_ROWS` rows of each.

    Args:
        data: The splits; samples that are no pairs of tensors of one shape give nothing.
    """
    pairs_of = dict[str, tuple[Tensor, Tensor]]()
    for split in data.loaders():
        loader = data.evaluation(split)
        if loader is not None:
            pairs = read_pairs(loader.with_rows(spread(loader.rows, MOST_ROWS)))
            if pairs is None:
                return {}
            pairs_of[split] = pairs
    return pairs_of


def read_pairs(loader: Loader) -> tuple[Tensor, Tensor] | None:
    """Read all inputs and targets of a loader; None where these are no pairs of tensors of one shape.

    Weights of rows beside them are left out.
    """
    xs, ys = list[Tensor](), list[Tensor]()
    with closing(loader.epoch(0)) as batches:
        for batch in map(loader.unweighted, batches):
            pair = isinstance(batch, (tuple, list)) and len(batch) == 2
            pair = pair and all(isinstance(part, Tensor) for part in batch)
            if not pair or (xs and batch[0].shape[1:] != xs[0].shape[1:]):
                return None
            xs.append(batch[0])
            ys.append(batch[1])
    return torch.cat(xs), torch.cat(ys)


def targets_chart(found: Mapping[str, tuple[Tensor, Tensor]], data: Data) -> Figure | None:
    """Draw how the targets of each split are distributed: the share of each class or label, or a histogram.

    Args:
        found: Inputs and targets by split.
        data: The splits.
    """
    info, targets = data.info, {split: y for split, (_, y) in found.items()}
    if not targets or info.task in ("language_modeling", "custom"):
        return None
    if info.task == "regression":
        figure, axes = new_figure(7.0, 3.0, "Targets")
        _overlaid(axes, {split: y.flatten().float() for split, y in targets.items()})
        axes.set_xlabel("target")
        add_legend(axes)
        return figure
    names = list(info.class_names) or [str(number) for number in range(max(2, info.num_classes))]
    if info.task == "binary":
        names = [f"not {info.class_names[0]}", info.class_names[0]] if info.class_names else ["0", "1"]
        targets = {split: y.long() for split, y in targets.items()}
    shares = {split: _shares(y, len(names)) for split, y in targets.items()}
    order = range(len(names))
    title = "Share of each label" if info.task == "multilabel" else "Share of each class"
    if len(names) > _CLASSES:
        order = np.sort(shares["train"].argsort(descending=True)[:_CLASSES].numpy())  # type: ignore[assignment]
        title += f" (the {_CLASSES} most frequent of {len(names)})"
    figure, axes = new_figure(7.0, 1.4 + 0.26 * len(order), title)
    _beside(axes.barh, {split: values[list(order)] for split, values in shares.items()})
    axes.set_yticks(range(len(order)), [short(names[number], 28) for number in order])
    axes.invert_yaxis()
    axes.set_xlabel(f"percent of the {'pixels' if info.task == 'segmentation' else 'rows'}")
    add_legend(axes, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _beside(bars: Callable[..., Any], shares: Mapping[str, Tensor]) -> None:
    """Draw a bar a place for each split, those of a place beside each other."""
    width = 0.8 / len(shares)
    for at, (split, values) in enumerate(shares.items()):
        places = [place + (at - (len(shares) - 1) / 2) * width for place in range(len(values))]
        bars(places, (100 * values).tolist(), width, color=_SPLIT_COLOURS.get(split, INK), label=split)


def _shares(y: Tensor, classes: int) -> Tensor:
    if y.ndim == 2:
        return y.float().mean(0)
    return torch.bincount(y.long().flatten(), minlength=classes)[:classes] / max(1, y.numel())


def inputs_chart(found: Mapping[str, tuple[Tensor, Tensor]], view: InputView) -> Figure | None:
    """Draw how the inputs of each split are distributed, as the network gets them.

    Args:
        found: Inputs and targets by split.
        view: How the inputs are shown, which says what they are.
    """
    inputs = {split: x for split, (x, _) in found.items()}
    if not inputs or not any(len(x) for x in inputs.values()):
        return None
    if isinstance(view, TextView):
        return _tokens(inputs, view)
    if isinstance(view, ImageView):
        channels = next(iter(inputs.values())).shape[1]
        return _grid(
            {f"channel {at}": {s: x[:, at].flatten() for s, x in inputs.items()} for at in range(min(4, channels))}, ""
        )
    if isinstance(view, TableView):
        names, shown = view.names, view.names[:_FEATURES]
        title = f" (the first {_FEATURES} of {len(names)})" if len(names) > _FEATURES else ""
        columns = {f"{name}\0{at}": {split: x[:, at] for split, x in inputs.items()} for at, name in enumerate(shown)}
        return _grid(columns, title)
    return None


def _grid(columns: Mapping[str, Mapping[str, Tensor]], title: str) -> Figure:
    """Draw a histogram for each of several columns."""
    figure, places = panels(len(columns), 5, (2.1, 1.6), f"Inputs as the network gets them{title}")
    for axes, (name, values) in zip(places, columns.items()):
        _overlaid(axes, {split: value.float() for split, value in values.items()})
        axes.set_title(short(name.partition("\0")[0], 24), fontsize=8, color=INK)
        axes.set_yticks([])
        axes.tick_params(labelsize=6)
    add_legend(places[min(5, len(columns)) - 1], loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _overlaid(axes: Axes, values: Mapping[str, Tensor]) -> None:
    """Draw histograms over each other with common bins; each has the area 1."""
    finite = {split: value[value.isfinite()] for split, value in values.items()}
    everything = torch.cat([*finite.values()])
    if len(everything):
        low, high = float(everything.min()), float(everything.max())
        bins = np.linspace(low, high if high > low else low + 1, _BINS + 1).tolist()
        for split, value in finite.items():
            filled = split == "train" or len(finite) == 1
            form: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.35}
            form = form if filled else {"histtype": "step", "linewidth": 1.2}
            colour = _SPLIT_COLOURS.get(split, INK)
            axes.hist(value.numpy(), bins=bins, density=True, color=colour, label=split, **form)
    style(axes)


def _tokens(inputs: Mapping[str, Tensor], view: TextView) -> Figure:
    """Draw the share of the most frequent tokens."""
    size = max(int(x.max()) for x in inputs.values()) + 1
    shares = {split: torch.bincount(x.flatten().long(), minlength=size) / x.numel() for split, x in inputs.items()}
    order = next(iter(shares.values())).argsort(descending=True)[:_TOKENS]
    figure, axes = new_figure(8.0, 3.0, f"Most frequent tokens (of {size})")
    _beside(axes.bar, {split: values[order] for split, values in shares.items()})
    names = [repr(view.decode(token.reshape(1)))[1:-1].replace("$", r"\$") for token in order]
    axes.set_xticks(range(len(order)), ["␣" if name == " " else name for name in names])
    axes.set_ylabel("percent")
    add_legend(axes)
    return figure


def losses_chart(losses: Tensor) -> Figure:
    """Draw how the losses of all samples of a split are distributed.

    Args:
        losses: `(N,)`; those that are not finite are left out.
    """
    figure, axes = new_figure(7.0, 2.6, "Loss of each sample")
    finite = losses[losses.isfinite()]
    if len(finite):
        axes.hist(finite.numpy(), bins=60, color=BLUE, log=True)
        axes.axvline(float(finite.mean()), color=INK, linewidth=1)
        axes.annotate(f"mean {float(finite.mean()):.4g}", (float(finite.mean()), 1), xycoords=("data", "axes fraction"),
                      xytext=(4, -8), textcoords="offset points", fontsize=8, color=INK)  # fmt: skip
    axes.set(xlabel="loss", ylabel="samples")
    return figure


def predicted_chart(outputs: Tensor, targets: Tensor) -> Figure:
    """Draw predicted numbers over their targets.

    Args:
        outputs: `(N,)`.
        targets: `(N,)`.
    """
    figure, axes = new_figure(4.6, 4.2, "Predictions over targets")
    axes.scatter(targets.numpy(), outputs.numpy(), s=8, color=BLUE, alpha=0.6, linewidths=0)
    low, high = float(targets.min()), float(targets.max())
    axes.plot([low, high], [low, high], color=FAINT, linewidth=1, zorder=0)
    axes.set(xlabel="target", ylabel="prediction")
    return figure


def samples_chart(samples: Sequence[Sample], view: InputView, title: str) -> Figure:
    """Draw samples in a grid with their rows, targets and predictions.

    Args:
        samples: What is drawn.
        view: How the inputs are shown.
        title: Heading of the figure.
    """
    wide = 3 if view.wide else min(8, max(1, math.ceil(math.sqrt(len(samples) * 1.6))))
    size = (2.9, 1.0) if view.kind == "texts" else (2.9, 1.7) if view.wide else (1.25, 1.65)
    figure, places = panels(len(samples), wide, size, title)
    for axes, sample in zip(places, samples):
        view.draw(axes, sample.x)
        good = None if sample.answer is None else sample.answer.is_right
        colour = INK if good is None else "#1a7f4b" if good else "#c2385a"
        axes.set_title(caption(sample), fontsize=6.5, color=colour, pad=3)
    if view.same_scale:
        limits = [axes.get_xlim() for axes in places]
        for axes in places:
            axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
    return figure


def caption(sample: Sample) -> str:
    """Return what stands above a sample: its row, and target and prediction where they are short."""
    lines = [f"row {sample.row}" + ("" if sample.loss is None else f"   loss {sample.loss:.3g}")]
    target = sample.target.replace("$", r"\$")
    if sample.answer is None:
        return "\n".join([*lines, *([short(target, 22)] if sample.target and "\n" not in target else [])])
    if len(target) < 60 and "\n" not in target:
        said = short(sample.answer.text.replace("$", r"\$"), 16)
        share = "" if sample.answer.confidence is None else f" {sample.answer.confidence:.0%}"
        lines += [f"{short(target, 16)} → {said}{share}"]
    return "\n".join(lines)
