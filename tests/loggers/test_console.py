"""The console: lines, rows of epochs, the bar on a terminal, and numbers in words."""

from __future__ import annotations

import io
import os
import re

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


def bare(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_plain_line_says_where_the_run_is_now_and_then_only():
    logger, stream = lines(every_seconds=0)
    logger.progress(progress())
    assert stream.getvalue() == (
        "[epoch 3/10, step 120/600] 20%, loss 0.3123, val/loss 0.5000, val/accuracy 0.9100, lr 0.001, "
        "12.3k samples/s, 0:42 left\n"
    )
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
    values = {"train/loss": 1.0, "train/accuracy": 1e-7, "val/loss": 0.003, "val/accuracy": 1.0}
    logger.scalars(values, step=600, epoch=10)
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


NEXT = {
    "progress": lambda logger: logger.progress(progress(181)),
    "message": lambda logger: logger.message("hello"),
    "close": lambda logger: logger.close(),
    "next": lambda logger: logger.scalars({"train/loss": 0.2}, step=240, epoch=4),
}


@pytest.mark.parametrize("then", NEXT)
def test_an_epoch_without_validation_is_told_too(then):
    logger, stream = lines(every_seconds=60)
    logger.scalars({"train/loss": 0.25}, step=180, epoch=3)
    assert stream.getvalue() == ""
    NEXT[then](logger)
    row = stream.getvalue().splitlines()[1].split()
    assert row == (["3/10", "180/600", "0.2500"] if then == "progress" else ["3", "180", "0.2500"])


def test_many_values_are_cut_to_the_width_losses_last_of_all():
    logger, stream = lines()
    names = ["f1", *map(str, range(50)), "loss"]
    logger.scalars({f"{split}/{name}": 0.5 for split in ("train", "val") for name in names}, step=1, epoch=1)
    logger.scalars({f"test/{name}": 0.5 for name in names}, step=1, epoch=1)
    heads, row, test = stream.getvalue().splitlines()
    assert heads.split()[:5] == ["epoch", "step", "train/loss", "val/f1", "val/0"]
    assert heads.split()[-3:] == ["val/loss", "(97", "more)"]
    assert len(row.split()) == len(heads.split()) - 2
    assert test.endswith(", 44 more")
    assert max(map(len, (heads, row, test))) <= 100


@pytest.mark.parametrize("terminal", [30, 80, 160], indirect=True)
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
    rows = stream.getvalue().splitlines()
    assert [at for at, line in enumerate(rows) if line.startswith("epoch")] == [0, 5, 56, 107]
    assert rows[0].split() == ["epoch", "step", "train/loss"]
    assert rows[5].split() == ["epoch", "step", "train/loss", "val/loss"]
    assert rows[7].split() == ["6", "6", "0.5000", "-"]


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
def test_outside_a_terminal_lines_are_whole_and_plain(style, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    logger, stream = lines(style=style, every_seconds=0)
    logger.message("hello [bold]you[/bold]" + " word" * 100)
    logger.progress(progress())
    logger.table("t", ["a", "b"], [["x", 1]])
    logger.close()
    assert stream.getvalue().startswith("hello [bold]you[/bold]" + " word" * 100 + "\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", stream.getvalue())


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


def test_streams_and_styles(terminal, monkeypatch, capsys):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    ConsoleLogger(stream=stream).message("größer")
    stream.flush()
    assert stream.buffer.getvalue() == b"gr??er\n", "narrow encodings lose letters, not the run"
    ConsoleLogger().message("hello")
    assert capsys.readouterr().out == "hello\n"
    for term in ("dumb", "unknown"):
        monkeypatch.setenv("TERM", term)
        assert ConsoleLogger(stream=terminal.stream).style == "lines"
    with pytest.raises(UserError, match=r"style: unknown style"):
        ConsoleLogger("lnes")


@pytest.mark.parametrize("terminal", [10, 40, 71, 80, 200], indirect=True)
def test_the_bar_fits_the_terminal(terminal, request):
    width = request.node.callspec.params["terminal"]
    logger = ConsoleLogger(stream=terminal.stream)
    logger.progress(progress())
    drawn = [line for line in bare(terminal.text()).replace("\r", "").split("\n") if line]
    assert len(drawn) == 2
    assert max(map(len, drawn)) <= width
    if width >= 40:
        assert "epoch 3/10" in drawn[0]
        assert "loss 0.3123" in drawn[1]
    if width >= 80:
        assert "120/600  12.3k samples/s  0:42 left" in drawn[0]
    logger.close()


def test_messages_stand_above_the_bar_and_the_bar_goes_away(terminal):
    logger, title = ConsoleLogger(stream=terminal.stream), "result after 80 steps; best val/accuracy 0.9722 at step 80"
    logger.message("before")
    logger.progress(progress())
    logger.message("a message [with] brackets")
    for epoch in range(3, 23):
        logger.scalars({"val/loss": 0.25}, step=180, epoch=epoch)
    logger.table(title, ["value", ""], [["test/accuracy", 0.5]])
    seen = terminal.text()
    assert "\x1b[?25l" in seen
    logger.message("a last one")
    logger.close()
    seen += (last := terminal.text())
    assert "\x1b[?25h" in last
    for part in ("before", "a message [with] brackets", "val/loss", title, "test/accuracy", "0.5000", "a last one"):
        assert part in bare(seen)
    assert seen.count("0.2500") == 1, "short epochs are not all told above a bar"
    logger.close()


AFTER = {
    "message": lambda logger: logger.message("a message of more than twenty-five letters"),
    "table": lambda logger: logger.table("result", ["value", ""], [["test/accuracy", 0.5]]),
    "close": lambda logger: logger.close(),
    "progress": lambda logger: logger.progress(progress(130)),
}


@pytest.mark.parametrize("then", AFTER)
def test_after_a_resize_nothing_is_wider_than_the_terminal(terminal, then):
    logger = ConsoleLogger(stream=terminal.stream)
    logger.progress(progress())
    terminal.text()
    terminal.resize(25)
    logger._next_frame = 0.0
    AFTER[then](logger)
    assert max(map(len, bare(terminal.text()).replace("\r", "\n").split("\n"))) <= 25
    logger.close()


@pytest.mark.parametrize("terminal", [40], indirect=True)
@pytest.mark.parametrize("live", [True, False])
def test_long_lines_break_between_words_but_paths_stay_whole(terminal, live):
    logger, path = ConsoleLogger(stream=terminal.stream), "/" + "folder/" * 8
    if live:
        logger.progress(progress())
    logger.message(f"train: loss 0.5365, accuracy 0.8145 | val: loss 0.1465, accuracy 0.9444\n  in {path}")
    logger.close()
    text = bare(terminal.text()).replace("\r", "\n").split("\n")
    assert "train: loss 0.5365, accuracy 0.8145 |" in [line.strip() for line in text]
    assert "    val: loss 0.1465, accuracy 0.9444" in text
    assert f"    {path}" in text


def test_wording():
    assert [number(v) for v in (0.31234, 1.0, 12345.678, 1e-5, 1, "x", 1e9)] == [
        "0.3123", "1.0", "1.235e+04", "1e-05", "1", "x", "1e+09"]  # fmt: skip
    assert [duration(s) for s in (0, 7, 750, 11_100, 187_200)] == ["0:00", "0:07", "12:30", "3:05:00", "2d 4h"]
    assert [rate(v) for v in (0, 87, 1234, 5.6e6)] == ["", "87 samples/s", "1.2k samples/s", "5.6M samples/s"]
    assert plain_table("", ["", ""], [["a", "1"]]) == "  a  1"
    assert plain_table("t", ["a"], []) == "t\n  a"
    unknown = progress(epochs=None, eta_seconds=None, samples_per_second=0.0, values={}, phase="val")
    assert progress_line(unknown) == "[epoch 3, step 120/600] 20%, val 2/60"
