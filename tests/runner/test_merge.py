"""Which of two configurations wins, key by key."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserError
from lightkit.config import to_yaml
from lightkit.runner.merge import FREE, merge_configs

SAVED: dict[str, Any] = {
    "seed": 0,
    "name": "old",
    "optim": {"_target_": "torch.optim.SGD", "lr": 0.1, "nesterov": True, "rules": [{"match": "head", "lr": 1.0}]},
    "data": {"batch_size": 8, "augment": [{"_target_": "a.B"}], "mixup": {"alpha": None}},
    "trainer": {"epochs": 3, "callbacks": {"kill": {"_target_": "a.Kill"}}, "early_stopping": {"patience": None}},
    "metrics": {"val": {"f1": {"_target_": "m.F1"}}, "monitor": "val/loss"},
    "resume": {"override": []},
}


def settled(changes: dict[str, Any], override: tuple[str, ...] = (), *, gone: tuple[str, ...] = ()) -> Any:
    cfg = OmegaConf.create(OmegaConf.to_container(OmegaConf.create(SAVED)))
    for key, value in changes.items():
        OmegaConf.update(cfg, key, value, merge=False, force_add=True)
    for key in gone:
        above, _, name = key.rpartition(".")
        del OmegaConf.select(cfg, above)[name]
    return merge_configs(cfg, to_yaml(OmegaConf.create(SAVED)), list(override))


def test_nothing_differs() -> None:
    cfg, changes = settled({}, ("optim.lr", "data.*"))
    assert cfg == SAVED
    assert changes == []
    assert OmegaConf.is_readonly(cfg)
    assert merge_configs(OmegaConf.create({"seed": 3}), "", []) == ({"seed": 3}, [])


def test_the_globs_of_an_older_checkpoint_stay_what_they_meant() -> None:
    cfg, changes = merge_configs(OmegaConf.create(SAVED), OmegaConf.to_yaml(OmegaConf.create(SAVED)), [])
    assert cfg.optim.rules == [{"match": "*head", "lr": 1.0}]
    assert [change.key for change in changes] == ["optim.rules"]
    assert "the checkpoint's is kept (take the other with resume.override=[optim.rules])" in str(changes[0])


@pytest.mark.parametrize(
    ("key", "value", "before"),
    [
        ("seed", 1, 0),
        ("optim.lr", 0.5, 0.1),
        ("optim.rules", [{"match": "head", "lr": 0.5}], [{"match": "head", "lr": 1.0}]),
        ("data.augment", [], [{"_target_": "a.B"}]),
        ("data.mixup.alpha", 0.2, None),
        ("data.mixup", None, {"alpha": None}),
        ("metrics.monitor", "val/f1", "val/loss"),
    ],
)
def test_what_was_learnt_with_is_kept_unless_named(key: str, value: Any, before: Any) -> None:
    cfg, changes = settled({key: value})
    assert OmegaConf.select(cfg, key) == before
    assert [(change.key, change.taken) for change in changes] == [(key, False)]
    assert f"resume.override=[{key}]" in str(changes[0])
    for pattern in (key, key.rpartition(".")[0] or key, f"{key[:3]}*"):
        cfg, changes = settled({key: value}, (pattern,))
        assert OmegaConf.select(cfg, key) == value
        assert changes[0].taken
        assert "from now on" in str(changes[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "new"),
        ("data.batch_size", 16),
        ("trainer.early_stopping.patience", 3),
        ("trainer.callbacks.more", {"_target_": "a.More"}),
    ],
)
def test_free_keys_are_taken_and_told(key: str, value: Any) -> None:
    cfg, changes = settled({key: value})
    assert OmegaConf.select(cfg, key) == value
    assert [(change.key, change.taken) for change in changes] == [(key, True)]


def test_an_argument_that_came_or_went_needs_a_name() -> None:
    cfg, changes = settled({"optim.momentum": 0.9})
    assert "momentum" not in cfg.optim
    assert "the checkpoint says not set, the configuration 0.9" in str(changes[0])
    cfg, _ = settled({"optim.momentum": 0.9}, ("optim.momentum",))
    assert cfg.optim.momentum == 0.9
    cfg, changes = settled({}, gone=("optim.nesterov",))
    assert cfg.optim.nesterov is True
    assert "the configuration not set" in str(changes[0])
    cfg, _ = settled({}, ("optim.nesterov",), gone=("optim.nesterov",))
    assert "nesterov" not in cfg.optim


def test_a_free_key_that_was_deleted_stays_away() -> None:
    cfg, changes = settled({}, gone=("trainer.callbacks.kill",))
    assert cfg.trainer.callbacks == {}
    assert changes[0].taken


def test_metrics_come_and_go_only_when_named() -> None:
    new = {"metrics.val.auroc": {"_target_": "m.Auroc"}}
    cfg, _ = settled(new, gone=("metrics.val.f1",))
    assert set(cfg.metrics.val) == {"f1"}
    cfg, _ = settled(new, ("metrics.val",), gone=("metrics.val.f1",))
    assert set(cfg.metrics.val) == {"auroc"}


def test_keys_of_a_later_version_keep_their_value_without_a_word() -> None:
    cfg, changes = settled({"trainer.later": 5, "data.mixup.later": {"a": 1}})
    assert (cfg.trainer.later, cfg.data.mixup.later, changes) == (5, {"a": 1}, [])


def test_an_override_that_is_no_key_is_refused() -> None:
    for name in ("optim.lrr", "lr", "optim.rules.0", "OPTIM.LR"):
        with pytest.raises(UserError, match=r"resume\.override: no such key"):
            settled({"optim.lr": 0.5}, (name,))


def test_what_decides_about_learning_is_not_free() -> None:
    assert not {"seed", "optim.lr", "data.mixup.alpha", "loss.*", "model.*", "trainer.accumulate"} & set(FREE)
