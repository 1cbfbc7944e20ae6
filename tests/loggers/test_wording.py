"""Numbers, times and lines in words."""

from __future__ import annotations

import pytest

from lightkit.loggers import ConsoleLogger
from lightkit.loggers.wording import duration, number, plain_table, progress_line, rate
from tests.loggers.test_bar import bare
from tests.loggers.test_console import progress


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


def test_wording():
    assert [number(v) for v in (0.31234, 1.0, 12345.678, 1e-5, 1, "x", 1e9)] == [
        "0.3123", "1.0", "1.235e+04", "1e-05", "1", "x", "1e+09"]  # fmt: skip
    assert [duration(s) for s in (0, 7, 750, 11_100, 187_200)] == ["0:00", "0:07", "12:30", "3:05:00", "2d 4h"]
    assert [rate(v) for v in (0, 87, 1234, 5.6e6)] == ["", "87 samples/s", "1.2k samples/s", "5.6M samples/s"]
    assert plain_table("", ["", ""], [["a", "1"]]) == "  a  1"
    assert plain_table("t", ["a"], []) == "t\n  a"
    unknown = progress(epochs=None, eta_seconds=None, samples_per_second=0.0, values={}, phase="val")
    assert progress_line(unknown) == "[epoch 3, step 120/600] 20%, val 2/60"
