"""Event files after a resume: no record stands twice, whoever reads them; and the layout of the charts."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout as Proto
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from lightkit.loggers import TensorBoardLogger
from lightkit.loggers import events as rewind
from lightkit.loggers.events import (
    CATEGORIES,
    TAG,
    Layout,
    leave_failures_to_the_writer,
    packed,
    read_events,
    read_scalars,
    repeated,
    write,
)


def row(step: int) -> dict[str, Any]:
    return {"step": step, "epoch": step // 10, "time": 100.0 + step, "train/loss": float(step), "lr/all": None}


def log(folder: Path, first: int, last: int, *, resume: int = 0) -> TensorBoardLogger:
    """A part of a run: scalars at every step, a figure at every tenth."""
    logger = TensorBoardLogger(folder)
    logger.start(resume, [row(resume)] if resume else [])
    for step in range(first, last):
        logger.scalars({"train/loss": float(step), "lr/all": 1.0}, step=step, epoch=step // 10)
        if step % 10 == 0:
            draw(logger, step)
    return logger


def draw(logger: TensorBoardLogger, step: int, name: str = "mine/curve") -> None:
    from matplotlib.figure import Figure

    logger.figure(name, Figure(figsize=(1, 1), dpi=10), step=step)
    logger.text("mine/words", f"at {step}", step=step)


def raw(folder: Path) -> Counter[tuple[str, int]]:
    """How often each tag stands at a step, by TensorBoard's own reader of single files."""
    return Counter(
        (value.tag, event.step)
        for file in folder.glob("events.out.tfevents.*")
        for event in LegacyEventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag != TAG
    )


def shown(folder: Path, events: EventAccumulator | None = None) -> dict[str, list[int]]:
    """The steps of each curve, picture and text in TensorBoard."""
    events = events or opened(folder)
    events.Reload()
    names = [name for name in events.Tags()["tensors"] if name != TAG]
    return {name: [point.step for point in events.Tensors(name)] for name in names}


def opened(folder: Path) -> EventAccumulator:
    """What TensorBoard has of a run in its memory, for as long as it is open."""
    return EventAccumulator(str(folder), size_guidance={"tensors": 0})


ALL = {
    **{name: list(range(1, 40)) for name in ("train/loss", "vitals/lr/all", "vitals/epoch")},
    **{name: [10, 20, 30] for name in ("view/vitals/mine/curve", "vitals/mine/words/text_summary")},
}
EXPECTED = Counter({(tag, step): 1 for tag, steps in ALL.items() for step in steps})


@pytest.mark.parametrize("resume", [15, 20, 29])
def test_after_a_resume_every_tag_stands_once_at_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: int
) -> None:
    log(tmp_path, 1, 30).close()
    assert not repeated(tmp_path)
    if resume == 29:  # a clock that was set back between the parts changes nothing
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 86_400)
    log(tmp_path, resume + 1, 40, resume=resume).close()
    assert raw(tmp_path) == EXPECTED
    assert shown(tmp_path) == ALL
    assert not repeated(tmp_path)


def test_an_open_tensorboard_shows_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time()
    log(tmp_path, 1, 30).close()
    events = opened(tmp_path)
    assert shown(tmp_path, events)["train/loss"][-1] == 29
    for part, (resume, last) in enumerate([(20, 27), (25, 26), (25, 40)]):
        monkeypatch.setattr(time, "time", lambda part=part: began + 10 * (part + 1))  # no process starts at once
        log(tmp_path, resume + 1, last, resume=resume).close()
        assert shown(tmp_path, events) == shown(tmp_path)
    assert shown(tmp_path, events) == ALL
    assert raw(tmp_path) == EXPECTED


def test_what_a_callback_drew_at_the_step_of_the_checkpoint_stays_and_is_not_drawn_twice(tmp_path: Path) -> None:
    log(tmp_path, 1, 21).close()
    logger = TensorBoardLogger(tmp_path)
    logger.start(20, [row(20)])
    draw(logger, 20)
    draw(logger, 20, "mine/other")
    logger.close()
    counted = raw(tmp_path)
    assert counted["view/vitals/mine/curve", 20] == counted["view/vitals/mine/other", 20] == 1
    assert counted["vitals/mine/words/text_summary", 20] == 1


