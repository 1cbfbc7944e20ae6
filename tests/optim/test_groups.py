from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.models import CNN, MLP, TransformerLM
from lightkit.optim import layer_depths, parameter_groups


def table(groups):
    return {group["name"]: (group.get("lr"), group.get("weight_decay"), group["param_names"]) for group in groups}


def mlp(**options):
    return MLP(3, 2, hidden=(4, 4), norm="layer", **options)


def test_without_rules_there_is_one_group():
    model = mlp()
    (group,) = parameter_groups(model, lr=0.1, weight_decay=0.01)
    assert group["name"] == "all"
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.01)
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]


def test_what_is_not_given_is_left_to_the_optimizer():
    (group,) = parameter_groups(mlp())
    assert set(group) == {"params", "param_names", "name", "rules"}


def test_no_decay_spares_biases_and_norms():
    groups = table(parameter_groups(mlp(), lr=0.1, weight_decay=0.01, no_decay=True))
    assert groups["decay"] == (0.1, 0.01, ["layers.linear0.weight", "layers.linear1.weight", "head.weight"])
    assert groups["no_decay"][1] == 0.0
    assert len(groups["no_decay"][2]) == 7


class TableNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 2))


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.token = TableNorm(), nn.Linear(2, 2), nn.Parameter(torch.ones(1, 2))
        self.wide = nn.LayerNorm((2, 2))
        self.plain = nn.Embedding(3, 2)

    def no_weight_decay(self):
        return {"token"}


def test_no_decay_spares_biases_of_any_shape():
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    groups = table(parameter_groups(attention, weight_decay=0.1, no_decay=True))
    assert groups["no_decay"][2] == ["in_proj_bias", "bias_k", "bias_v", "out_proj.bias"]


def test_no_decay_knows_custom_norms_and_the_models_own_list():
    groups = table(parameter_groups(Custom(), weight_decay=0.1, no_decay=True))
    assert groups["decay"][2] == ["linear.weight", "plain.weight"]
    assert groups["no_decay"][2] == ["token", "norm.scale", "linear.bias", "wide.weight", "wide.bias"]


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


def test_layer_decay_scales_rates_towards_the_input():
    model = MLP(3, 2, hidden=(4, 4))
    rules = [{"match": "*linear1*", "lr_scale": 2}, {"match": "head.bias", "lr": 0.7}]
    groups = table(parameter_groups(model, lr=1.0, weight_decay=0.0, layer_decay=0.5, rules=rules))
    assert {name: values[0] for name, values in groups.items()} == {
        "layer_0": 0.25,
        "layer_1.linear1": 1.0,
        "layer_2": 1.0,
        "layer_2.head.bias": 0.7,
    }


def test_slices_cut_the_layers_into_equal_parts():
    model = CNN((1, 8, 8), 3, channels=(4, 4), depth=2)  # 4 convolutions and the head
    groups = parameter_groups(model, lr=1.0, slices=[0.01, 0.1, 1.0], rules=[{"match": "head.bias", "lr_scale": 2}])
    assert [(group["name"], group["lr"]) for group in groups] == [
        ("slice_0", 0.01),
        ("slice_1", 0.1),
        ("slice_2", 1.0),
        ("slice_2.head.bias", 2.0),
    ]
    assert groups[1]["param_names"][0] == "stages.1.conv0.weight"
    assert groups[0]["rules"] == ["optim", "finetune.slices"]
    (group,) = parameter_groups(model, lr=1.0, slices=[0.5], slices_key="my.slices")
    assert (group["name"], group["lr"], group["rules"]) == ("slice_0", 0.5, ["optim", "my.slices"])


