"""TensorBoard events: the only place that knows its writer and its tag names."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit.loggers.base import Logger

FLUSH_SECONDS = 10
"""Curves appear in the browser at most this much later."""


class TensorBoardLogger(Logger):
    """Writes everything into one directory: one run in TensorBoard, whatever is logged, however often it is resumed.

    Args:
        folder: The directory; made at the first write, when TensorBoard is imported too.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._made: Any = None
        self._purge_step: int | None = None

    @property
    def _writer(self) -> Any:
        if self._made is None:
            from torch.utils.tensorboard import SummaryWriter

            _wait_for_a_later_name(self.folder)
            self._made = SummaryWriter(str(self.folder), flush_secs=FLUSH_SECONDS, purge_step=self._purge_step)
        return self._made

    def start(self, step: int) -> None:
        """On a resume, hide what the interrupted run wrote after `step`."""
        self.close()
        # TensorBoard drops everything at the purge step too, so it is the first step that will be written again
        self._purge_step = step + 1 if step > 0 and self.folder.exists() else None

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """One curve per name; the epoch is a curve of its own."""
        writer = self._writer
        for name, value in values.items():
            writer.add_scalar(tag(name), value, step)
        writer.add_scalar("epoch", epoch, step)

    def hparams(self, params: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Fill the HParams tab, in this directory: `SummaryWriter.add_hparams` would start another run below it."""
        from torch.utils.tensorboard.summary import hparams

        writer = self._writer.file_writer
        for summary in hparams(flat(params), {tag(name): value for name, value in metrics.items()}):
            writer.add_summary(summary)
        self._made.flush()

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        """A matplotlib figure as an image. `SummaryWriter.add_figure` would import pyplot and pick a window system."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from numpy import asarray

        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        self._writer.add_image(tag(name), asarray(canvas.buffer_rgba())[..., :3], step, dataformats="HWC")

    def text(self, name: str, markdown: str, *, step: int) -> None:
        """Markdown in the Text tab."""
        self._writer.add_text(tag(name), markdown, step)

    def images(self, name: str, images: Any, *, step: int) -> None:
        """A grid of pictures, each stretched to the full range of grey or colour."""
        pictures = images.detach().float().cpu()
        pictures = pictures if pictures.shape[1] in (1, 3) else pictures[:, :1]
        low, high = pictures.amin((1, 2, 3), keepdim=True), pictures.amax((1, 2, 3), keepdim=True)
        self._writer.add_images(tag(name), (pictures - low) / (high - low).clamp_min(1e-12), step)

    def graph(self, model: Any, example: Any) -> None:
        """The traced graph of the model."""
        self._writer.add_graph(model, example)

    def close(self) -> None:
        """Write what is left."""
        if self._made is not None:
            self._made.close()
            self._made = None


def _wait_for_a_later_name(folder: Path) -> None:
    """TensorBoard reads files in the order of their names, which hold the second: a resumed run must not share it."""
    taken = {file.name.split(".")[3] for file in folder.glob("events.out.tfevents.*")}
    while f"{int(time.time()):010d}" in taken:
        time.sleep(0.02)


def tag(name: str) -> str:
    """The TensorBoard tag of a name: characters it would complain about become `_`."""
    return re.sub(r"[^-/\w.]", "_", name).lstrip("/") or "_"


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names; lists and the like as text: HParams knows only numbers, flags and text.

    Args:
        params: Settings, nested mappings allowed.
        prefix: Start of every name.
    """
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            found[f"{prefix}{name}"] = value
        else:
            found[f"{prefix}{name}"] = "none" if value is None else str(value)
    return found
