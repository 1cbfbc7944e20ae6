"""What a run enters once: its folder, its record, and how it ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import load_run
from lightkit.loggers.events import read_scalars
from lightkit.runner import Runner
from lightkit.runs.folder import RunFolder
from tests.runner.test_run import QUICK, runner


def test_a_run_counts_as_finished_when_everything_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is killed right after `result.json` is there has nothing to make up for: `resume` leaves it alone."""
    folder, seen = tmp_path / "run", dict[str, Any]()
    write, write_result = CheckpointStore._write, RunFolder.write_result

    def slowly(self: CheckpointStore, *args: Any, **options: Any) -> None:
        time.sleep(0.1)
        write(self, *args, **options)

    def noted(self: RunFolder, result: dict[str, Any]) -> None:
        steps = [entry.step for entry in CheckpointStore(folder / "checkpoints").entries()]
        seen.update(newest=steps[-1], curves=read_scalars(folder), steps=result["steps"])
        write_result(self, result)

    monkeypatch.setattr(CheckpointStore, "_write", slowly)
    monkeypatch.setattr(RunFolder, "write_result", noted)
    runner(folder, "logger.tensorboard.enabled=true", "trainer.test=last").run()
    assert seen["newest"] == seen["steps"]
    assert "view/test/loss" in seen["curves"]


@pytest.mark.thorough
def test_what_was_typed_is_known_over_all_parts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[list[str]]()
    monkeypatch.setattr("lightkit.loggers.Loggers.hparams", lambda _, __, overrides: told.append([*overrides]))
    runner(tmp_path / "run", "optim.lr=0.01").run()
    for _ in range(2):
        longer = load_run(tmp_path / "run", ["trainer.epochs=4"])
        Runner(longer.cfg, tmp_path / "run", overrides=["trainer.epochs=4"]).run(resume=True)
    assert told[0] == [*QUICK, "optim.lr=0.01"]
    assert told[1] == told[2] == [*told[0], "trainer.epochs=4"]
    assert RunFolder(tmp_path / "run").typed() == told[2]
    assert RunFolder(tmp_path / "none").typed() == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=mse"], r"loss: this loss is for regression targets; the data set has multiclass targets"),
        (["metrics=regression", "loss=cross_entropy"], r"metrics"),
        (["metrics=multilabel"], r"metrics\.train\.\w+: this metric is for multilabel targets"),
        (
            ["metrics.monitor=val/acuracy"],
            r"metrics\.monitor: no metric of that name is measured[\s\S]*nearest: val/accuracy",
        ),
        (["data.split.val=0"], r"metrics\.monitor: there is no validation split"),
        (["device=cuda"], r"there is no CUDA GPU here|could not be"),
        (["data.batch_size=0"], r"data\.batch_size"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    if overrides == ["device=cuda"] and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=message):
        runner(tmp_path / "run", *overrides).run()
    assert not (tmp_path / "run").exists()


def test_resuming_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no checkpoint to go on from"):
        runner(tmp_path / "run").run(resume=True)


def test_an_unwritable_place_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        runner(tmp_path / "file" / "run").run()
