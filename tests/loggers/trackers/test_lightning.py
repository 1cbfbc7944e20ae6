"""Loggers of Lightning's."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.loggers.trackers.lightning import LightningLogger
from tests.conftest import Outcome
from tests.loggers.trackers.reading import RUN, SHORT, logged, told

Process = Callable[..., Outcome]
NODE = "_target_: lightning.pytorch.loggers.CSVLogger, _partial_: true, save_dir: lightning, name: wine"
MORE = (
    *SHORT, "metrics.figures=[]", "trust=[lightning.pytorch.loggers]",
    f"logger.more.x={{_target_: lightkit.loggers.trackers.lightning.LightningLogger, logger: {{{NODE}}}}}",
)  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [told({name: json.loads(cell) for name, cell in row.items() if cell}) for row in csv.DictReader(file)]


def test_a_run_that_goes_on_is_whole_in_a_new_version(own: Path, process: Process) -> None:
    kill = "trainer.callbacks.kill._target_=mine.Kill"
    assert process("train", *MORE, kill, f"hydra.run.dir={RUN}").code == -9
    ended = process("resume", RUN)
    assert ended.code == 0, ended.err
    last = sorted((own / "lightning/wine").iterdir())[-1]
    assert rows(last) == logged(own / RUN)
    assert "lr: 0.001" in (last / "hparams.yaml").read_text()


@pytest.mark.thorough
def test_other_loggers_of_lightnings_take_it_too(own: Path, process: Process) -> None:
    more = [word.replace("CSVLogger", "TensorBoardLogger") for word in MORE]
    ended = process("train", *more, f"hydra.run.dir={RUN}")
    assert (ended.code, "logger.more.x" in ended.err) == (0, False), ended.err
    assert [*(own / "lightning/wine/version_0").glob("events*")]


class Experiment:
    """An experiment that goes on under its id, and fails when it is told to."""

    def __init__(self, server: dict[str, list[Any]]) -> None:
        self.server = server

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self.server.setdefault(name, []).append((*args, *kwargs.values()))


def test_an_experiment_that_goes_on_gets_each_row_once(tmp_path: Path) -> None:
    server: dict[str, list[Any]] = {}
    for kept, status in ((0, "suspend"), (2, "end")):
        logger = LightningLogger(tmp_path, "loss", "min", logger=partial(Experiment, server), continues=True)
        logger.start(kept, [{"step": step, "epoch": 0, "time": 1.0, "loss": 1.0} for step in range(kept)])
        for step in range(kept, 4 + kept):
            logger.scalars({"loss": 1.0}, step=step, epoch=0)
        logger.text("note", "hello", step=4)
        logger.hparams({"optim": {"lr": 0.1}})
        getattr(logger, status)("paused" if status == "suspend" else "failed")
        logger.flush()
        logger.close()
    assert [step for _, step in server["log_metrics"]] == [0, 1, 2, 3, 4, 5]
    assert server["finalize"] == [("interrupted",), ("failed",)]
    assert [name for name, *_ in server["log_text"]] == ["note"]
    assert server["log_hyperparams"][0] == ({"optim": {"lr": 0.1}},)


def test_it_is_made_when_the_run_starts(own: Path, cli: Callable[..., Outcome], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="made when the run starts"):
        LightningLogger(tmp_path, "loss", "min", logger=object())
    refused = cli("train", *(word.replace(" _partial_: true,", "") for word in MORE))
    assert (refused.code, "`_partial_: true`" in refused.err) == (2, True), refused.err
    refused = cli("train", *(word for word in MORE if not word.startswith("trust")))
    assert (refused.code, "trust" in refused.err) == (2, True), refused.err
