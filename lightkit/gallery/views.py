"""How an input is shown: as an image, a row of a table, a text, or curves."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.image import imsave
from torch import Tensor

from lightkit.common.drawing import BLUE, COLOURS, FAINT, INK, short, style
from lightkit.common.modules import shape_of
from lightkit.data import Data
from lightkit.data.placed import PLACED, found_in, overlaid

_SMALLEST = 96
"""Pixels below which an image on the page is enlarged, each of its pixels staying a square."""
_CELLS = 12
"""Features of a row that are shown."""
_CURVES = 6
_LINE = 64
"""Characters of a line of text in a figure."""
_LINES = 8


class InputView:
    """The plain case: inputs that are shown by their shapes.

    Args:
        data: The splits, with the scaling of the inputs, which is undone for the eye.
    """

    kind = "values"
    wide = False
    """Whether a sample needs a line of its own."""
    same_scale = False
    """Whether the pictures of all samples have the same axis of values."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.notes: list[str] = []
        """What was done to the inputs so that they can be seen."""

    def look(self, inputs: Sequence[Any]) -> None:
        """Take note of all inputs that will be shown together."""

    def raw(self, x: Tensor) -> Tensor:
        """Undo the scaling of an input."""
        normalizer = self.data.normalizer
        x = x.detach().to(torch.float32)
        return x if normalizer is None else x * normalizer.scale + normalizer.shift

    def html(self, x: Any) -> str:
        """Return an input as HTML."""
        return f"<code>{html.escape(shape_of(x))}</code>"

    def draw(self, axes: Axes, x: Any) -> None:
        """Draw an input."""
        axes.text(0.5, 0.5, shape_of(x).replace(", ", ",\n"), ha="center", va="center", fontsize=7, color=INK)
        axes.set_axis_off()


class ImageView(InputView):
    """Images `(C, H, W)`: in colour where they have three channels, else the first channel in grey."""

    kind = "images"

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self._low, self._high = 0.0, 1.0

    def look(self, inputs: Sequence[Tensor]) -> None:
        """Find the range of brightness: 0 to 1, 0 to 255, or what the images have."""
        values = [self.raw(x) for x in inputs]
        low = min((float(x.min()) for x in values), default=0.0)
        high = max((float(x.max()) for x in values), default=1.0)
        if low >= -0.01 and high <= 1.01:
            return
        if low >= 0 and 2 < high <= 255:
            self._high = 255.0
            return
        self._low, self._high = low, high if high > low else low + 1
        self.notes.append(f"Brightness runs from {low:.3g} (black) to {high:.3g} (white).")

    def pixels(self, x: Tensor) -> Any:
        """Return an image as an array `(H, W, 3)` of bytes."""
        raw = ((self.raw(x) - self._low) / (self._high - self._low)).clamp(0, 1)
        shown = raw if raw.shape[0] == 3 else raw[:1].expand(3, -1, -1)
        return (shown.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()

    def highlighted(self, x: Tensor, attribution: Tensor) -> Tensor:
        """Return an image beside a grey copy that is red where its attribution is large, `(3, H, 2 W)`."""
        image, size = torch.from_numpy(self.pixels(x)).permute(2, 0, 1) / 255, attribution.sum(0).abs()
        grey, share = image.mean(0) / 2, (size / size.quantile(0.99).clamp_min(1e-12)).clamp(max=1.0)
        return torch.cat([image, torch.stack([torch.maximum(grey, share), grey, grey])], 2)

    def html(self, x: Tensor) -> str:
        """Return an image as HTML with its content inside."""
        file, pixels = io.BytesIO(), self.pixels(x)
        imsave(file, pixels, format="png")
        height, width = pixels.shape[:2]
        size = max(1, round(_SMALLEST / max(height, width))) if max(height, width) < _SMALLEST else 1
        coded = base64.b64encode(file.getvalue()).decode()
        sized = f'width="{width * size}" height="{height * size}"'
        return f'<img class="pixels" alt="" {sized} src="data:image/png;base64,{coded}">'

    def draw(self, axes: Axes, x: Tensor) -> None:
        """Draw an image without axes."""
        axes.imshow(self.pixels(x), interpolation="nearest")
        axes.set_axis_off()


class PlacedView(ImageView):
    """Pictures beside copies with what lies in them: tuples of an image, and masks or boxes."""

    wide = True

    def pixels(self, x: Any) -> Any:
        """Return the copies side by side as an array `(H, W, 3)` of bytes."""
        image, names = torch.from_numpy(super().pixels(x[0])).permute(2, 0, 1), self.data.info.class_names
        shown = [overlaid(image, target, names) for target in (None, *map(found_in, x[1:]))]
        return torch.cat(shown, 2).permute(1, 2, 0).numpy()


class TableView(InputView):
    """Rows `(F,)` of a table, with the names of the features where they are known."""

    kind = "rows of a table"
    wide = True
    same_scale = True

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.names = feature_names(data)

    def html(self, x: Tensor) -> str:
        """Return a row as names and values in its units, the first ones."""
        pairs = zip(self.names[:_CELLS], self.raw(x)[:_CELLS].tolist())
        cells = [f"<span><i>{html.escape(name)}</i> {value:.5g}</span>" for name, value in pairs]
        return f'<div class="features">{" ".join(cells)}</div>'

    def draw(self, axes: Axes, x: Tensor) -> None:
        """Draw the features as the network gets them, as bars: raw ones have different units."""
        values = x.detach().to(torch.float32)[:_CELLS].tolist()
        axes.barh(range(len(values)), values, color=BLUE, height=0.7)
        axes.set_yticks(range(len(values)), [short(name, 16) for name in self.names[: len(values)]])
        axes.invert_yaxis()
        axes.axvline(0, color=FAINT, linewidth=0.8)
        style(axes)
        axes.tick_params(labelsize=5)


class TextView(InputView):
    """Texts as tokens `(T,)`, or as mappings with these."""

    kind = "texts"
    wide = True

    def decode(self, tokens: Any) -> str:
        """Return the text of tokens; their numbers where the vocabulary is not known."""
        info, tokens = self.data.info, tokens["input_ids"] if isinstance(tokens, Mapping) else tokens
        names, padding = info.vocabulary, info.more.get("pad_token_id", info.padding_idx)
        numbers = [number for number in map(int, tokens.flatten().tolist()) if number != padding and number >= 0]
        if info.decode is not None and not names:
            return info.decode(numbers)
        between = "" if names and padding is None else " "  # symbols, or words and numbers
        return between.join(names[number] if names else str(number) for number in numbers)

    def told(self, sample: Any) -> list[tuple[str, str]]:
        """Return of each token of a sample after the first one what was to be predicted, and what was."""
        wanted = (self.decode(token.reshape(1)) for token in sample.y)
        return list(zip(wanted, sample.answer.pieces))

    def html(self, x: Tensor) -> str:
        """Return a text as it is."""
        return f"<pre>{html.escape(self.decode(x))}</pre>"

    def draw(self, axes: Axes, x: Tensor) -> None:
        """Draw the beginning of a text."""
        text = self.decode(x).replace("\n", "⏎").replace("\t", "→")
        lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)][:_LINES]
        axes.text(0, 1, "\n".join(lines).replace("$", r"\$"), va="top", fontfamily="monospace", fontsize=5, color=INK)
        axes.set_axis_off()


