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


def test_an_epoch_is_a_row_with_training_and_validation():
    logger, stream = lines(every_seconds=60)
    logger.progress(progress())
    logger.scalars({"train/loss_step": 0.1, "lr/all": 0.1}, step=170, epoch=2)
    logger.scalars({"train/loss": 0.25, "train/accuracy": 0.9}, step=180, epoch=3)
    logger.progress(progress(180, "val"))
    logger.scalars({"val/loss": 0.3, "val/accuracy": float("nan")}, step=180, epoch=3)
    logger.message("between")
    logger.scalars(
        {"train/loss": 1.0, "train/accuracy": 1e-7, "val/loss": 0.003, "val/accuracy": 1.0}, step=600, epoch=10
    )
    logger.scalars({"val/loss": 12345.6}, step=600, epoch=10)
    logger.scalars({"test/loss": 0.3, "test/accuracy": 1.0}, step=600, epoch=10)
    logger.close()
    assert stream.getvalue() == (
        "epoch     step  train/loss  train/accuracy  val/loss  val/accuracy\n"
        " 3/10  180/600      0.2500          0.9000    0.3000           nan\n"
        "between\n"
        "10/10  600/600      1.0000           1e-07     0.003        1.0000\n"
        "10/10  600/600           -               -  1.235e+04             -\n"
        "test    loss 0.3000, accuracy 1.0\n"
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
    row = stream.getvalue().splitlines()[1].split()
    assert row == ["3/10", "180/600", "0.2500"] if then == "progress" else row == ["3", "180", "0.2500"]


def test_many_values_are_cut_to_the_width_losses_last_of_all():
    logger, stream = lines()
    many = {f"{split}/{name}": 0.5 for split in ("train", "val") for name in ("f1", *map(str, range(50)), "loss")}
    logger.scalars(many, step=1, epoch=1)
    logger.scalars(
        {name.replace("val", "test"): value for name, value in many.items() if "val" in name}, step=1, epoch=1
    )
    heads, row, test = stream.getvalue().splitlines()
    assert heads.split()[:5] == ["epoch", "step", "train/loss", "val/f1", "val/0"]
    assert heads.split()[-3:] == ["val/loss", "(97", "more)"]
    assert len(row.split()) == len(heads.split()) - 2
    assert test.endswith(", 44 more")
    assert max(map(len, (heads, row, test))) <= 100


@pytest.mark.parametrize("terminal", [30, 80, 100, 160], indirect=True)
def test_epochs_fit_the_terminal(terminal):
    logger, width = ConsoleLogger(stream=terminal.stream), os.get_terminal_size(terminal.stream.fileno()).columns
    names = ["train/loss", "train/accuracy", "val/loss", "val/accuracy", "val/f1", "val/balanced_accuracy"]
    for epoch in range(1, 13):
        logger._next_epoch_line = 0.0
        logger.scalars(dict.fromkeys(names, 0.1), step=10 * epoch, epoch=epoch)
    logger.close()
    heads, *rows = terminal.text().replace("\r", "").splitlines()
    assert [row.split()[:3] for row in rows] == [[str(epoch), f"{epoch}0", "0.1000"] for epoch in range(1, 13)]
    assert max(map(len, (heads, *rows))) <= width
    left_out = {30: names[:2] + names[3:], 80: [names[1], names[-1]]}.get(width, [])
    assert [name for name in heads.split() if "/" in name] == [name for name in names if name not in left_out]


def test_heads_come_again_where_they_change_and_after_many_rows():
    logger, stream = lines()
    for epoch in range(1, 121):
        logger.scalars({"train/loss": 0.5, **({"val/loss": 0.4} if epoch % 5 == 0 else {})}, step=epoch, epoch=epoch)
    logger.close()
    found = stream.getvalue().splitlines()
    assert [at for at, line in enumerate(found) if line.startswith("epoch")] == [0, 5, 56, 107]
    assert found[0].split() == ["epoch", "step", "train/loss"]
    assert found[5].split() == ["epoch", "step", "train/loss", "val/loss"]
    assert found[7].split() == ["6", "6", "0.5000", "-"]


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
