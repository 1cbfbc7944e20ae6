"""Earlier names of keys lead on, and say so."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.common.errors import UserErrors
from lightkit.config.compose import compose
from lightkit.config.former import move_former
from lightkit.config.saved import load_run, save

NOW = {
    "finetune.layer_decay=0.7": ("optim.layer_decay", 0.7),
    "device.batch_size=max": ("trainer.find_batch_size", "max"),
    "finetune.rules=[{match: '@norm', lr_scale: 2}]": (
        "optim.rules",
        [{"match": "@norm", "lr_scale": 2, "name": "norm"}],
    ),
}


@pytest.mark.parametrize("typed", NOW)
def test_a_value_goes_to_the_name_of_today(toy: Path, caplog: pytest.LogCaptureFixture, typed: str) -> None:
    key, value = NOW[typed]
    with caplog.at_level(logging.WARNING):
        cfg = compose([typed]).cfg
    found = OmegaConf.to_container(OmegaConf.create({"it": OmegaConf.select(cfg, key)}))["it"]  # type: ignore[index]
    if isinstance(found, list):
        found = [{name: given for name, given in rule.items() if given not in (None, False)} for rule in found]
    assert found == value
    former = typed.partition("=")[0]
    assert OmegaConf.select(cfg, former) in (None, [])
    assert f"{former} is an earlier name: {key} does the same" in caplog.text or "earlier name" not in caplog.text
    run = toy / "outputs" / "run"
    run.mkdir(parents=True)
    save(cfg, run)
    assert OmegaConf.select(load_run(run).cfg, key) == OmegaConf.select(cfg, key)


def test_a_run_that_is_changed_by_an_earlier_name_has_that_of_today(toy: Path) -> None:
    run = toy / "outputs" / "run"
    run.mkdir(parents=True)
    save(compose([]).cfg, run)
    assert load_run(run, ["device.batch_size=auto"]).cfg.trainer.find_batch_size == "auto"


def test_two_different_values_contradict_each_other(toy: Path) -> None:
    with pytest.raises(UserErrors, match="set twice"):
        compose(["finetune.layer_decay=0.7", "optim.layer_decay=0.8"])


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"finetune": None, "optim": {}},
        {"finetune": {"layer_decay": None, "rules": []}, "optim": {"rules": [{"match": "a"}]}},
        {"finetune": {"layer_decay": 0.5}},
    ],
)
def test_what_is_not_said_stays_away(tree: dict[str, Any]) -> None:
    before = {key: dict(value) if value else value for key, value in tree.items()}
    assert move_former(tree) == []
    assert tree == before


def test_rules_come_behind_those_that_are_there() -> None:
    tree: dict[str, Any] = {
        "finetune": {"rules": [{"match": ["re:^b", "@head"]}, {"match": "c", "name": "own"}, "broken"]},
        "optim": {"rules": [{"match": "a"}]},
    }
    assert len(move_former(tree)) == 1
    assert tree == {
        "finetune": {},
        "optim": {
            "rules": [
                {"match": "a"},
                {"match": ["re:^b", "@head"], "name": "^b+head"},
                {"match": "c", "name": "own"},
                "broken",
            ]
        },
    }