def test_what_came_after_the_checkpoint_at_its_very_step_goes(tmp_path: Path) -> None:
    logger = log(tmp_path, 1, 21)
    logger.scalars({"test/loss": 1.0}, step=20, epoch=2)
    draw(logger, 20, "test/roc")
    logger.hparams({"optim": {"lr": 0.1}})
    logger.close()
    log(tmp_path, 21, 23, resume=20).close()
    counted = raw(tmp_path)
    assert {tag for tag, _ in counted} == set(ALL)
    assert set(counted.values()) == {1}
    for _ in range(3):
        finished = log(tmp_path, 23, 23, resume=22)
        finished.scalars({"test/loss": 1.0}, step=22, epoch=2)
        finished.close()
        assert raw(tmp_path)["view/test/loss", 22] == 1, "also where nothing but that was repeated"
    again = log(tmp_path, 23, 24, resume=22)
    again.hparams({"optim": {"lr": 0.1}})
    again.end("finished")
    again.close()
    assert [n for (tag, _), n in raw(tmp_path).items() if tag.startswith("_hparams_")] == [1, 1]


def test_a_folder_in_which_earlier_resumes_left_records_twice_is_cleaned(tmp_path: Path) -> None:
    for first, last, purge in ((1, 30, None), (20, 35, 20), (25, 38, 25)):
        writer = SummaryWriter(str(tmp_path), purge_step=purge, filename_suffix=f".{first}")
        for step in range(first, last):
            writer.add_scalar("train/loss", step, step)
        writer.close()
        # Files are read by their names, which within a second count the writers of the process: 10 comes before 9.
        (written,) = tmp_path.glob(f"events.out.tfevents.*.{first}")
        written.rename(tmp_path / f"events.out.tfevents.{first:010d}.host.{first}")
    assert max(raw(tmp_path).values()) > 1
    log(tmp_path, 37, 40, resume=36).close()
    assert [raw(tmp_path)["train/loss", step] for step in range(1, 40)] == [1] * 39
    assert shown(tmp_path)["train/loss"] == list(range(1, 40))


def test_files_of_another_writer_lose_only_what_is_repeated(tmp_path: Path) -> None:
    log(tmp_path, 1, 30).close()
    writer = SummaryWriter(str(tmp_path), filename_suffix=".mine")
    writer.add_custom_scalars({"group": {"chart": ["Multiline", ["train/loss"]]}})
    for step in range(1, 30):
        writer.add_scalar("mine/x", step, step)
        writer.add_histogram("mine/h", np.ones(2), step)
    writer.close()
    log(tmp_path, 21, 30, resume=20).close()
    counted = raw(tmp_path)
    for name in ("mine/x", "mine/h"):
        assert [counted[name, step] for step in range(1, 30)] == [1] * 20 + [0] * 9
    assert shown(tmp_path)["mine/x"] == list(range(1, 21))
    assert TAG in opened(tmp_path).Reload().Tags()["tensors"]


def test_files_of_which_all_stays_are_not_touched(tmp_path: Path) -> None:
    log(tmp_path, 1, 11).close()
    log(tmp_path, 16, 18, resume=15).close()
    first = min(tmp_path.iterdir())
    number = first.stat().st_ino
    log(tmp_path, 16, 18, resume=15).close()
    assert min(tmp_path.iterdir()).stat().st_ino == number


@pytest.mark.parametrize("size", [1, 11, 40])
def test_a_torn_last_record_is_taken_out(tmp_path: Path, size: int) -> None:
    log(tmp_path, 1, 30).close()
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content + content[:size])
    log(tmp_path, 30, 40, resume=29).close()
    assert raw(tmp_path) == EXPECTED


def test_what_cannot_be_read_is_left_where_it_is(tmp_path: Path) -> None:
    log(tmp_path, 1, 30).close()
    [file] = tmp_path.iterdir()
    content = file.read_bytes() + b"\x01" * 500
    file.write_bytes(content)
    log(tmp_path, 31, 33, resume=30).close()
    assert min(tmp_path.iterdir()).read_bytes() == content
    log(tmp_path, 12, 14, resume=11).close()
    assert shown(tmp_path)["train/loss"] == list(range(1, 14))