class CurveView(InputView):
    """Inputs `(C, T)`: a curve a channel."""

    kind = "curves"

    def html(self, x: Tensor) -> str:
        """Return the curves as a drawing."""
        rows = self.raw(x)[:_CURVES]
        low, high = float(rows.min()), float(rows.max())
        scaled = 58 - 56 * (rows - low) / ((high - low) or 1.0)
        width = np.linspace(2, 178, rows.shape[1])
        paths = [
            f'<polyline fill="none" stroke="{colour}" points="'
            + " ".join(f"{at:.1f},{value:.1f}" for at, value in zip(width, row.tolist()))
            + '"/>'
            for row, colour in zip(scaled, COLOURS)
        ]
        return f'<svg width="180" height="60" viewBox="0 0 180 60">{"".join(paths)}</svg>'

    def draw(self, axes: Axes, x: Tensor) -> None:
        """Draw the curves."""
        for row, colour in zip(self.raw(x)[:_CURVES], COLOURS):
            axes.plot(row.numpy(), color=colour, linewidth=0.8)
        style(axes)
        axes.tick_params(labelsize=5)


def view_of(data: Data, x: Any) -> InputView:
    """Choose how the inputs of a data set are shown.

    Args:
        data: The splits.
        x: One input.
    """
    x = x.get("input_ids") if isinstance(x, Mapping) else x
    if not isinstance(x, Tensor):
        return InputView(data)
    if (data.info.vocab_size or data.info.decode) and not x.is_floating_point():
        return TextView(data)
    numbers = x.numel() > 0 and x.dtype != torch.bool and not x.is_complex()
    if numbers and x.ndim == 3 and x.shape[0] <= 16:
        return (PlacedView if data.info.task in PLACED else ImageView)(data)
    if numbers and x.ndim in (1, 2):
        return TableView(data) if x.ndim == 1 else CurveView(data)
    return InputView(data)


def feature_names(data: Data) -> list[str]:
    """Return the names of the features of a table; their numbers where it has none."""
    count = data.info.input_shape[0] if data.info.input_shape else 0
    names = list(getattr(data.source, "feature_names", ()))
    return names if len(names) == count else [str(number) for number in range(count)]
