"""Whole runs, from a composed configuration to the files in the run's folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.loggers import Logger
from lightkit.loggers.events import read_scalars
from lightkit.loggers.files import read_jsonl
from lightkit.runner import Runner, messages
from lightkit.runs.folder import RunFolder
from lightkit.trainer import Callback, State

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


def test_evaluation_and_prediction_agree_with_the_final_test(tmp_path: Path) -> None:
    run = runner(tmp_path / "run")
    tested = run.run()["test"]
    again = Runner(load_run(tmp_path / "run").cfg, tmp_path / "run")
    assert again.evaluate("test") == pytest.approx(tested)
    rows = again.predict("test")
    hits = sum(row["prediction"] == row["target"] for row in rows)
    assert hits / len(rows) == pytest.approx(tested["test/accuracy"])
    assert len({row["row"] for row in rows}) == len(rows) == 36


def test_what_was_typed_is_known_over_all_parts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[list[str]]()
    monkeypatch.setattr("lightkit.runner.session.conclude", lambda *_, overrides, **__: told.append([*overrides]))
    runner(tmp_path / "run", "optim.lr=0.01").run()
    for _ in range(2):
        longer = load_run(tmp_path / "run", ["trainer.epochs=4"])
        Runner(longer.cfg, tmp_path / "run", overrides=["trainer.epochs=4"]).run(resume=True)
    assert told[0] == [*QUICK, "optim.lr=0.01"]
    assert told[1] == told[2] == [*told[0], "trainer.epochs=4"]
    assert RunFolder(tmp_path / "run").typed() == told[2]
    assert RunFolder(tmp_path / "none").typed() == []


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_split_can_be_evaluated(tmp_path: Path, split: str) -> None:
    runner(tmp_path / "run").run()
    values = runner(tmp_path / "run").evaluate(split, "last")
    assert f"{split}/loss" in values


def test_a_run_that_ends_early_says_why(tmp_path: Path) -> None:
    result = runner(tmp_path / "run", "trainer.epochs=200", "trainer.early_stopping.patience=1", "optim.lr=1").run()
    assert result["status"] == "finished"
    assert "early stopping" in result["reason"]


def test_a_longer_run_goes_on_from_the_last_one(tmp_path: Path) -> None:
    runner(tmp_path / "run").run()
    longer = load_run(tmp_path / "run", ["trainer.epochs=5"])
    assert Runner(longer.cfg, tmp_path / "run").run(resume=True)["epochs"] == 5
    assert "nothing is left to train" not in (tmp_path / "run" / "run.log").read_text()
    shorter = load_run(tmp_path / "run", ["trainer.epochs=2"])
    assert Runner(shorter.cfg, tmp_path / "run").run(resume=True)["epochs"] == 5
    assert "nothing is left to train" in (tmp_path / "run" / "run.log").read_text()


def test_without_checkpoints_the_last_weights_are_tested(tmp_path: Path) -> None:
    result = runner(tmp_path / "run", "checkpoint=none").run()
    assert result["test"]
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_inputs_that_cannot_be_shown_are_told() -> None:
    class Part(nn.Linear):
        """A model of which other processes hold the rest."""

        def parameters(self, recurse: bool = True) -> Any:
            return iter([SimpleNamespace(full_tensor=None)])

    class Told(Logger):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def message(self, text: str) -> None:
            self.lines.append(text)

        def graph(self, model: Any, example: Any) -> None:
            raise AssertionError

    for batch, why in (({"a": torch.ones(2)}, "no tensors"), ((torch.ones(2, 2), torch.ones(2)), "holds a part")):
        train = SimpleNamespace(epoch=lambda number, batch=batch: iter([batch]))
        parts: Any = SimpleNamespace(data=SimpleNamespace(train=train), model=Part(2, 2))
        logger = Told()
        messages._show_inputs(parts, logger, images=4, graph=True)
        assert len(logger.lines) == 1
        assert why in logger.lines[0]


@pytest.mark.parametrize(
    ("overrides", "best_step", "expected"),
    [
        ([], 3, "the best"),
        (["trainer.test=last"], 3, "the last"),
        (["checkpoint=none"], 3, "the last"),
        (["checkpoint.keep_best=0"], 3, "the last"),
        ([], None, "the last"),
    ],
)
def test_the_closing_table_says_which_weights_were_tested(
    overrides: list[str], best_step: int | None, expected: str
) -> None:
    cfg = compose(["data=wine", *overrides]).cfg
    title = messages._title(cfg, State(step=5, best_step=best_step), tested=True)
    assert title == f"result after 5 steps; tested with {expected} weights"


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


def test_a_loss_that_explodes_ends_with_status_3_and_a_record(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the loss is no longer finite") as caught:
        runner(tmp_path / "run", "optim=sgd", "optim.lr=1e30", "data.normalize=none").run()
    assert caught.value.exit_code == 3
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "the loss is no longer finite" in result["reason"]


def test_an_unwritable_place_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        runner(tmp_path / "file" / "run").run()


def test_unknown_splits_and_checkpoints_are_named(tmp_path: Path) -> None:
    runner(tmp_path / "run").run()
    with pytest.raises(UserError, match="the data has no such split"):
        runner(tmp_path / "run").evaluate("tset")
    with pytest.raises(UserError, match="no weights can be read"):
        runner(tmp_path / "run").evaluate("test", str(tmp_path / "nothing.pt"))
    with pytest.raises(UserError, match="another shape|missing"):
        runner(tmp_path / "run", "model.hidden=[9]").evaluate("test")
