"""`logger=csv`."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

from lightkit.loggers.trackers.table import CsvLogger
from tests.conftest import Outcome
from tests.loggers.trackers.reading import RUN, SHORT, logged, told


def table(path: Path) -> list[dict[str, object]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["time"]) > 1.7e9 for row in rows)
    return [told({name: json.loads(cell) for name, cell in row.items() if cell}) for row in rows]


def test_it_has_the_rows_of_the_metrics_after_a_kill(own: Path, process: Callable[..., Outcome]) -> None:
    kill = "trainer.callbacks.kill._target_=mine.Kill"
    assert process("train", *SHORT, "logger=csv", kill, f"hydra.run.dir={RUN}").code == -9
    assert process("resume", RUN).code == 0
    assert table(own / RUN / "metrics.csv") == logged(own / RUN)


def test_a_new_name_makes_it_anew_and_what_is_no_number_is_empty(tmp_path: Path) -> None:
    logger = CsvLogger(tmp_path)
    logger.start(0)
    assert not (tmp_path / "metrics.csv").exists()
    logger.scalars({"a": 1.5}, step=1, epoch=0)
    logger.scalars({"b": math.nan, "a": 2.0}, step=2, epoch=0)
    logger.scalars({"c, d": 3.0}, step=3, epoch=1)
    found = [
        (row.pop("time"), list(row.values()))
        for row in csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    ]
    assert [row for _, row in found] == [
        ["1", "0", "1.5", "", ""],
        ["2", "0", "2.0", "", ""],
        ["3", "1", "", "", "3.0"],
    ]
    logger.start(1, [{"step": 1, "epoch": 0, "time": 7.0, "a": 1.5}])
    assert (tmp_path / "metrics.csv").read_text() == "step,epoch,time,a\n1,0,7.0,1.5\n"
