"""The bar on a terminal."""

from __future__ import annotations

import re

import pytest

from lightkit.loggers import ConsoleLogger
from tests.loggers.test_console import progress


def bare(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


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
    for part in ("a message [with] brackets", "val/loss", "0.2500", "result", "test/accuracy", "0.5000"):
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


def test_short_epochs_are_not_all_told_above_a_bar(terminal):
    logger = ConsoleLogger(stream=terminal.stream)
    for epoch in range(20):
        logger.scalars({"val/loss": 0.25}, step=epoch, epoch=epoch)
    assert terminal.text().count("0.2500") == 1
    logger.close()
