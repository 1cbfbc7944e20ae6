"""What rules over parameter names may say, and which win."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.models import MLP
from lightkit.optim import parameter_groups
from tests.optim.test_groups import Custom, mlp, table


def test_later_rules_win_attribute_by_attribute():
    rules = [
        {"match": "layers.*", "lr_scale": 0.1, "weight_decay": 0.5},
        {"match": "*.linear1.*", "lr": 0.3, "name": "second"},
        {"match": ["head.*"], "lr_scale": 10},
    ]
    groups = table(parameter_groups(mlp(), lr=0.1, weight_decay=0.01, rules=rules))
    assert groups["layers"][:2] == (pytest.approx(0.01), 0.5)
    assert groups["layers+second"] == (0.3, 0.5, ["layers.linear1.weight", "layers.linear1.bias"])
    assert groups["head"] == (pytest.approx(1.0), 0.01, ["head.weight", "head.bias"])


def test_of_two_rates_the_later_counts():
    def rate(*rules):
        (group,) = parameter_groups(nn.Linear(2, 2), lr=0.1, rules=[{"match": "*", **rule} for rule in rules])
        return group["lr"]

    assert rate({"lr": 0.5}, {"lr_scale": 2}) == pytest.approx(0.2)
    assert rate({"lr_scale": 2}, {"lr": 0.5}) == 0.5
    assert rate({"lr_scale": 2}, {"lr_scale": 3}) == pytest.approx(0.3)


def test_a_rate_rule_keeps_the_norms_without_decay():
    groups = table(
        parameter_groups(
            mlp(), lr=0.1, weight_decay=0.01, no_decay=True, rules=[{"match": "layers.*", "lr_scale": 0.1}]
        )
    )
    assert groups["layers.no_decay"][:2] == (pytest.approx(0.01), 0.0)
    assert groups["layers"][:2] == (pytest.approx(0.01), 0.01)
    assert groups["decay"][2] == ["head.weight"]
    assert groups["no_decay"][2] == ["head.bias"]


def test_a_weight_decay_rule_wins_over_no_decay():
    groups = parameter_groups(mlp(), weight_decay=0.01, no_decay=True, rules=[{"match": "head.*", "weight_decay": 0.2}])
    assert table(groups)["head"] == (None, 0.2, ["head.weight", "head.bias"])


def test_rules_with_found_names_compose_like_the_others():
    rules = [
        {"names": ["layers.linear0.weight", "gone"], "key": "finetune.rules[0]", "match": ["layers.*"], "lr": 0.2},
        {"names": ("head.weight",), "key": "finetune.head", "lr_scale": 10, "weight_decay": 0.3},
        {"match": "*linear0.weight", "name": "first", "weight_decay": 0.4},
        {"names": ["head.bias"], "key": "finetune.rules[1]", "lr": 0.9},
    ]
    groups = table(parameter_groups(mlp(), lr=0.1, weight_decay=0.01, rules=rules))
    assert groups["layers+first"] == (0.2, 0.4, ["layers.linear0.weight"])
    assert groups["finetune.head"] == (1.0, 0.3, ["head.weight"])
    assert groups["finetune.rules_1"] == (0.9, 0.01, ["head.bias"])


def test_a_ratio_multiplies_what_all_other_rules_say():
    ratio = {"names": ["head.weight"], "key": "finetune.lora", "lr_ratio": 16.0, "name": "b"}

    def rate(*rules, **options):
        groups = parameter_groups(mlp(), lr=0.1, rules=rules, names=["head.weight"], **options)
        return groups[0]["lr"]

    assert rate(ratio) == pytest.approx(1.6)
    assert rate(ratio, {"match": "head.*", "lr": 0.5}) == 8.0
    assert rate({"match": "head.*", "lr_scale": 0.5}, ratio) == pytest.approx(0.8)
    with pytest.raises(UserError, match=r"finetune\.lora\.lr_ratio: not a learning rate"):
        rate({**ratio, "lr_ratio": -1.0})


def test_rules_match_the_names_from_before_a_change_too():
    model = Custom()
    torch.nn.utils.parametrizations.weight_norm(model.linear)
    token, g = "token", "linear.parametrizations.weight.original0"
    aliases = {g: "linear.weight", token: "old.token"}
    rules = [{"match": "linear.weight", "lr": 0.5, "name": "found"}, {"match": "old.*", "lr": 0.7}]
    groups = table(parameter_groups(model, lr=0.1, rules=rules, aliases=aliases))
    assert groups["found"][2] == [g]
    assert groups["old"][2] == [token]
    model.no_weight_decay = lambda: {"linear.weight"}
    groups = table(parameter_groups(model, lr=0.1, weight_decay=0.1, no_decay=True, aliases=aliases))
    assert g in groups["no_decay"][2]


def test_a_rate_of_zero_must_be_meant():
    def rate(**rule):
        return parameter_groups(nn.Linear(2, 2), lr=0.1, rules=[{"match": "*", "allow_zero": True, **rule}])[0]["lr"]

    assert rate(lr=0.0) == 0.0
    assert rate(lr_scale=0) == 0.0
    assert rate(lr=0.3) == 0.3
    with pytest.raises(UserError, match="not a learning rate"):
        rate(lr=-0.1)


def test_rules_may_come_with_all_fields_unset():
    empty = dict.fromkeys(("name", "lr", "lr_scale", "weight_decay", "warmup_steps"))
    (group,) = parameter_groups(nn.Linear(2, 2), lr=0.1, rules=[{**empty, "match": ["*"], "allow_zero": False}])
    assert (group["name"], group["lr"]) == ("rest", 0.1)


def test_a_rule_is_for_whole_names_and_for_what_lies_below_them():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))
    rules = [{"match": "0.*", "lr": 0.5}, {"match": ["1", "2.weight"], "lr": 0.7}, {"match": "re:^1[01]$", "lr": 0.9}]
    groups = table(parameter_groups(model, lr=0.1, rules=rules))
    assert groups["0"][2] == ["0.weight", "0.bias"]
    assert groups["1+2.weight"][2] == ["1.weight", "1.bias", "2.weight"]
    assert groups["1_01"][2] == ["10.weight", "10.bias", "11.weight", "11.bias"]
    for end in ("weight", ".bias", "0.weigh", "1?.*.weight"):
        with pytest.raises(UserError, match="the pattern matches no trainable parameter"):
            parameter_groups(model, lr=0.1, rules=[{"match": end, "lr": 0.5}])


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
