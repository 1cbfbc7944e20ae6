"""TensorBoard events: the only place that knows its writer and its tag names."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightkit.loggers.events as rewind
from lightkit.common import run_files
from lightkit.common.ledger import FACTS
from lightkit.common.names import SPLIT_NAMES
from lightkit.loggers.base import Logger
from lightkit.loggers.events import TAG, Layout, layouts, leave_failures_to_the_writer
from lightkit.processes.files import sync_file

FLUSH_SECONDS = 10
"""Curves appear in the browser at most this much later."""
VITALS = "vitals"
"""First part of every other tag (`vitals/lr/all`): TensorBoard sorts tags, and what is not a result belongs last."""
VIEW = "view"
"""First part of the tags of what a run ends with, after all curves: pictures, and the numbers of the test, which are
one point each (`view/test/accuracy`). Where they come first, TensorBoard opens on them."""
MAIN = "main"
"""First part of the tags of curves that are there twice, `main/best/val/accuracy` and a few more: the page opens on the
first group, and where runs are compared, it is by the last points of the first five curves."""
SPLITS = (*SPLIT_NAMES,)
_AFTER = "-"
"""What stands in the name of the first file of a resume where others have the host: it comes before all of these."""
HIDDEN = ("checkpoint", "extra", "hydra", "logger", "name", "on_end", "profile", "resume", "trust")
"""Sections that say how a run is watched and kept."""
ALWAYS = ("data", "model", "optim.lr", "seed")
"""What has a column in every run. TensorBoard shows five at first, so the rest is what somebody chose to type."""


class TensorBoardLogger(Logger):
    """Writes everything into one directory: one run in TensorBoard, whatever is logged, however often it is resumed.

    Args:
        folder: The directory: that of the run itself, because TensorBoard's list of runs shows directories. Made at the
            first write, when TensorBoard is imported too.
        monitor: Name of the value that decides what is best. With the losses, and the best of it so far, it is what the
            page opens on. Empty for no such group.
        mode: Whether `min` or `max` of it is better.
        splits: Names of all splits and further sets. What is measured in training is a curve, and so keeps its name.
    """

    def __init__(self, folder: Path | str, monitor: str = "", mode: str = "max", splits: Any = SPLITS) -> None:
        self.folder, self.monitor, self._splits = Path(folder), monitor, splits
        self._tag, self._plain = (partial(make, splits=splits) for make in (tag, plain_tag))
        self._better = min if mode == "min" else max
        self._best: float | None = None
        self._layout = Layout()
        self._made: Any = None
        self._epoch_at: int | None = None
        self._settings: dict[str, bool | float | str] | None = None
        self._opened = False
        self._carried: tuple[int, set[str]] = (-1, set())

    @property
    def _writer(self) -> Any:
        if self._made is None:
            from torch.utils.tensorboard import SummaryWriter

            _put_first(self._files(), int(time.time()), socket.gethostname())
            leave_failures_to_the_writer()
            self._made = SummaryWriter(str(self.folder), flush_secs=FLUSH_SECONDS)
            self._write_settings()
        return self._made

    def _write_settings(self) -> None:
        if self._settings is not None and not self._opened:
            self._opened = True
            self._made.file_writer.add_summary(session_start(self._settings))
            self._made.flush()

    def _files(self) -> list[Path]:
        """List the event files in the order in which TensorBoard reads them."""
        return sorted(self.folder.glob(run_files.EVENTS_PATTERN))

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """Take out, on a resume, what the interrupted run wrote after its checkpoint.

        TensorBoard forgets whole steps, so what was written at the very step of the checkpoint goes into a new file.
        The hyperparameters of an earlier part go, so that the run stays one session, with those it goes on with.
        """
        self.close()
        self._best, self._layout = None, Layout()
        for row in kept:
            if row["step"] < step:
                self._at_first_sight(_values(row))
                self._layout.add(map(self._tag, _values(row)))
        if not self._files():
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        now, self._epoch_at, known = int(time.time()), None, self._layout.unwritten()
        _put_first(self._files(), now, _AFTER)
        rows = [row for row in kept if row["step"] == step]
        events = [self._event(_values(row), step, row.get("epoch", 0), seconds=row.get("time", now)) for row in rows]
        told = {value.tag for event in events for value in event.summary.value}
        tags = told | {TAG}
        tags |= {self._plain(name) for row in rows for name in _values(row)}  # of tests in files of older versions
        cuts = rewind.plan(self._files(), step=step, rows=len(rows), repeated=tags, own=(*self._splits, VITALS, VIEW))
        if TAG not in told and layouts(known) != [cut.layout for cut in cuts if cut.layout][-1:]:
            events.append(Event(step=step, wall_time=now, summary=Summary(value=known)))
        carried = [event for cut in cuts for event in cut.carried]
        self._carried = step, {value.tag for event in carried for value in event.summary.value}
        name = f"{run_files.EVENTS_PATTERN.removesuffix('*')}{now:010d}.{_AFTER}.{os.getpid()}"
        if self._settings is not None:  # a rollback keeps it
            carried.append(Event(wall_time=now, summary=session_start(self._settings)))
            self._opened = True
        rewind.publish(self.folder / name, step, [*events, *carried])
        for cut in cuts:
            cut.apply()

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Log one curve per name in one event; the epoch is a curve of its own, with one point a step."""
        self._writer.file_writer.add_event(self._event(values, step, epoch), step)

    def _event(self, values: Mapping[str, float], step: int, epoch: int, *, seconds: float = 0.0) -> Any:
        from tensorboard.compat.proto.event_pb2 import Event

        named = self._at_first_sight(values) | {self._tag(name): value for name, value in values.items()}
        if step != self._epoch_at:
            named[self._tag("epoch")] = epoch
            self._epoch_at = step
        points = [{"tag": name, "simple_value": value} for name, value in named.items()]
        self._layout.add(named)
        return Event(step=step, wall_time=seconds, summary={"value": [*points, *self._layout.unwritten()]})

    def _at_first_sight(self, values: Mapping[str, float]) -> dict[str, float]:
        """Choose by tag what one looks at first: losses, the monitored value, and the best of it so far."""
        if not self.monitor:
            return {}
        names = [name for name in ("train/loss", "val/loss", self.monitor) if name in values]
        found = {f"{MAIN}/{self._plain(name)}": values[name] for name in names if not name.startswith("test/")}
        value = values.get(self.monitor, math.nan)
        if not math.isnan(value) and not self.monitor.startswith("test/"):
            self._best = value if self._best is None else self._better(self._best, value)
            found[f"{MAIN}/best/{self._plain(self.monitor)}"] = self._best
        return found

    def hparams(self, params: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
        """Fill the HParams tab, in this directory: `SummaryWriter.add_hparams` would start another run below it.

        The metrics need nothing: TensorBoard shows the last point of every curve, the best monitored value first. The
        settings are written with the first thing that is logged, and at once on the disk, for a run that is killed. As
        long as there is no end, the status is unknown.
        """
        self._settings, self._opened = columns(params, overrides), False
        if self._made is not None:
            self._write_settings()

    def end(self, status: str) -> None:
        """Give the session in the HParams tab its status; TensorBoard takes the first that it reads of a run."""
        if self._settings is not None:
            self._writer.file_writer.add_summary(session_end(status))
            self._made.flush()

    def events(self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, bool | float | str]) -> list[bytes]:
        """Return everything that a run has logged, which has ended, as the events of one file: see `packed`.

        Args:
            rows: Its rows, as in `metrics.jsonl`.
            columns: Its settings: see `columns`.
        """
        from tensorboard.compat.proto.event_pb2 import Event

        now, begin = int(time.time()), Event(wall_time=time.time(), file_version="brain.Event:2")
        events = [self._event(_values(row), row["step"], row["epoch"], seconds=row["time"]) for row in rows]
        ends = session_start(columns), session_end("finished")
        events += [Event(wall_time=now, summary=summary) for summary in ends]
        return [event.SerializeToString() for event in (begin, *events)]

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        """Log a figure as an image; `SummaryWriter.add_figure` would import pyplot and pick a window system."""
        from lightkit.common.drawing import pixels  # matplotlib is slow to import

        name = f"{VIEW}/{self._plain(name)}"
        if not self._is_there(name, step):
            self._writer.add_image(name, pixels(figure)[..., :3], step, dataformats="HWC")

    def text(self, name: str, markdown: str, *, step: int) -> None:
        """Log Markdown for the Text tab."""
        if not self._is_there(f"{self._plain(name)}/text_summary", step):
            self._writer.add_text(self._plain(name), markdown, step)

    def images(self, name: str, images: Any, *, step: int) -> None:
        """Log a grid of pictures, each stretched to the full range of grey or colour."""
        if self._is_there(f"{VIEW}/{self._plain(name)}", step):
            return
        self._writer.add_images(f"{VIEW}/{self._plain(name)}", stretched(images), step)

    def histogram(self, name: str, values: Any, *, step: int) -> None:
        """Log a histogram of the values that are finite."""
        name, values = f"{VIEW}/{self._plain(name)}", values.detach().float().cpu()
        values = values[values.isfinite()]
        if len(values) and not self._is_there(name, step):
            self._writer.add_histogram(name, values, step)

    def _is_there(self, name: str, step: int) -> bool:
        """Tell whether something was logged before the checkpoint of this step, and must not stand there twice."""
        return step == self._carried[0] and name in self._carried[1]

    def graph(self, model: Any, example: Any) -> None:
        """Log the traced graph of the model."""
        self._writer.add_graph(model, example)

    def flush(self) -> None:
        """Wait for the writer's thread."""
        if self._made is not None:
            self._made.flush()

    def sync(self) -> None:
        """Force the newest event file to the disk; the others were before it was begun."""
        for file in self._files()[-1:]:
            sync_file(file)

    def close(self) -> None:
        """Write what is left."""
        if self._made is not None:
            self._made.close()
            self._made = None


