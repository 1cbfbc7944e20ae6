"""TensorBoard events: the only place that knows its writer and its tag names."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.common.disk import sync_file
from lightkit.common.ledger import FACTS
from lightkit.common.pixels import pixels
from lightkit.loggers.base import Logger
from lightkit.loggers.hparams import columns, records

FLUSH_SECONDS = 10
"""Curves appear in the browser at most this much later."""
SPLITS = ("train", "val", "test")
VITALS = "vitals"
"""First part of every other tag (`vitals/lr/all`): TensorBoard sorts tags, and what is not a result belongs last."""
VIEW = "view"
"""First part of the tags of pictures, which would push curves of the same split off the screen."""
_EVENTS = "events.out.tfevents.*"


class TensorBoardLogger(Logger):
    """Writes everything into one directory: one run in TensorBoard, whatever is logged, however often it is resumed.

    Args:
        folder: The directory: that of the run itself, because TensorBoard's list of runs shows directories. Made at the
            first write, when TensorBoard is imported too.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._made: Any = None
        self._purge_step: int | None = None
        self._epoch_at: int | None = None

    @property
    def _writer(self) -> Any:
        if self._made is None:
            from torch.utils.tensorboard import SummaryWriter

            _put_first(sorted(self.folder.glob(_EVENTS)))
            self._made = SummaryWriter(str(self.folder), flush_secs=FLUSH_SECONDS, purge_step=self._purge_step)
        return self._made

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """On a resume, hide what the interrupted run wrote after its checkpoint.

        TensorBoard hides whole steps, so what was written at the very step of the checkpoint is written once more.
        """
        self.close()
        if not any(self.folder.glob(_EVENTS)):
            return
        self._purge_step, self._epoch_at = step, None
        for row in (row for row in kept if row["step"] == step):
            values = {name: math.nan if value is None else value for name, value in row.items() if name not in FACTS}
            self.scalars(values, step=step, epoch=row["epoch"])

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """One curve per name, all in one event; the epoch is a curve of its own, with one point a step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        named = {tag(name): value for name, value in values.items()}
        if step != self._epoch_at:
            named[tag("epoch")] = epoch
            self._epoch_at = step
        points = [Summary.Value(tag=name, simple_value=value) for name, value in named.items()]
        self._writer.file_writer.add_summary(Summary(value=points), step)

    def hparams(self, params: Mapping[str, Any], metrics: Mapping[str, float], overrides: Sequence[str] = ()) -> None:
        """Fill the HParams tab, in this directory: `SummaryWriter.add_hparams` would start another run below it.

        The metrics need nothing: TensorBoard shows the last point of every curve.
        """
        writer = self._writer.file_writer
        for summary in records(columns(params, overrides)):
            writer.add_summary(summary)
        self._made.flush()

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        """A matplotlib figure as an image. `SummaryWriter.add_figure` would import pyplot and pick a window system."""
        self._writer.add_image(f"{VIEW}/{tag(name)}", pixels(figure)[..., :3], step, dataformats="HWC")

    def text(self, name: str, markdown: str, *, step: int) -> None:
        """Markdown in the Text tab."""
        self._writer.add_text(tag(name), markdown, step)

    def images(self, name: str, images: Any, *, step: int) -> None:
        """A grid of pictures, each stretched to the full range of grey or colour."""
        pictures = images.detach().float().cpu()
        pictures = pictures if pictures.shape[1] in (1, 3) else pictures[:, :1]
        low, high = pictures.amin((1, 2, 3), keepdim=True), pictures.amax((1, 2, 3), keepdim=True)
        self._writer.add_images(f"{VIEW}/{tag(name)}", (pictures - low) / (high - low).clamp_min(1e-12), step)

    def graph(self, model: Any, example: Any) -> None:
        """The traced graph of the model."""
        self._writer.add_graph(model, example)

    def flush(self) -> None:
        """Wait for the writer's thread."""
        if self._made is not None:
            self._made.flush()

    def sync(self) -> None:
        """Force the newest event file to the disk; the others were before it was begun."""
        for file in sorted(self.folder.glob(_EVENTS))[-1:]:
            sync_file(file)

    def close(self) -> None:
        """Write what is left."""
        if self._made is not None:
            self._made.close()
            self._made = None


def _put_first(files: Sequence[Path]) -> None:
    """Give the event files of earlier parts of a run earlier names than the next one will get.

    TensorBoard reads files in the order of their names, which hold the second they were made in. Within one second, or
    after the clock was set back, the next file would be read before them.
    """
    now = int(time.time())
    if not files or int(files[-1].name.split(".")[3]) < now:
        return
    for age, file in zip(range(len(files), 0, -1), files):
        parts = file.name.split(".")
        parts[3] = f"{now - age:010d}"
        file.rename(file.with_name(".".join(parts)))


def tag(name: str) -> str:
    """The TensorBoard tag of a name: characters it would complain about become `_`."""
    allowed = re.sub(r"[^-/\w.]", "_", name).lstrip("/") or "_"
    return allowed if allowed.partition("/")[0] in SPLITS else f"{VITALS}/{allowed}"
