from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.models import CNN, MLP, TransformerLM
from lightkit.optim import parameter_groups


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
        self.gain = nn.Parameter(torch.ones(3))
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
    assert groups["no_decay"][2] == ["token", "gain", "norm.scale", "linear.bias", "wide.weight", "wide.bias"]


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


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
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
