"""Weights and gradients by name: how large they are, and how they are spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern
from lightkit.common.text import counted

TITLES = ("name", "shape", "mean", "std", "min", "max", "norm", "zeros %", "histogram")
GRADIENT_TITLES = ("grad norm", "grad / weight", "grad zeros %", "grad histogram")
RIGHT = (2, 3, 4, 5, 6, 7, 9, 10, 11)
"""Columns of numbers."""
BINS = 16
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS, _MOST_PANELS = 4, 60
_NO_GRADIENT = "none"


@dataclass(frozen=True)
class Spread:
    """How numbers are spread; those that are not finite count apart."""

    count: int
    """How many numbers."""
    mean: float
    """Their mean."""
    std: float
    """Standard deviation."""
    min: float
    """The least."""
    max: float
    """The largest."""
    norm: float
    """Square root of the sum of squares."""
    zeros: float
    """Share that is exactly zero."""
    nonfinite: int
    """How many are not finite."""
    histogram: tuple[int, ...]
    """How many there are in each of `BINS` bins of the same width from least to largest."""

    @property
    def bars(self) -> str:
        """Return the histogram as a line of text."""
        most = max(self.histogram, default=0)
        return "".join(_BARS[math.ceil((len(_BARS) - 1) * n / most)] for n in self.histogram) if most else ""


@dataclass(frozen=True)
class ParameterStats:
    """A tensor of a model."""

    name: str
    """Its name."""
    shape: tuple[int, ...]
    """Its shape."""
    trains: bool
    """Whether it is trained."""
    values: Spread
    """How its values are spread."""
    gradient: Spread | None = None
    """How its gradient is spread; None where it has none."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "shape": list(self.shape)}

    def cells(self, *, gradients: bool) -> list[str]:
        """Return what a row of a table shows of it."""
        values, shape = self.values, "×".join(map(str, self.shape)) or "single"
        odd = f" {values.nonfinite} not finite" if values.nonfinite else ""
        cells = [self.name, shape, *map(_short, (values.mean, values.std, values.min, values.max, values.norm))]
        cells += [_percent(values.zeros), values.bars + odd]
        if not gradients:
            return cells
        grad = self.gradient
        if grad is None:
            return [*cells, _NO_GRADIENT if self.trains else "frozen", "", "", ""]
        odd = f" {grad.nonfinite} not finite" if grad.nonfinite else ""
        ratio = _short(grad.norm / values.norm) if values.norm else ""
        return [*cells, _short(grad.norm), ratio, _percent(grad.zeros), grad.bars + odd]


def spread(tensor: Tensor) -> Spread:
    """Measure how the numbers of a tensor are spread."""
    flat = tensor.detach().flatten().to("cpu", torch.float64 if tensor.numel() < 1 << 24 else torch.float32)
    values = flat[flat.isfinite()]
    if not len(values):
        nan = math.nan
        return Spread(len(flat), nan, nan, nan, nan, nan, 0.0, len(flat), ())
    low, high = values.min().item(), values.max().item()
    # All in the middle where there is one value only.
    room = (0.0, 0.0) if high > low else (0.5, 0.5)
    counts = torch.histc(values, BINS, low - room[0], high + room[1])
    return Spread(
        count=len(flat),
        mean=values.mean().item(),
        std=values.std(correction=0).item(),
        min=low,
        max=high,
        norm=values.norm().item(),
        zeros=(values == 0).double().mean().item(),
        nonfinite=len(flat) - len(values),
        histogram=tuple(int(count) for count in counts),
    )


