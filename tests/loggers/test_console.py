from __future__ import annotations

import io
import os
import re

import pytest

from lightkit.common.errors import UserError
from lightkit.loggers import ConsoleLogger, Progress

VALUES = {"train/loss_step": 0.31234, "val/loss": 0.5, "val/accuracy": 0.91, "lr/all": 1e-3, "grad/norm": 2.0}


def progress(step=120, phase="train", **changes):
    facts = {"epoch": 3, "epochs": 10, "step": step, "total_steps": 600, "batch": 2, "batches": 60, "phase": phase}
    facts |= {"values": VALUES, "samples_per_second": 12_345.0, "eta_seconds": 42.0}
    return Progress(**(facts | changes))


def lines(**options):
    stream = io.StringIO()
    return ConsoleLogger(stream=stream, **options), stream


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


def test_lines_outside_a_terminal_are_not_broken():
    logger, stream = lines()
    logger.message("word " * 100)
    assert stream.getvalue().count("\n") == 1


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