def stretched(images: Any) -> Any:
    """Stretch each of some pictures `(N, C, H, W)` to the range 0 to 1; of other than 1 or 3 channels the first."""
    pictures = images.detach().float().cpu()
    pictures = pictures if pictures.shape[1] in (1, 3) else pictures[:, :1]
    low, high = pictures.amin((1, 2, 3), keepdim=True), pictures.amax((1, 2, 3), keepdim=True)
    return (pictures - low) / (high - low).clamp_min(1e-12)


def _put_first(files: Sequence[Path], now: int, mark: str) -> None:
    """Give the event files of earlier parts of a run earlier names than the next one will get.

    TensorBoard reads files in the order of their names, which hold the second they were made in. Within one second, or
    after the clock was set back, the next file would be read before them.

    Args:
        files: The files there are, in order.
        now: The second that the next one is named after.
        mark: What its name has after that.
    """
    if not files or files[-1].name < f"{run_files.EVENTS_PATTERN.removesuffix('*')}{now:010d}.{mark}":
        return
    for age, file in zip(range(len(files), 0, -1), files):
        parts = file.name.split(".")
        parts[3] = f"{now - age:010d}"
        file.rename(file.with_name(".".join(parts)))


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a row of `metrics.jsonl`."""
    told = {name: math.nan if value is None else value for name, value in row.items() if name not in FACTS}
    return {name: value for name, value in told.items() if isinstance(value, (int, float))}


@cache
def tag(name: str, splits: tuple[str, ...] = SPLITS) -> str:
    """Return the tag of a value's name, which decides about its place on the page, sorted by tags."""
    return f"{VIEW}/{plain_tag(name)}" if name.lstrip("/").startswith("test/") else plain_tag(name, splits)


