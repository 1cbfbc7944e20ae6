"""One function for each part of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightkit.assembly import build
from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose
from lightkit.trainer.callbacks import EarlyStopping
from tests.assembly.test_learner import DATA_OF_METRICS, SUITS, built, data_overrides, one_step, options


@pytest.mark.thorough
@pytest.mark.parametrize(("asked", "every"), [([], 8), (["data.batch_size=2"], 50), (["logger.every_steps=90"], 90)])
def test_training_values_are_logged_once_an_epoch_at_the_least(tmp_path: Path, asked: list[str], every: int) -> None:
    parts = built(tmp_path, "data=wine", *asked)
    assert parts.timetable.log_steps == every
    parts.data.close()


@pytest.mark.thorough
@pytest.mark.parametrize("name", options("data"))
def test_every_data_set_gives_a_first_batch_that_its_loss_and_metrics_take(name: str, tmp_path: Path) -> None:
    if name == "torchvision":
        pytest.importorskip("torchvision")
    parts = built(tmp_path, f"data={name}", *data_overrides(name, tmp_path), "data.batch_size=8")
    assert torch.isfinite(torch.tensor(one_step(parts)))
    assert parts.data.val is not None
    assert parts.data.test is not None


@pytest.mark.thorough
@pytest.mark.parametrize("name", options("loss"))
def test_every_loss_gives_a_number(name: str, tmp_path: Path) -> None:
    parts = built(tmp_path, *SUITS.get(name, ["data=digits"]), f"loss={name}")
    assert torch.isfinite(torch.tensor(one_step(parts)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in options("metrics") if name != "ranking"])
def test_every_metric_takes_a_batch(name: str, tmp_path: Path) -> None:
    chosen = DATA_OF_METRICS.get(name, ["data=digits"])
    if name == "binary":
        chosen = ["data=csv", *data_overrides("csv", tmp_path), "data.dataset.task=binary", "loss=bce_with_logits"]
    parts = built(tmp_path, *chosen, f"metrics={name}")
    batch = next(iter(parts.data.train.epoch(0)))
    step = parts.task.step(parts.network, batch, parts.criterion)
    for split in ("train", "val", "test"):
        parts.metrics[split].update(step.preds, step.target, step.loss, len(batch[0]))
        values = parts.metrics[split].compute()
        assert f"{split}/loss" in values


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_missing_device_says_what_there_is(name: str, tmp_path: Path) -> None:
    if getattr(torch, name).is_available():
        pytest.skip("there is one")
    with pytest.raises(UserError, match=r"device\.name[\s\S]*device=cpu"):
        build(compose(["data=wine", f"device={name}"]).cfg, tmp_path)


def test_loss_and_metrics_that_do_not_suit_the_data_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(
        UserErrors, match=r"loss: [\s\S]*metrics\.train\.\w+: [\s\S]*loss=mse metrics=regression[\s\S]*2 prob"
    ):
        built(tmp_path, "data=diabetes", "loss=cross_entropy", "metrics=multiclass")


def test_a_callback_with_an_unknown_hook_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EarlyStopping, "on_epoch_end", lambda self: None, raising=False)
    node = "{_target_: lightkit.trainer.callbacks.EarlyStopping, monitor: val/loss, mode: min, patience: 1}"
    with pytest.raises(UserError, match=r"trainer\.callbacks\.mine: EarlyStopping\.on_epoch_end would never be called"):
        built(tmp_path, "data=wine", f"trainer.callbacks={{mine: {node}}}")
