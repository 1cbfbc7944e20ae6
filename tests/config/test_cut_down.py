"""Configurations that are cut down: what is left of lengths, and what keeps a model from learning by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config import compose, load_run, to_yaml
from lightkit.config.member_values import cut_down
from lightkit.config.saved import save


def smoke(*overrides: str) -> Any:
    return compose(["trainer=smoke", *overrides]).cfg


def overfit(*overrides: str) -> Any:
    return compose(["trainer=overfit", *overrides]).cfg


def plain(cfg: Any, key: str) -> Any:
    found = OmegaConf.select(cfg, key)
    return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found


LENGTHS: list[tuple[str, dict[str, Any]]] = [
    ("trainer.epochs=50", {"trainer.epochs": 2, "scheduler.warmup_steps": 0}),
    ("trainer.epochs=1 data.normalize_rows=10", {"trainer.epochs": 1, "data.normalize_rows": 10}),
    ("trainer.steps=5000", {"trainer.steps": 4}),
    ("trainer.stop_at=300_steps trainer.accumulate=16", {"trainer.stop_at": None, "trainer.accumulate": 2}),
    (
        "trainer.validate_unit=step trainer.validate_every=1000 trainer.find_lr=true trainer.find_batch_size=max",
        {"trainer.validate_unit": "epoch", "trainer.validate_every": 1, "trainer.find_lr": False},
    ),
    ("trainer.find_batch_size=max data.batch_size=512", {"trainer.find_batch_size": None, "data.batch_size": 512}),
    ("scheduler.warmup_epochs=3", {"scheduler.warmup_epochs": 0.0, "scheduler.warmup_steps": 1}),
    ("scheduler.warmup_steps=1000", {"scheduler.warmup_steps": 1}),
    ("checkpoint.every_epochs=10", {"checkpoint.every_epochs": 1}),
    ("checkpoint.every_epochs=null", {"checkpoint.every_epochs": None}),
    ("optim.rules=[{match:head,warmup_steps:500}]", {"optim.rules[0].warmup_steps": None}),
]


def test_lengths_of_a_smoke_run() -> None:
    for overrides, left in LENGTHS:
        cfg = smoke(*(part.replace("300_steps", "'300 steps'") for part in overrides.split()))
        assert {key: OmegaConf.select(cfg, key) for key in left} == left


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("[{epoch: 3, unfreeze: ['*']}]", [0.5]),
        ("[{epoch: 0, unfreeze: [@head]}, {epoch: 9, unfreeze: ['*']}]", [None, 0.5]),
        ("[{step: 900, unfreeze: ['*']}, {step: 10, freeze: [@bias]}]", [0.666667, 0.333333]),
        ("[{share: 0.2, unfreeze: ['*']}, {share: 0.2, freeze: [@bias]}]", [0.5, 0.5]),
        ("[{epoch: 4, unfreeze: ['*']}, {step: 10, freeze: [@bias]}]", [0.333333, 0.666667]),
    ],
)
def test_phases_come_in_the_same_order_within_the_run(schedule: str, shares: list[float | None]) -> None:
    cfg = smoke("finetune=head", f"finetune.schedule={schedule}")
    assert [entry.share for entry in cfg.finetune.schedule] == shares
    assert all(entry.epoch in (None, 0) and entry.step is None for entry in cfg.finetune.schedule)


def test_gradual_unfreezing_comes_to_its_end() -> None:
    gradual = smoke(
        "finetune=gradual", "finetune.gradual.share=null", "finetune.gradual.every_epochs=5"
    ).finetune.gradual
    assert (gradual.share, gradual.every_epochs, gradual.first) == (0.5, None, None)
    assert smoke("finetune=head").finetune.gradual.share is None


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        (["ensemble=bagging"], {"size": 2}),
        (["ensemble=bagging", "ensemble.resample=folds"], {"size": None, "folds": 2}),
        (["ensemble=voting", "ensemble.members=[{model: mlp}, {optim.lr: 0.1}, {seed: 3}]"], {"size": None}),
        (["ensemble=snapshot", "trainer.epochs=20"], {"size": 2}),
        (["ensemble=fast_geometric"], {"size": 2, "cycle_epochs": 1}),
        (["ensemble=stacking", "ensemble.repeats=3"], {"size": 2, "folds": 2, "repeats": 1}),
    ],
)
def test_members_of_an_ensemble(overrides: list[str], left: dict[str, Any]) -> None:
    ensemble = smoke(*overrides).ensemble
    assert {key: ensemble[key] for key in left} == left


def test_members_and_meta_model_are_cut_down_too() -> None:
    cfg = smoke(
        "ensemble=stacking", "ensemble.members=[{trainer.epochs: 90, scheduler.warmup_epochs: 8}, {model: cnn}]"
    )
    assert plain(cfg, "ensemble.meta")["trainer.steps"] == 4
    first = plain(cfg, "ensemble.members")[0]
    assert (first["trainer.epochs"], first["scheduler.warmup_epochs"], first["scheduler.warmup_steps"]) == (2, 0.0, 1)


@pytest.mark.parametrize("mode", ["smoke", "overfit"])
def test_what_is_cut_down_stays_as_it_is(mode: str, tmp_path: Path) -> None:
    cfg = compose([f"trainer={mode}", "finetune=gradual", "scheduler.warmup_epochs=2", "ensemble=none"]).cfg
    before = to_yaml(cfg)
    OmegaConf.set_readonly(cfg, False)
    cut_down(cfg)
    assert to_yaml(cfg) == before
    save(cfg, tmp_path)
    assert to_yaml(load_run(tmp_path, known=True).cfg) == before


def test_an_experiment_is_cut_down_whatever_it_says() -> None:
    cfg = smoke("experiment=digits_cnn", "trainer.steps=3")
    assert (cfg.trainer.steps, cfg.scheduler.warmup_steps, cfg.scheduler.warmup_epochs) == (3, 1, 0.0)
    assert cfg.loss.label_smoothing == 0.1, "only lengths change"
    assert len(cfg.data.augment) == 1


def test_what_keeps_a_model_from_learning_by_heart() -> None:
    cfg = overfit(
        "experiment=digits_cnn",
        "data.mixup.alpha=0.4",
        "trainer.accumulate=4",
        "optim.rules=[{match: head, weight_decay: 0.3}]",
        "ensemble=voting",
    )
    assert cfg.data.augment == []
    assert (cfg.data.mixup.alpha, cfg.data.batch_size) == (None, 8)
    assert (cfg.model.dropout, cfg.loss.label_smoothing, cfg.optim.weight_decay) == (0.0, 0.0, 0.0)
    assert cfg.optim.rules[0].weight_decay == 0.0
    assert (cfg.trainer.ema.decay, cfg.trainer.accumulate, cfg.trainer.test) == (None, 1, "none")
    assert plain(cfg, "scheduler") == {"_target_": "lightkit.optim.Constant", "warmup_steps": 0, "warmup_epochs": 0.0}
    assert cfg.ensemble._target_.endswith("NoEnsemble")
    assert cfg.optim.lr == 0.005, "the rate is what is tried"
    cfg = overfit("trainer.overfit.samples=100", "trainer.overfit.steps=50", "data.batch_size=32")
    assert (cfg.trainer.steps, cfg.trainer.epochs, cfg.data.batch_size) == (50, None, 32)
    cfg = overfit("trainer.early_stopping.target=0.1", "trainer.swa.from_epoch=3", "trainer.epoch_steps=3")
    assert (cfg.trainer.early_stopping.target, cfg.trainer.swa.from_epoch, cfg.trainer.epoch_steps) == (None,) * 3
    cfg = smoke("trainer.epoch_steps=900", "trainer.swa.from_epoch=3", "logger.tensorboard.histograms=100")
    assert cfg.logger.tensorboard.histograms == 1
    assert (cfg.trainer.swa.from_epoch, cfg.trainer.epoch_steps) == (1, 4)
    with pytest.raises(UserErrors, match=r"trainer\.overfit\.samples: a smoke run is too short to learn"):
        smoke("trainer.overfit.samples=8")


@pytest.mark.parametrize(
    "model",
    [
        "{_target_: lightkit.models.CNN, dropout: 0.4}",
        "{_target_: timm.create_model, model_name: x, drop_rate: 0.2, drop_path_rate: 0.1, attn_drop: 0.3}",
        "{_target_: torch.nn.Sequential, _args_: [{_target_: torch.nn.Linear, dropout: 0.3}]}",
    ],
)
def test_dropout_by_its_usual_names(model: str) -> None:
    cfg = compose(["data=digits"]).cfg
    OmegaConf.set_readonly(cfg, False)
    OmegaConf.set_struct(cfg, False)
    cfg.model = OmegaConf.create(model)
    cfg.trainer.overfit.samples = 4
    cut_down(cfg)
    assert "0.0" in str(cfg.model)
    assert not any(f"0.{digit}" in str(cfg.model) for digit in "1234")
