"""What a run enters once: its folder, its record, and how it ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.loggers.events import read_scalars
from lightkit.runner import Runner
from lightkit.runs.folder import RunFolder
from tests.ensemble.test_plan import OPTIONS, TwoModels
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
    typed = list[list[str]]()
    monkeypatch.setattr("lightkit.loggers.Loggers.hparams", lambda _, __, overrides: typed.append([*overrides]))
    runner(tmp_path / "run", "optim.lr=0.01").run()
    for _ in range(2):
        longer = load_run(tmp_path / "run", ["trainer.epochs=4"])
        Runner(longer.cfg, tmp_path / "run", overrides=["trainer.epochs=4"]).run(resume=True)
    assert typed[0] == [*QUICK, "optim.lr=0.01"]
    assert typed[1] == typed[2] == [*typed[0], "trainer.epochs=4"]
    assert RunFolder(tmp_path / "run").typed() == typed[2]
    assert RunFolder(tmp_path / "none").typed() == []


def test_resuming_without_a_checkpoint_and_an_unwritable_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no checkpoint to go on from"):
        runner(tmp_path / "run").run(resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        runner(tmp_path / "file" / "run").run()


def test_a_folder_of_several_models_is_neither_begun_anew_nor_gone_on_with_as_one(tmp_path: Path) -> None:
    cfg = compose([*OPTIONS, "trainer.epochs=1"]).cfg
    for different, message in (
        ({"data.batch_size": 4}, r"data\.batch_size: the members of a run learn from the same data"),
        ({"optim._target_": "torch.optim.LBFGS"}, "LBFGS"),
    ):
        with pytest.raises(UserError, match=message):
            Runner(cfg, tmp_path / "run", plan=TwoModels(different)).run()
        assert not (tmp_path / "run").exists()
    Runner(cfg, tmp_path / "run", plan=TwoModels()).run()
    with pytest.raises(UserError, match="the folder already holds a run"):
        Runner(cfg, tmp_path / "run", plan=TwoModels()).run()
    with pytest.raises(UserError, match="trains several models, which its plan names"):
        Runner(cfg, tmp_path / "run").run(resume=True)
    assert not (tmp_path / "run" / "checkpoints").exists()
