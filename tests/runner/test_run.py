"""Whole runs, from a composed configuration to the files in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.loggers.files import read_jsonl
from lightkit.runner import Runner
from lightkit.trainer import Callback

QUICK = [
    "data=wine",
    "trainer.epochs=3",
    "data.batch_size=16",
    "model.hidden=[8]",
    "logger=quiet",
    "logger.every_steps=2",
    "device=cpu",
    "metrics.figures=[]",
]


def runner(folder: Path, *overrides: str) -> Runner:
    texts = [*QUICK, *overrides]
    return Runner(compose(texts).cfg, folder, overrides=texts)


class KillAt(Callback):
    """Ends a run in the middle, as a crash would."""

    def __init__(self, step: int) -> None:
        self.step_number = step

    def on_step(self, trainer: Any) -> None:
        if trainer.state.step == self.step_number:
            raise RuntimeError("killed")


class Telling(Callback):
    """Logs values of its own."""

    def on_step(self, trainer: Any) -> None:
        trainer.log({"own/step": torch.tensor(1.0)})

    def on_epoch(self, trainer: Any, values: dict[str, float]) -> None:
        trainer.log({"own/loss": 2 * values["train/loss"]})


def comparable(folder: Path) -> list[dict[str, Any]]:
    """The logged values that do not depend on the clock."""
    rows = read_jsonl(folder / "metrics.jsonl")
    return [
        {name: value for name, value in row.items() if not name.startswith(("speed/", "system/")) and name != "time"}
        for row in rows
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    path = CheckpointStore(folder / "checkpoints").newest()
    assert path is not None
    return CheckpointStore(folder / "checkpoints").load(path)["model"]


def test_a_run_leaves_its_whole_record(tmp_path: Path) -> None:
    result = runner(tmp_path / "run", "logger.tensorboard.enabled=true", "metrics.figures=[roc]").run()
    folder = tmp_path / "run"
    names = {path.name for path in folder.iterdir()}
    assert not [name for name in names if name.startswith(".progress")], "it is for those who watch"
    assert names >= {
        "config.yaml",
        "overrides.yaml",
        "environment.json",
        "run.log",
        "metrics.jsonl",
        "result.json",
        "checkpoints",
        "figures",
    }
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    assert result["status"] == "finished"
    assert result["epochs"] == 3
    assert result["objective"]["name"] == "val/accuracy"
    assert result["objective"]["value"] == max(
        row["val/accuracy"] for row in comparable(folder) if "val/accuracy" in row
    )
    assert set(result["test"]) >= {"test/loss", "test/accuracy", "test/f1"}
    assert list((folder / "figures").glob("*.png"))
    assert [path.parent for path in folder.rglob("events.out.tfevents.*")] == [folder]


def test_the_saved_configuration_repeats_the_run(tmp_path: Path) -> None:
    runner(tmp_path / "first", "optim.lr=0.003").run()
    again = load_run(tmp_path / "first")
    Runner(again.cfg, tmp_path / "second").run()
    assert comparable(tmp_path / "first") == comparable(tmp_path / "second")
    for name, tensor in weights(tmp_path / "first").items():
        assert torch.equal(tensor, weights(tmp_path / "second")[name])


def test_another_seed_gives_another_run_on_the_same_split(tmp_path: Path) -> None:
    runner(tmp_path / "a", "seed=0").run()
    runner(tmp_path / "b", "seed=1").run()
    assert comparable(tmp_path / "a") != comparable(tmp_path / "b")


@pytest.mark.thorough
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Here with the crash seen from outside; tests/resume has the kinds of runs and the moments."""
    options = ["checkpoint.every_steps=2", "trainer.epochs=4", "model.dropout=0.3", "trainer.accumulate=2"]
    options.append("++trainer.callbacks.tell={_target_: tests.runner.test_run.Telling}")
    runner(tmp_path / "whole", *options).run()
    kill = ["++trainer.callbacks.kill={_target_: tests.runner.test_run.KillAt, step: 8}"]
    with pytest.raises(RuntimeError, match="killed"):
        runner(tmp_path / "cut", *options, *kill).run()
    assert json.loads((tmp_path / "cut" / "result.json").read_text())["status"] == "failed"
    resumed = load_run(tmp_path / "cut", ["~trainer.callbacks.kill"])
    Runner(resumed.cfg, tmp_path / "cut").run(resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")
    assert sum("own/loss" in row for row in comparable(tmp_path / "cut")) == 4
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_run_that_ends_early_says_why(tmp_path: Path) -> None:
    result = runner(tmp_path / "run", "trainer.epochs=200", "trainer.early_stopping.patience=1", "optim.lr=1").run()
    assert result["status"] == "finished"
    assert "early stopping" in result["reason"]


def test_a_loss_that_explodes_ends_with_status_3_and_a_record(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the loss is no longer finite") as caught:
        runner(tmp_path / "run", "optim=sgd", "optim.lr=1e30", "data.normalize=none").run()
    assert caught.value.exit_code == 3
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "the loss is no longer finite" in result["reason"]
