"""Whole runs, from a composed configuration to the files in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.fit import Observer
from lightkit.runs.reading import read_jsonl
from lightkit.trainer import Callback
from lightkit.trainer.learner import Learner

QUICK = [
    "data=wine", "trainer.epochs=3", "data.batch_size=16", "model.hidden=[8]", "logger=quiet", "logger.every_steps=2",
    "device=cpu", "metrics.figures=[]",
]  # fmt: skip


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
    files = {"config.yaml", "overrides.yaml", "environment.json", "run.log", "metrics.jsonl", "result.json"}
    assert names >= files | {"checkpoints", "figures"}
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    assert result["status"] == "finished"
    assert result["epochs"] == 3
    assert result["objective"]["name"] == "val/accuracy"
    reached = [row["val/accuracy"] for row in comparable(folder) if "val/accuracy" in row]
    assert result["objective"]["value"] == max(reached)
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
    runner(tmp_path / "seed", "optim.lr=0.003", "seed=1", "checkpoint=none").run()
    assert comparable(tmp_path / "first") != comparable(tmp_path / "seed")
    assert not (tmp_path / "seed" / "checkpoints").exists()


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


@pytest.mark.thorough
def test_a_longer_run_goes_on_from_the_last_one(tmp_path: Path) -> None:
    runner(tmp_path / "run").run()
    longer = load_run(tmp_path / "run", ["trainer.epochs=5"])
    assert Runner(longer.cfg, tmp_path / "run").run(resume=True)["epochs"] == 5
    assert "nothing is left to train" not in (tmp_path / "run" / "run.log").read_text()
    shorter = load_run(tmp_path / "run", ["trainer.epochs=2"])
    assert Runner(shorter.cfg, tmp_path / "run").run(resume=True)["epochs"] == 5
    assert "nothing is left to train" in (tmp_path / "run" / "run.log").read_text()


class Noting(Observer):
    """Shortens the training split, and notes what it is shown."""

    rows: Mapping[str, int] = {"train": 32}

    def __init__(self) -> None:
        self.seen: list[str] = []

    def watch(self, learner: Learner) -> Learner:
        self.seen.append(f"{learner.data.train.num_samples} rows at step {learner.state.step}")
        return learner

    @contextmanager
    def saving(self, learner: Learner) -> Iterator[None]:
        self.seen.append(f"saves step {learner.state.step}")
        yield
        self.seen.append("saved")


def test_an_observer_sees_the_learner_before_it_trains_and_every_save(tmp_path: Path) -> None:
    options = ["data=wine", "data.batch_size=16", "model.hidden=[8]", "trainer.epochs=2", "trainer.test=none"]
    cfg = compose([*options, "device=cpu", "metrics.monitor=train/loss"]).cfg
    noting = Noting()
    Runner(cfg, tmp_path / "run", observer=noting).run()
    assert noting.seen == ["32 rows at step 0", "saves step 2", "saved", "saves step 4", "saved"]