def parameters_of(
    model: nn.Module, *, match: Sequence[str] = (), buffers: bool = False, loss: Callable[[], Tensor] | None = None
) -> list[ParameterStats]:
    """Measure the parameters of a model.

    Args:
        model: The network, on any device.
        match: Patterns of names to take; none takes all.
        buffers: Take buffers too, such as the means of batch norm.
        loss: Computes a loss, whose gradients are measured too: they are left in the model.

    Raises:
        UserError: No name fits a pattern.
    """
    found = dict(model.named_parameters())
    named: dict[str, Tensor] = {**found, **(dict(model.named_buffers()) if buffers else {})}
    chosen = set(named) if not match else set[str]()
    for text in match:
        pattern = Pattern(text, key="--match")
        fitting = {name for name in named if pattern.covers(name)}
        if not fitting:
            raise UserError("no such parameter", key="--match", received=text, choices=named, family="pattern")
        chosen |= fitting
    before = {name: spread(named[name]) for name in named if name in chosen}  # a forward pass may change buffers
    if loss is not None:
        model.zero_grad(set_to_none=True)
        loss().backward()
    measured = []
    for name, values in before.items():
        tensor = named[name]
        gradient = None if loss is None or tensor.grad is None else spread(tensor.grad)
        trains = name in found and tensor.requires_grad
        measured.append(ParameterStats(name, tuple(tensor.shape), trains, values, gradient))
    return measured


def lines_about(parameters: Sequence[ParameterStats], *, gradients: bool) -> list[str]:
    """Say what strikes in a list of parameters, after a line about all of them."""
    count = sum(one.values.count for one in parameters)
    norm = _short(_together([one.values for one in parameters]))
    lines = [f"{count:,} numbers in {counted(len(parameters), 'tensor')}, norm {norm}"]
    odd = {"values that are not finite": [one.name for one in parameters if one.values.nonfinite]}
    if gradients:
        grads = [one.gradient for one in parameters if one.gradient is not None]
        lines[0] += f"; norm of their gradients {_short(_together(grads))}"
        odd["no gradient"] = [one.name for one in parameters if one.trains and one.gradient is None]
        odd["a gradient of zeros"] = [one.name for one in parameters if one.gradient and one.gradient.zeros == 1]
        odd["gradients that are not finite"] = [
            one.name for one in parameters if one.gradient and one.gradient.nonfinite
        ]
    return lines + [f"{what}: {', '.join(names)}" for what, names in odd.items() if names]


def draw_histograms(found: Sequence[ParameterStats], path: Path) -> int:
    """Draw a panel for each parameter: its histogram, and that of its gradient.

    Args:
        found: The parameters; the first ones where there are many.
        path: The picture, in any format of matplotlib.

    Returns:
        How many panels there are.

    Raises:
        UserError: The file cannot be written, or its name ends like no picture.
    """
    from lightkit.common.drawing import BLUE, ORANGE, panels

    shown, spreads = found[:_MOST_PANELS], list[tuple[str, Spread, str]]()
    for one in shown:
        spreads.append((one.name, one.values, BLUE))
        if one.gradient is not None:
            spreads.append((f"{one.name} (gradient)", one.gradient, ORANGE))
    figure, places = panels(len(spreads), _COLUMNS, (3.0, 1.7))
    for place, (name, values, colour) in zip(places, spreads):
        if values.histogram:
            width = (values.max - values.min) / BINS or 1.0
            low = values.min if values.max > values.min else values.min - 0.5 * BINS
            place.bar([low + width * (at + 0.5) for at in range(BINS)], values.histogram, width, color=colour)
        place.set_title(name, fontsize=7)
        place.tick_params(labelsize=6)
        place.xaxis.get_offset_text().set_fontsize(6)
        place.ticklabel_format(axis="x", style="sci", scilimits=(-3, 3))
        place.set_yticks([])
        place.locator_params(axis="x", nbins=5)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the picture: {error}", key="--output", received=str(path)) from error
    return len(shown)


def _together(spreads: Sequence[Spread]) -> float:
    return math.sqrt(sum(one.norm**2 for one in spreads if math.isfinite(one.norm)))


def _short(value: float) -> str:
    return f"{value:.3g}"


def _percent(share: float) -> str:
    return "" if not share else f"{100 * share:.3g}"
