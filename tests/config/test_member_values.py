from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from lightkit.config.member_values import apply, difference, flat, member_label, member_values, nested, with_values

RUN = {
    "model": {"_target_": "a.MLP", "hidden": [8], "act": "relu"},
    "optim": {"_target_": "a.SGD", "lr": 0.1},
    "finetune": {"freeze": ["*"], "lora": {"rank": 8, "ranks": {"layer4.*": 16}}, "peft": None},
    "trainer": {"epochs": 3, "callbacks": {"swa": {"_target_": "a.Swa", "start": 2}}},
    "seed": 0,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 7, "optim.lr": 0.01},
        {"model": {"_target_": "a.CNN", "channels": [4]}},
        {"model": {"_target_": "a.MLP", "hidden": [8]}},
        {"finetune.peft": {"_target_": "a.Peft", "r": 8}},
        {"finetune": {"lora": {"ranks": {"layer3.*": 4}}}},
        {"~finetune.lora.ranks": None, "finetune.lora.ranks": {"layer3.*": 4}},
        {"~trainer.callbacks.swa": None},
        {"trainer": {"callbacks": {"hook": {"_target_": "a.Hook"}}}},
    ],
)
def test_what_tells_two_configurations_apart_makes_one_of_the_other(changes: dict[str, Any]) -> None:
    wanted = OmegaConf.to_container(with_values(OmegaConf.create(RUN), changes))
    found = difference(RUN, wanted)
    again = with_values(OmegaConf.create(RUN), found)
    assert OmegaConf.to_container(again) == wanted
    assert difference(RUN, OmegaConf.to_container(again)) == found == member_values(found)


def test_single_values_stay_single_and_another_target_is_a_whole_node() -> None:
    other = {"_target_": "a.CNN", "channels": [4]}
    assert difference(RUN, {**RUN, "optim": {"_target_": "a.SGD", "lr": 0.2}, "model": other}) == {
        "model": other,
        "optim.lr": 0.2,
    }


def test_a_whole_node_replaces_and_any_other_mapping_is_merged() -> None:
    cfg = with_values(
        OmegaConf.create(RUN), {"model": {"_target_": "a.CNN", "width": 3}, "finetune": {"lora": {"rank": 2}}}
    )
    assert cfg.model == {"_target_": "a.CNN", "width": 3}
    assert cfg.finetune == {"freeze": ["*"], "lora": {"rank": 2, "ranks": {"layer4.*": 16}}, "peft": None}
    assert OmegaConf.is_readonly(cfg)
    assert RUN["optim"] == cfg.optim


def test_the_order_of_an_entry_counts_only_between_two_that_say_the_same() -> None:
    assert member_values({"optim.lr": 0.1, "optim": {"lr": 0.2}}) == {"optim.lr": 0.2}
    tree: dict[str, Any] = {"model": {"_target_": "a.MLP", "hidden": [1]}}
    apply(tree, flat({"model.width": 5, "model": {"_target_": "a.CNN", "width": 3}}))
    assert tree == {"model": {"_target_": "a.CNN", "width": 5}}


def test_items_of_lists_and_nodes_that_are_not_there() -> None:
    tree: dict[str, Any] = {"rules": [{"lr": 1}], "peft": None}
    apply(tree, flat({"rules.0.lr": 2, "peft.r": 8, "extra.a.b": 1}))
    assert tree == {"rules": [{"lr": 2}], "peft": {"r": 8}, "extra": {"a": {"b": 1}}}
    with pytest.raises(KeyError):
        apply(tree, flat({"~extra.c": None}))


def test_entries_as_a_tree() -> None:
    assert nested({"model._target_": "a.CNN", "~x": None}) == {"model": {"_target_": "a.CNN"}}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, "02"),
        ({"name": "cnn-lr=0.01", "seed": 3}, "02-cnn-lr=0.01"),
        ({"model": {"_target_": "lightkit.models.CNN", "depth": 2}, "optim.lr": 0.01}, "02-cnn-lr=0.01"),
        ({"model.hidden": [64, 64], "finetune.peft": None}, "02-hidden=64,64"),
        ({"name": "../a b"}, "02-a-b"),
        ({"name": "x" * 99}, "02-" + "x" * 37),
    ],
)
def test_labels_are_short_and_safe_names_of_folders(entry: dict[str, Any], expected: str) -> None:
    assert member_label(entry, 2) == expected