@cache
def plain_tag(name: str, splits: tuple[str, ...] = SPLITS) -> str:
    """Return the tag of anything else: characters that TensorBoard would complain about become `_`."""
    allowed = re.sub(r"[^-/\w.]", "_", name).lstrip("/") or "_"
    return allowed if allowed.partition("/")[0] in splits else f"{VITALS}/{allowed}"


def columns(params: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, bool | float | str]:
    """Choose the settings worth comparing: what was typed, as all that is swept is, the seed, what learns what.

    A `_target_` goes by the name of its class (`model: MLP`), an option by its own (`finetune: lora`). What is not set
    (null, an empty list) has no column.

    Args:
        params: The configuration, nested.
        overrides: What was typed on the command line (`optim.lr=0.1`, `data=wine`).
    """
    pairs = [override.lstrip("+").partition("=") for override in overrides if not override.startswith("~")]
    typed = {key.partition("@")[0]: value for key, _, value in pairs if key.partition(".")[0] not in HIDDEN}
    known = flat(params)
    found = {name: known[name] for name in (*typed, *ALWAYS) if name in known}
    options = {name for name in typed if isinstance(params.get(name), Mapping) or name == "experiment"}
    return found | {name: typed[name] for name in typed if name in options and name not in known}


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Flatten settings to dotted names; lists become text, as HParams knows only numbers, flags and text.

    Args:
        params: Settings, nested mappings allowed.
        prefix: Start of every name.
    """
    found: dict[str, bool | float | str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is None or (isinstance(value, list | tuple) and not value):
            continue
        elif name == "_target_" and prefix:
            found[prefix.removesuffix(".").removesuffix(".dataset")] = str(value).rpartition(".")[2]
        else:
            is_plain = isinstance(value, bool | str) or (isinstance(value, int | float) and math.isfinite(value))
            found[f"{prefix}{name}"] = value if is_plain else str(value)
    return found


def session_start(params: Mapping[str, bool | float | str]) -> Any:
    """Make the summary that opens a session of the HParams tab.

    There is no summary of the experiment on purpose: TensorBoard takes the first it finds for all runs, and so hides
    what only other runs have. Without one it makes a column of everything, those first in which the runs differ, and
    one of every curve.

    Args:
        params: Settings by name.
    """
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
    for name, value in params.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        setattr(start.hparams[name], f"{kind}_value", value)
    return _summary(metadata.SESSION_START_INFO_TAG, session_start_info=start)


def session_end(status: str) -> Any:
    """Make the summary that closes a session of the HParams tab.

    Args:
        status: `finished` or `failed`.
    """
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    code = api_pb2.STATUS_SUCCESS if status == "finished" else api_pb2.STATUS_FAILURE
    end = plugin_data_pb2.SessionEndInfo(status=code, end_time_secs=time.time())
    return _summary(metadata.SESSION_END_INFO_TAG, session_end_info=end)


def _summary(tag: str, **content: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content)
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString())
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
