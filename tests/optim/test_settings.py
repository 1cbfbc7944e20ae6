"""Names and settings of groups."""

from __future__ import annotations

from lightkit.models import MLP
from lightkit.optim import parameter_groups
from tests.optim.test_groups import mlp, table


def test_group_names_are_unique_and_fit_for_tensorboard():
    rules = [
        {"match": "re:^layers\\.linear[0]", "name": "same", "lr": 0.1},
        {"match": "head.*", "name": "same", "lr": 0.2},
        {"match": "re:norm[01]\\.(weight|bias)$", "lr": 0.3},
    ]
    groups = parameter_groups(mlp(), lr=1.0, rules=rules)
    assert [group["name"] for group in groups] == ["same", "norm_01_._weight_bias", "all", "same_2"]


def test_each_group_says_which_settings_made_it():
    rules = [
        {"match": "layers.*", "lr_scale": 0.1},
        {"names": ["head.weight"], "key": "finetune.head", "name": "new", "lr": 0.5},
        {"match": "*linear1*", "weight_decay": 0.0},
    ]
    groups = parameter_groups(MLP(3, 2, hidden=(4, 4)), lr=0.1, rules=rules, no_decay=True, layer_decay=0.5)
    assert {group["name"]: group["rules"] for group in groups} == {
        "layer_0.layers": ["optim", "optim.layer_decay", "optim.rules[0]"],
        "layer_0.layers.no_decay": ["optim", "optim.no_decay", "optim.layer_decay", "optim.rules[0]"],
        "layer_1.layers+linear1": [
            "optim",
            "optim.layer_decay",
            "optim.rules[0]",
            "optim.rules[1]",
            "optim.no_decay",
        ],
        "layer_2.new": ["optim", "optim.layer_decay", "finetune.head"],
        "layer_2.no_decay": ["optim", "optim.no_decay", "optim.layer_decay"],
    }


def test_labels_come_first_and_are_never_mixed():
    labels = {"head.weight": "head", "head.bias": "head", "layers.linear0.bias": "a", "layers.linear1.weight": "a.b"}
    rules = [
        {"match": "layers.linear0.bias", "name": "b"},
        {"match": "head.*", "name": "head"},
        {"match": "*norm1*", "name": "last"},
    ]
    groups = table(parameter_groups(mlp(), lr=0.1, weight_decay=0.1, labels=labels, rules=rules, no_decay=True))
    assert groups["head"][2] == ["head.weight"]
    assert groups["head.no_decay"][2] == ["head.bias"]
    assert groups["a.b.no_decay"][2] == ["layers.linear0.bias"]
    assert groups["a.b"][2] == ["layers.linear1.weight"]
    assert groups["last.no_decay"][2] == ["layers.norm1.weight", "layers.norm1.bias"]
    same = [{"match": "layers.linear0.bias", "name": "b"}]
    pair = {"layers.linear0.bias": "a", "layers.linear1.weight": "a.b"}
    groups = parameter_groups(mlp(), labels=pair, rules=same, names=pair)
    assert [group["name"] for group in groups] == ["a.b", "a.b_2"]


def test_warmups_split_groups_by_the_step_they_start_at():
    rules = [{"match": "layers.*", "warmup_steps": 5, "name": "body"}, {"match": "*norm*", "warmup_steps": 0}]
    starts = {"layers.linear1.weight": 20, "layers.norm0.weight": 7, "head.bias": 9, "head.weight": 3}
    groups = parameter_groups(mlp(), rules=rules, first_steps=starts)
    own = {group["name"]: (group.get("warmup_steps"), group.get("first_step")) for group in groups}
    assert own == {"body": (5, 0), "body_2": (5, 20), "body+norm": (None, None), "all": (None, None)}
    assert groups[0]["warmup_key"] == "optim.rules[0].warmup_steps"
    assert groups[-1]["param_names"] == ["head.weight", "head.bias"]