@pytest.mark.parametrize("pieces", range(1, 13))
def test_slices_differ_by_one_layer_at_most_and_run_from_input_to_output(pieces):
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(12)))
    groups = parameter_groups(model, lr=1.0, slices=[1.0 + n for n in range(pieces)])
    assert [group["lr"] for group in groups] == [1.0 + n for n in range(pieces)]
    sizes = [len(group["params"]) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    names = [name for group in groups for name in group["param_names"]]
    assert names == [f"{n}.weight" for n in range(12)]
    assert sorted(group["name"] for group in groups) == [group["name"] for group in groups]


def test_group_names_are_unique_and_fit_for_tensorboard():
    rules = [
        {"match": "re:^layers\\.linear[0]", "name": "same", "lr": 0.1},
        {"match": "head.*", "name": "same", "lr": 0.2},
        {"match": "re:norm[01]\\.(weight|bias)$", "lr": 0.3},
    ]
    groups = parameter_groups(mlp(), lr=1.0, rules=rules)
    assert [group["name"] for group in groups] == ["same", "norm_01_._weight_bias", "all", "same_2"]


@pytest.mark.parametrize("model", [mlp(), CNN((1, 8, 8), 3, depth=2), TransformerLM(9, 4, dim=8, depth=2, heads=2)])
@pytest.mark.parametrize("layer_decay", [None, 0.8])
@pytest.mark.parametrize("no_decay", [False, True])
def test_every_parameter_is_in_exactly_one_group(model, layer_decay, no_decay):
    rules = [{"match": "*.weight", "lr_scale": 0.5}, {"match": "re:1", "weight_decay": 0.1}]
    groups = parameter_groups(model, lr=0.1, weight_decay=0.1, rules=rules, no_decay=no_decay, layer_decay=layer_decay)
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
    assert len({group["name"] for group in groups}) == len(groups)
    names = dict(model.named_parameters())
    assert all(names[name] is p for g in groups for name, p in zip(g["param_names"], g["params"]))


def test_tied_parameters_count_once_and_answer_to_both_names():
    model = TransformerLM(9, 4, dim=8, depth=1, heads=2)
    groups = table(parameter_groups(model, lr=0.1, rules=[{"match": "head.weight", "lr": 0.5}]))
    assert groups["head.weight"][2] == ["embed.values.weight"]


def test_frozen_parameters_are_left_out_unless_asked_for():
    model = mlp()
    model.layers.requires_grad_(False)
    assert table(parameter_groups(model))["all"][2] == ["head.weight", "head.bias"]
    every = [name for name, _ in model.named_parameters()]
    assert table(parameter_groups(model, names=every))["all"][2] == every
    assert table(parameter_groups(model, names={"head.bias", "layers.linear0.bias"}))["all"][2] == [
        "layers.linear0.bias",
        "head.bias",
    ]
    with pytest.raises(UserError, match="the pattern matches no trainable parameter"):
        parameter_groups(model, rules=[{"match": "layers.*", "lr": 0.1}])
    with pytest.raises(UserError, match="no parameter of the model can be trained"):
        parameter_groups(model, names=[])
    with pytest.raises(ValueError, match=r"not first names of the model's parameters: head, hed\.bias"):
        parameter_groups(model, names=["head.weight", "hed.bias", "head"])
    model.requires_grad_(False)
    with pytest.raises(UserError, match="no parameter of the model can be trained"):
        parameter_groups(model)


def test_a_shared_parameter_has_its_first_name_only():
    model = TransformerLM(9, 4, dim=8, depth=1, heads=2)
    with pytest.raises(ValueError, match=r"not first names .*: head\.weight"):
        parameter_groups(model, names=["head.weight"])


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


def test_layers_of_before_a_change_hold_for_what_came_in():
    model = MLP(3, 2, hidden=(4, 4))
    depths = layer_depths(model)
    torch.nn.utils.parametrizations.weight_norm(model.layers.linear1)
    model.head = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model.prompt = nn.Parameter(torch.zeros(1, 3))
    groups = table(parameter_groups(model, lr=1.0, layer_decay=0.5, depths=depths))
    assert groups["layer_0"][0] == 0.25
    assert groups["layer_0"][2] == ["prompt", "layers.linear0.weight", "layers.linear0.bias"]
    assert len(groups["layer_1"][2]) == 3
    assert len(groups["layer_2"][2]) == 4


def test_a_rate_of_zero_must_be_meant():
    def rate(**rule):
        return parameter_groups(nn.Linear(2, 2), lr=0.1, rules=[{"match": "*", "allow_zero": True, **rule}])[0]["lr"]

    assert rate(lr=0.0) == 0.0
    assert rate(lr_scale=0) == 0.0
    assert rate(lr=0.3) == 0.3
    with pytest.raises(UserError, match="not a learning rate"):
        rate(lr=-0.1)


def test_warmups_split_groups_by_the_step_they_start_at():
    rules = [{"match": "layers.*", "warmup_steps": 5, "name": "body"}, {"match": "*norm*", "warmup_steps": 0}]
    starts = {"layers.linear1.weight": 20, "layers.norm0.weight": 7, "head.bias": 9, "head.weight": 3}
    groups = parameter_groups(mlp(), rules=rules, first_steps=starts)
    own = {group["name"]: (group.get("warmup_steps"), group.get("first_step")) for group in groups}
    assert own == {"body": (5, 0), "body_2": (5, 20), "body+norm": (None, None), "all": (None, None)}
    assert groups[0]["warmup_key"] == "optim.rules[0].warmup_steps"
    assert groups[-1]["param_names"] == ["head.weight", "head.bias"]


def test_rules_may_come_with_all_fields_unset():
    empty = dict.fromkeys(("name", "lr", "lr_scale", "weight_decay", "warmup_steps"))
    (group,) = parameter_groups(nn.Linear(2, 2), lr=0.1, rules=[{**empty, "match": ["*"], "allow_zero": False}])
    assert (group["name"], group["lr"]) == ("rest", 0.1)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam"])
def test_torchs_optimizers_take_the_groups(name):
    model = mlp()
    rules = [{"match": "head.*", "lr_scale": 3.0}]
    optimizer = getattr(torch.optim, name)(parameter_groups(model, lr=0.1, weight_decay=0.0, rules=rules), lr=0.1)
    before = model.head.weight.clone()
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, model.head.weight)
    assert [group["name"] for group in optimizer.state_dict()["param_groups"]] == ["all", "head"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"rules": [{"match": "hed.*", "lr": 1.0}]},
            r"(?s)optim\.rules\[0\]\.match: the pattern matches no.*head\.weight",
        ),
        ({"rules": [{"match": "re:["}]}, "not a regular expression"),
        ({"rules": [{"lr": 1.0}]}, r"optim\.rules\[0\]\.match: a rule needs the names it is for"),
        ({"rules": [{"match": "*", "lr": 1.0, "lr_scale": 2.0}]}, "either lr or lr_scale"),
        ({"rules": [{"match": "*", "lr_scal": 2.0}]}, r"(?s)unknown setting of a rule.*nearest: lr_scale"),
        (
            {"rules": [{"match": "*", "lr_scale": 0}]},
            r"(?s)a learning rate of 0 does not train.*freeze these parameters",
        ),
        ({"rules": [{"match": "*", "lr": 0.0}]}, r"optim\.rules\[0\]\.lr: a learning rate of 0 does not train"),
        ({"rules": [{"match": "*", "lr": -1.0}]}, "not a learning rate"),
        ({"rules": [{"match": "*", "weight_decay": -1.0}]}, r"rules\[0\]\.weight_decay: not a weight decay"),
        ({"lr": 0.0}, r"lr: a learning rate of 0"),
        ({"lr": float("nan")}, r"lr: not a learning rate"),
        ({"weight_decay": -0.1}, r"weight_decay: not a weight decay"),
        ({"layer_decay": 0.0}, r"optim\.layer_decay: not a factor per layer"),
        ({"layer_decay": 1.5}, r"optim\.layer_decay: not a factor per layer"),
        ({"layer_decay": 1.5, "layer_key": "finetune.layer_decay"}, r"finetune\.layer_decay: not a factor per layer"),
        ({"lr": None, "layer_decay": 0.5}, r"layer_decay, slices, lr_scale and lr_ratio need a learning rate"),
        ({"lr": None, "slices": [0.5]}, "need a learning rate to scale"),
        ({"lr": None, "rules": [{"match": "*", "lr_scale": 2.0}]}, "need a learning rate to scale"),
        (
            {"lr": None, "rules": [{"names": ["head.bias"], "key": "k", "lr_ratio": 2.0}]},
            "need a learning rate to scale",
        ),
        ({"rules": [{"match": "*", "lr": 0.0}]}, r"(?s)freeze these parameters instead.*allow_zero: true"),
        ({"rules": [{"match": "*", "warmup_steps": -1}]}, r"rules\[0\]\.warmup_steps: not a length of a warm-up"),
        ({"rules": [{"match": "*", "warmup_steps": 1.5}]}, r"rules\[0\]\.warmup_steps: not a length of a warm-up"),
        ({"rules": [{"match": "*", "warmup_steps": True}]}, r"rules\[0\]\.warmup_steps: not a length of a warm-up"),
        ({"rules": [{"match": "*", "lr_ratio": 2.0}]}, "unknown setting of a rule"),
        ({"rules": [{"names": ["head.bias"], "key": "finetune.head", "depth": 1}]}, r"finetune\.head: unknown setting"),
        (
            {"rules": [{"names": ["x.y"], "key": "finetune.head", "lr": 1.0}]},
            r"(?s)finetune\.head: the settings are for parameters that never train.*'x\.y'",
        ),
        (
            {"rules": [{"names": ["x.y"], "key": "finetune.rules[2]", "match": "x.*", "lr": 1.0}]},
            r"(?s)finetune\.rules\[2\]\.match: the settings are for parameters that never train.*'x\.\*'",
        ),
        (
            {"rules": [{"names": ["head.bias"], "key": "finetune.head", "lr": 0.0}]},
            r"finetune\.head\.lr: a learning rate of 0",
        ),
        ({"slices": [0.1, 0.2, 0.5, 1.0]}, r"(?s)finetune\.slices: more slices than layers.*at most 3.*4 slices"),
        ({"slices": [0.1, 0.0]}, r"finetune\.slices\[1\]: a learning rate of 0"),
        ({"slices": [0.1], "slices_key": "my.key", "layer_decay": 0.5}, r"given twice, here and in my\.key"),
    ],
)
def test_bad_settings(options, match):
    with pytest.raises(UserError, match=match):
        parameter_groups(mlp(), **{"lr": 0.1, "weight_decay": 0.0, **options})


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
