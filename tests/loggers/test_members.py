"""What is seen of the members of a run."""

from __future__ import annotations

import io

import pytest

from lightkit.loggers import ConsoleLogger, Logger, MembersTable, Progress
from lightkit.loggers.files import read_progress_file

RESULT = {"objective": {"value": 0.975}, "epochs": 4, "seconds": 61.0}


class Lines(Logger):
    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)


def made(style="lines", *, every_seconds=1000.0, mode="max"):
    stream, log = io.StringIO(), Lines()
    console = ConsoleLogger(style, every_seconds, stream)
    return MembersTable(console, log, monitor="val/accuracy", mode=mode), stream, log


def at(step, epoch=1):
    return Progress(epoch=epoch, epochs=4, step=step, total_steps=40, batch=0, batches=10, eta_seconds=7.0)


def test_a_line_for_each_member_that_finishes():
    table, stream, log = made()
    table.opening = ["run     demo"]
    table.expect(["00", "01"])
    logger = table.logger("00")
    logger.start(0)
    logger.progress(at(20, 2))
    logger.scalars({"val/accuracy": 0.9, "val/loss": 0.1}, step=20, epoch=2)
    logger.message("of its own log only")
    table.finish("00", RESULT)
    table.finish("00", RESULT)
    table.finish("01", {**RESULT, "epochs": 1}, earlier=True)
    table.close()
    lines = ["run     demo", "00  finished after 4 epochs, best val/accuracy 0.9750, 1:01"]
    lines += ["01  finished before, after 1 epoch, best val/accuracy 0.9750"]
    assert stream.getvalue().splitlines() == lines == log.lines


def test_a_line_now_and_then_sums_all_up():
    table, stream, _ = made(every_seconds=1e-9)
    table.expect(["00", "01"])
    logger = table.logger("00")
    logger.scalars({"val/accuracy": 0.5}, step=20, epoch=2)
    logger.scalars({"val/accuracy": 0.25}, step=30, epoch=3)
    logger.progress(at(20, 2))
    line = "0 of 2 members finished, 25%, best val/accuracy 0.5000 (00), 0:0"
    assert stream.getvalue().splitlines()[-1].startswith(line)


def test_a_quiet_console_stays_quiet():
    table, stream, log = made("quiet")
    table.logger("00").progress(at(20))
    table.message("run     demo")
    table.finish("00", RESULT)
    table.close()
    assert stream.getvalue() == ""
    assert len(log.lines) == 2


def test_the_smallest_value_is_the_best_where_that_is_wanted():
    table, _, _ = made(mode="min")
    for name, value in (("00", 0.5), ("01", 0.25), ("02", float("nan"))):
        table.update(name, value=value)
    assert "best val/accuracy 0.2500 (01)" in table.headline()
    assert table.members["02"].best is None


def test_members_that_train_at_once_have_one_logger_and_what_an_earlier_part_reached_is_known():
    table, _, _ = made()
    table.logger("00", "01").progress(at(10))
    assert [(member.status, member.share) for member in table.members.values()] == [("training", 0.25)] * 2
    table.logger("00").start(20, [{"step": 10, "val/accuracy": 0.75}, {"step": 20, "val/accuracy": None}, {"step": 20}])
    assert table.members["00"].best == 0.75


def test_of_many_members_those_are_shown_that_train_and_the_newest():
    table, _, _ = made()
    table.expect([f"{number:02}" for number in range(50)])
    for number in range(20):
        table.finish(f"{number:02}", RESULT)
    table.update("30", share=0.5)
    _, _, rows = table.shown(100)
    assert [row[0] for row in rows] == [*(f"{number:02}" for number in range(6, 20)), "30", "… 35 more"]
    assert len(table.shown(5)[2]) == 5


@pytest.mark.parametrize("terminal", [60, 100], indirect=True)
def test_a_terminal_has_a_table_that_stays_at_the_end(terminal):
    table = MembersTable(ConsoleLogger(stream=terminal.stream), Logger(), monitor="val/accuracy", mode="max")
    table.expect(["00", "01"])
    table.logger("00").progress(at(20, 2))
    seen = terminal.text()
    assert not [text for text in ("\x1b[?25l", "training", "2/4", "waiting") if text not in seen]
    table.finish("00", RESULT)
    table.finish("01", RESULT, earlier=True)
    table.close()
    text = terminal.text()
    assert not [part for part in ("\x1b[?25h", "2 of 2 members finished", "0.9750", "1:01") if part not in text]
    assert "finished after" not in text
    table.close()
    assert terminal.text() == ""


def test_other_processes_can_show_the_table(tmp_path):
    file = tmp_path / "progress"
    table = MembersTable(ConsoleLogger("quiet"), Logger(), monitor="val/accuracy", mode="max", file=file)
    table.close()
    assert not file.exists()
    table.expect(["00", "01"])
    table.logger("00").progress(at(20, 2))
    read = read_progress_file(file)
    title, heads, rows = read.table
    assert (read.share, read.progress) == (0.25, None)
    assert title.startswith("0 of 2 members finished, 25%")
    assert heads == ["member", "status", "epoch", "val/accuracy", "time"]
    assert rows == [["00", "training", "2/4", "", "0:07 left"], ["01", "waiting", "", "", ""]]
    table.close()
    assert not file.exists()