def killed(job: Callable[[], Any], name: str, after: int) -> None:
    """Do a job in a process that ends at the n-th of one of the operations on files, as by a kill."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, 9)
        return
    calls, real = [], getattr(os, name)

    def operation(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == after:
            os._exit(9)
        return real(*args, **options)

    setattr(os, name, operation)
    try:
        job()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["replace", "fsync", "rename"])
def test_a_kill_while_the_files_are_cut_loses_nothing(tmp_path: Path, name: str) -> None:
    for after in range(1, 6):
        folder = tmp_path / str(after)
        log(folder, 1, 25).close()
        log(folder, 21, 30, resume=20).close()
        log(folder, 27, 35, resume=26).close()
        killed(lambda: TensorBoardLogger(folder).start(20, [row(20)]), name, after)  # noqa: B023
        seen = shown(folder)
        assert seen["train/loss"][:20] == list(range(1, 21)), "whoever looks meanwhile misses nothing from before"
        assert seen["view/vitals/mine/curve"][:2] == [10, 20]
        log(folder, 21, 40, resume=20).close()
        assert raw(folder) == EXPECTED
        assert shown(folder) == ALL


def test_a_large_file_is_not_read_into_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SummaryWriter(str(tmp_path))
    for step in range(1, 9):
        value = Summary.Value(tag="mine/x", simple_value=1.0)
        value.metadata.plugin_data.content = os.urandom(100_000)
        writer.file_writer.add_summary(Summary(value=[value]), step)
    writer.close()
    sizes: list[int] = []
    monkeypatch.setattr(rewind, "_BLOCK_BYTES", 4096)
    real = rewind.Cut._copy

    def copied(self: rewind.Cut, target: Any) -> None:
        class Target:
            def write(self, block: bytes) -> None:
                sizes.append(len(block))
                target.write(block)

        real(self, Target())  # type: ignore[arg-type]

    monkeypatch.setattr(rewind.Cut, "_copy", copied)
    logger = TensorBoardLogger(tmp_path)
    logger.start(5, [])
    logger.close()
    assert sum(sizes) > 400_000
    assert max(sizes) == 4096
    assert sorted(step for _, step in raw(tmp_path)) == [1, 2, 3, 4, 5]


def test_the_file_of_a_run_that_has_ended_is_as_tensorboard_writes_it(tmp_path: Path) -> None:
    rows = [row(step) | {f"val/{'long' * (step % 90)}": 0.5} for step in range(300)]
    other, own = (TensorBoardLogger("").events(of, {"seed": 1, "data": "wine"}) for of in (rows[:2], rows))
    write(tmp_path, packed([other, own, other])[1])
    (file,) = tmp_path.iterdir()
    content, again = file.read_bytes(), io.BytesIO()
    writer = RecordWriter(again)
    for begin, end, event in read_events(file):
        assert event is not None
        writer.write(content[begin + 12 : end - 4])
    assert again.getvalue() == content
    assert read_scalars(tmp_path)["train/loss"] == [(step, float(step)) for step in range(300)]


def test_a_new_run_in_a_folder_with_event_files_begins_with_none_of_them(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    logger.text("mine/words", "hello", step=0)
    logger.scalars({"train/loss": 1.0}, step=1, epoch=0)
    logger.close()
    logger = TensorBoardLogger(tmp_path)
    logger.start(0)
    logger.text("mine/words", "hello", step=0)
    logger.close()
    assert raw(tmp_path) == {("vitals/mine/words/text_summary", 0): 1}


ROWS = [
    {"step": 2, "epoch": 0, "train/loss_step": 0.9, "grad/norm": 2.0, "lr/decay": 0.1, "lr/no_decay": 0.1},
    {"step": 4, "epoch": 1, "train/loss": 0.8, "train/accuracy": 0.5},
    {"step": 4, "epoch": 1, "val/loss": 0.7, "val/accuracy": 0.6, "val/f1/a cat (2)": 0.1},
    {"step": 8, "epoch": 2, "train/loss": 0.6, "train/accuracy": 0.7},
    {"step": 8, "epoch": 2, "test/loss": 0.6},
]
CHARTS = [["accuracy", "f1/a_cat__2_", "loss"], ["gradient norm", "learning rate", "loss_step"], []]


def log_rows(folder: Path, *, after: int = 0) -> None:
    """A run, or the rest of one."""
    logger = TensorBoardLogger(folder)
    logger.start(after, [row for row in ROWS if row["step"] <= after])
    for row in ROWS:
        if row["step"] <= after:
            continue
        values = {name: value for name, value in row.items() if "/" in name}
        logger.scalars(values, step=int(row["step"]), epoch=int(row["epoch"]))
    logger.close()


def layouts(folder: Path) -> list[tuple[int, Proto]]:
    """The layouts of a run, each with its step, in the order in which TensorBoard reads them."""
    return [
        (event.step, Proto.FromString(value.tensor.string_val[0]))
        for file in sorted(folder.glob("events.out.tfevents.*"))
        for _, _, event in read_events(file)
        for value in event.summary.value
        if value.tag == TAG
    ]


def charts(layout: Proto) -> list[list[str]]:
    return [sorted(chart.title for chart in category.chart) for category in layout.category]


def test_training_and_validation_share_a_chart_and_each_value_of_the_run_has_one(tmp_path: Path) -> None:
    log_rows(tmp_path)
    written = layouts(tmp_path)
    assert [step for step, _ in written] == [2, 4, 4]  # only where there is a new chart
    categories = written[-1][1].category
    assert [category.title for category in categories] == [*CATEGORIES]
    assert charts(written[-1][1]) == CHARTS
    assert repeated(tmp_path) == {}
    patterns = {chart.title: chart.multiline.tag[0] for part in categories for chart in part.chart}
    for name in ("train/f1/a_cat__2_", "val/f1/a_cat__2_"):
        assert [title for title, pattern in patterns.items() if re.match(pattern, name)] == ["f1/a_cat__2_"]
    assert not re.match(patterns["loss"], "train/loss_step")


@pytest.mark.parametrize("step", [2, 4, 8])
def test_however_often_a_run_is_resumed_a_layout_is_written_once(tmp_path: Path, step: int) -> None:
    log_rows(tmp_path)
    once = [layout for _, layout in layouts(tmp_path)]
    for _ in range(2):
        log_rows(tmp_path, after=step)
        assert [layout for _, layout in layouts(tmp_path)] == once
        assert repeated(tmp_path) == {}


def test_a_run_of_before_gets_one_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Layout, "unwritten", lambda _: [])
        log_rows(tmp_path)
    assert not layouts(tmp_path)
    log_rows(tmp_path, after=4)
    assert charts(layouts(tmp_path)[-1][1]) == CHARTS


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("vitals/system/gpu0_utilisation", "GPU: utilisation (%)"),
        ("vitals/system/gpu12_mig_memory_gib", "GPU: memory (GiB)"),
        ("vitals/system/gpu1_power_w", "GPU: power (W)"),
        ("vitals/system/gpu1_temperature_c", "GPU: temperature (°C)"),
        ("vitals/system/cpu_machine_percent", "CPU (%)"),
        ("vitals/system/ram_used_percent", "memory (%)"),
        ("vitals/speed/samples_per_second", "samples per second"),
        ("vitals/system/disk_used_percent", None),
        ("view/test/loss", None),
        ("main/train/loss", None),
    ],
)
def test_charts_of_the_machine(name: str, title: str | None) -> None:
    layout = Layout()
    layout.add([name])
    written = [charts(Proto.FromString(value.tensor.string_val[0])) for value in layout.unwritten()]
    assert written == ([[[], [], [title]]] if title else [])
    assert layout.unwritten() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_of_a_writers_thread_is_left_to_the_next_write(capfd: pytest.CaptureFixture[str]) -> None:
    class Failing(threading.Thread):
        """Keeps its exception and raises it, as the threads of TensorBoard's writers do."""

        exception: Exception | None = None

        def __init__(self, keeps: bool) -> None:
            super().__init__()
            self.keeps = keeps

        def run(self) -> None:
            error = OSError("no space left")
            self.exception = error if self.keeps else None
            raise error

    before = threading.excepthook
    threading.excepthook = threading.__excepthook__
    try:
        leave_failures_to_the_writer()
        leave_failures_to_the_writer()
        for keeps in (True, False):
            thread = Failing(keeps)
            thread.start()
            thread.join()
            assert ("no space left" in capfd.readouterr().err) is not keeps
    finally:
        threading.excepthook = before
