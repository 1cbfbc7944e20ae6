"""Event files after a resume: no record stands twice, whoever reads them, and TensorBoard shows what it showed."""

from __future__ import annotations

import os
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
from torch.utils.tensorboard import SummaryWriter

from lightkit.loggers import TensorBoardLogger
from lightkit.loggers import events as rewind
from lightkit.loggers.events import repeated


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
        if value.tag != rewind.TAG
    )


def shown(folder: Path, events: EventAccumulator | None = None) -> dict[str, list[int]]:
    """The steps of each curve, picture and text in TensorBoard."""
    events = events or opened(folder)
    events.Reload()
    names = [name for name in events.Tags()["tensors"] if name != rewind.TAG]
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
def test_after_a_resume_every_tag_stands_once_at_a_step(tmp_path: Path, resume: int) -> None:
    log(tmp_path, 1, 30).close()
    assert not repeated(tmp_path)
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
    assert [counted["mine/x", step] for step in range(1, 30)] == [1] * 20 + [0] * 9
    assert [counted["mine/h", step] for step in range(1, 30)] == [1] * 20 + [0] * 9
    assert shown(tmp_path)["mine/x"] == list(range(1, 21))
    assert rewind.TAG in opened(tmp_path).Reload().Tags()["tensors"]


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
    content = file.read_bytes()
    file.write_bytes(content + b"\x01" * 500)
    log(tmp_path, 31, 33, resume=30).close()
    assert min(tmp_path.iterdir()).read_bytes() == content + b"\x01" * 500
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
@pytest.mark.parametrize("name", ["fsync", "replace", "rename"])
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
