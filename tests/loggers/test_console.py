from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import struct
import termios
from fcntl import ioctl

import pytest

from lightkit.common.errors import UserError
from lightkit.loggers import ConsoleLogger, Progress
from lightkit.loggers.wording import duration, number, plain_table, progress_line, rate

VALUES = {"train/loss_step": 0.31234, "val/loss": 0.5, "val/accuracy": 0.91, "lr/all": 1e-3, "grad/norm": 2.0}


def progress(step=120, phase="train", **changes):
    facts = {"epoch": 3, "epochs": 10, "step": step, "total_steps": 600, "batch": 2, "batches": 60, "phase": phase}
    facts |= {"values": VALUES, "samples_per_second": 12_345.0, "eta_seconds": 42.0}
    return Progress(**(facts | changes))


def lines(**options):
    stream = io.StringIO()
    return ConsoleLogger(stream=stream, **options), stream


class Terminal:
    """The write end of a pseudo-terminal of a given width, and what a program wrote to it."""

    def __init__(self, columns):
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def resize(self, columns):
        ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def text(self):
        self.stream.flush()
        found = b""
        while select.select([self.master], [], [], 0.1)[0]:
            found += os.read(self.master, 65536)
        return found.decode()

    def close(self):
        with contextlib.suppress(OSError):
            self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal(request, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    made = Terminal(getattr(request, "param", 100))
    yield made
    made.close()


def bare(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_plain_line_says_where_the_run_is():
    logger, stream = lines(every_seconds=0)
    logger.progress(progress())
    assert stream.getvalue() == (
        "[epoch 3/10, step 120/600] 20%, loss 0.3123, val/loss 0.5000, val/accuracy 0.9100, lr 0.001, "
        "12.3k samples/s, 0:42 left\n"
    )


def test_plain_lines_come_now_and_then_only():
    logger, stream = lines(every_seconds=60)
    for step in range(100):
        logger.progress(progress(step))
    assert stream.getvalue() == ""


def test_an_epoch_is_one_line_with_training_and_validation():
    logger, stream = lines(every_seconds=60)
    logger.progress(progress())
    logger.scalars({"train/loss_step": 0.1, "lr/all": 0.1}, step=170, epoch=2)
    logger.scalars({"train/loss": 0.25, "train/accuracy": 0.9}, step=180, epoch=3)
    logger.progress(progress(180, "val"))
    logger.scalars({"val/loss": 0.3, "val/accuracy": float("nan")}, step=180, epoch=3)
    assert stream.getvalue() == (
        "[epoch 3/10, step 180/600] train: loss 0.2500, accuracy 0.9000 | val: loss 0.3000, accuracy nan\n"
    )


@pytest.mark.parametrize("then", ["progress", "message", "close", "next"])
def test_an_epoch_without_validation_is_told_too(then):
    logger, stream = lines(every_seconds=60)
    logger.scalars({"train/loss": 0.25}, step=180, epoch=3)
    assert stream.getvalue() == ""
    {
        "progress": lambda: logger.progress(progress(181)),
        "message": lambda: logger.message("hello"),
        "close": logger.close,
        "next": lambda: logger.scalars({"train/loss": 0.2}, step=240, epoch=4),
    }[then]()
    place = "[epoch 3/10, step 180/600]" if then == "progress" else "[epoch 3, step 180]"
    assert stream.getvalue().startswith(f"{place} train: loss 0.2500\n")


def test_many_values_are_cut():
    logger, stream = lines()
    logger.scalars({"val/loss": 1.0} | {f"val/f1/{index}": 0.5 for index in range(50)}, step=1, epoch=1)
    assert "45 more" in stream.getvalue()


def test_quiet_shows_tables_only():
    logger, stream = lines(style="quiet", every_seconds=0)
    logger.message("hello")
    logger.progress(progress())
    logger.scalars({"val/loss": 1.0}, step=1, epoch=1)
    assert stream.getvalue() == ""
    logger.table("result", ["value", ""], [["test/accuracy", 0.98765], ["test/loss", "0.01"]])
    assert stream.getvalue() == "result\n  value\n  test/accuracy  0.9877\n  test/loss        0.01\n"
    logger.close()


@pytest.mark.parametrize("style", ["auto", "bar", "lines"])
def test_no_control_characters_outside_a_terminal(style, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    logger, stream = lines(style=style, every_seconds=0)
    logger.message("hello [bold]you[/bold]")
    logger.progress(progress())
    logger.table("t", ["a", "b"], [["x", 1]])
    logger.close()
    text = stream.getvalue()
    assert "hello [bold]you[/bold]\n" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


@pytest.mark.parametrize("terminal", [10, 20, 40, 71, 80, 200], indirect=True)
def test_the_bar_fits_the_terminal(terminal, request):
    width = request.node.callspec.params["terminal"]
    logger = ConsoleLogger(stream=terminal.stream)
    logger.progress(progress())
    text = bare(terminal.text()).replace("\r", "")
    drawn = [line for line in text.split("\n") if line]
    assert len(drawn) == 2
    assert max(map(len, drawn)) <= width
    if width >= 40:
        assert "epoch 3/10" in drawn[0]
        assert "loss 0.3123" in drawn[1]
    if width >= 80:
        assert "120/600  12.3k samples/s  0:42 left" in drawn[0]
    logger.close()


def test_messages_stand_above_the_bar_and_the_bar_goes_away(terminal):
    logger = ConsoleLogger(stream=terminal.stream)
    logger.message("before")
    logger.progress(progress())
    logger.message("a message [with] brackets")
    logger.scalars({"val/loss": 0.25}, step=180, epoch=3)
    logger.table("result", ["value", ""], [["test/accuracy", 0.5]])
    assert "\x1b[?25l" in terminal.text()
    logger.message("a last one")
    logger.close()
    text = terminal.text()
    assert "a last one" in bare(text)
    assert "\x1b[?25h" in text
    logger.close()


def test_what_was_said_is_kept_on_the_terminal(terminal):
    logger = ConsoleLogger(stream=terminal.stream)
    logger.progress(progress())
    logger.message("a message [with] brackets")
    logger.scalars({"val/loss": 0.25}, step=180, epoch=3)
    logger.table("result", ["value", ""], [["test/accuracy", 0.5]])
    logger.close()
    text = bare(terminal.text())
    for part in ("a message [with] brackets", "val: loss 0.2500", "result", "test/accuracy", "0.5000"):
        assert part in text


def test_the_title_of_a_narrow_table_has_the_width_of_the_terminal(terminal):
    terminal.resize(80)
    logger = ConsoleLogger(stream=terminal.stream)
    logger.progress(progress())
    title = "result after 80 steps; best val/accuracy 0.9722 at step 80"
    logger.table(title, ["value", ""], [["a", 0.5]])
    logger.close()
    assert title in bare(terminal.text())


@pytest.mark.parametrize("then", ["message", "table", "close", "progress"])
def test_after_a_resize_nothing_is_wider_than_the_terminal(terminal, then):
    logger = ConsoleLogger(stream=terminal.stream)
    logger.progress(progress())
    terminal.text()
    terminal.resize(25)
    logger._next_frame = 0.0
    {
        "message": lambda: logger.message("a message of more than twenty-five letters"),
        "table": lambda: logger.table("result", ["value", ""], [["test/accuracy", 0.5]]),
        "close": logger.close,
        "progress": lambda: logger.progress(progress(130)),
    }[then]()
    drawn = bare(terminal.text()).replace("\r", "\n").split("\n")
    assert max(map(len, drawn)) <= 25
    logger.close()


@pytest.mark.parametrize("terminal", [40], indirect=True)
@pytest.mark.parametrize("live", [True, False])
def test_long_lines_break_between_words_but_paths_stay_whole(terminal, live):
    logger = ConsoleLogger(stream=terminal.stream)
    if live:
        logger.progress(progress())
    path = "/" + "folder/" * 8
    logger.message(f"train: loss 0.5365, accuracy 0.8145 | val: loss 0.1465, accuracy 0.9444\n  in {path}")
    logger.close()
    lines = bare(terminal.text()).replace("\r", "\n").split("\n")
    assert "train: loss 0.5365, accuracy 0.8145 |" in [line.strip() for line in lines]
    assert "    val: loss 0.1465, accuracy 0.9444" in lines
    assert f"    {path}" in lines


def test_lines_outside_a_terminal_are_not_broken():
    logger, stream = lines()
    logger.message("word " * 100)
    assert stream.getvalue().count("\n") == 1


def test_short_epochs_are_not_all_told_above_a_bar(terminal):
    logger = ConsoleLogger(stream=terminal.stream)
    for epoch in range(20):
        logger.scalars({"val/loss": 0.25}, step=epoch, epoch=epoch)
    assert terminal.text().count("val: loss") == 1
    logger.close()


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_lines(terminal, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    assert ConsoleLogger(stream=terminal.stream).style == "lines"


@pytest.mark.parametrize("failure", [BrokenPipeError("gone"), ValueError("closed file"), OSError(5, "gone")])
def test_a_lost_console_does_not_end_the_run(failure):
    class Lost(io.StringIO):
        def write(self, text):
            raise failure

    logger = ConsoleLogger(stream=Lost(), every_seconds=0)
    logger.message("x")
    logger.progress(progress())
    logger.table("t", ["a"], [["1"]])
    logger.close()


def test_a_terminal_lost_under_the_bar_does_not_end_the_run(terminal):
    logger = ConsoleLogger(stream=terminal.stream)
    logger.progress(progress())
    os.close(terminal.master)
    logger._next_frame = 0.0
    logger.progress(progress(130))
    logger.message("x")
    logger.close()
    terminal.master = os.open(os.devnull, os.O_RDONLY)


def test_narrow_encodings_lose_letters_not_the_run():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    ConsoleLogger(stream=stream).message("größer")
    stream.flush()
    assert stream.buffer.getvalue() == b"gr??er\n"


def test_standard_output_is_the_default(capsys):
    ConsoleLogger().message("hello")
    assert capsys.readouterr().out == "hello\n"


def test_unknown_style():
    with pytest.raises(UserError, match=r"style: unknown style"):
        ConsoleLogger("lnes")


def test_wording():
    assert [number(v) for v in (0.31234, 1.0, 12345.678, 1e-5, 1, "x", 1e9)] == [
        "0.3123", "1.0", "1.235e+04", "1e-05", "1", "x", "1e+09"]  # fmt: skip
    assert [duration(s) for s in (0, 7, 750, 11_100, 187_200)] == ["0:00", "0:07", "12:30", "3:05:00", "2d 4h"]
    assert [rate(v) for v in (0, 87, 1234, 5.6e6)] == ["", "87 samples/s", "1.2k samples/s", "5.6M samples/s"]
    assert plain_table("", ["", ""], [["a", "1"]]) == "  a  1"
    assert plain_table("t", ["a"], []) == "t\n  a"
    unknown = progress(epochs=None, eta_seconds=None, samples_per_second=0.0, values={}, phase="val")
    assert progress_line(unknown) == "[epoch 3, step 120/600] 20%, val 2/60"
