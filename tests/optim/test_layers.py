from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from lightkit.models import CNN, MLP, ResNet, TransformerClassifier, TransformerLM
from lightkit.optim import depth_of, layer_depths, parameter_groups
from lightkit.optim.layers import NetworkLayer, in_order, order_notes
from tests.optim.test_groups import table


def heads(model):
    """First parameter of each layer."""
    depths = layer_depths(model)
    assert set(depths) == {name for name, _ in model.named_parameters()}
    first = {}
    for name, depth in depths.items():
        first.setdefault(depth, name)
    assert sorted(first) == list(range(len(first)))
    return [first[depth] for depth in sorted(first)]


@pytest.mark.parametrize(
    ("model", "first", "some"),
    [
        (MLP(3, 2, hidden=(4, 4), norm="batch"), "layers.linear0 layers.linear1 head", {"layers.norm0": 0}),
        (
            CNN((1, 8, 8), 3, channels=(4, 4), depth=2),
            "stages.0.conv0 stages.0.conv1 stages.1.conv0 stages.1.conv1 head",
            {},
        ),
        (
            ResNet((3, 8, 8), 3, width=4),
            "conv1 " + " ".join(f"layer{stage}.{block}.conv1" for stage in (1, 2, 3, 4) for block in (0, 1)) + " fc",
            {"bn1": 0, "layer2.0.downsample.0": 3},
        ),
        (
            TransformerClassifier((1, 8, 8), 3, dim=8, depth=2, heads=2),
            "embed.positions blocks.0.norm1 blocks.1.norm1 head",
            {"norm": 2},
        ),
        (TransformerLM(9, 4, dim=8, depth=2, heads=2), "embed.values blocks.0.norm1 blocks.1.norm1", {}),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), "0 2", {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers(model: nn.Module, first: str, some: dict[str, int]) -> None:
    assert [name.removesuffix(".weight") for name in heads(model)] == first.split()
    assert {name: layer_depths(model)[f"{name}.weight"] for name in some} == some


def test_a_model_inside_a_model_is_looked_into():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(2, 2))
            self.backbone, self.classifier = ResNet((3, 8, 8), 3, width=4), nn.Linear(3, 2)

    names = heads(Wrapped())
    assert names[0] == "token"
    assert names[1:3] == ["backbone.layer1.0.conv1.weight", "backbone.layer1.1.conv1.weight"]
    assert names[-2:] == ["backbone.fc.weight", "classifier.weight"]


def test_models_without_layers():
    assert layer_depths(nn.Linear(2, 2)) == {"weight": 0, "bias": 0}
    assert set(layer_depths(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))).values()) == {0, 1}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 3)
        self.head = nn.Linear(8, 2)


def test_pytorchs_transformers_count_blocks():
    blocks = [f"encoder.layers.{n}.self_attn.in_proj_weight" for n in range(3)]
    assert heads(Encoder()) == ["embed.weight", *blocks, "head.weight"]
    both = nn.Transformer(8, 2, 2, 2, 8, batch_first=True)
    assert [name.split(".self")[0] for name in heads(both)] == [
        "encoder.layers.0",
        "encoder.layers.1",
        "decoder.layers.0",
        "decoder.layers.1",
    ]


def parametrized(model):
    for module in list(model.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight_norm(module)
        if isinstance(module, nn.MultiheadAttention):
            weight_norm(module, "in_proj_weight")
    return model


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(2)])
        self.head = nn.Linear(4, 4)


@pytest.mark.parametrize(
    "make",
    [
        Encoder,
        Lists,
        lambda: ResNet((3, 8, 8), 3, width=4),
        lambda: TransformerClassifier((1, 8, 8), 3, dim=8, depth=2, heads=2),
        lambda: nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
    ],
)
def test_parametrized_modules_stay_in_their_layers(make):
    plain = layer_depths(make())
    found = layer_depths(parametrized(make()))
    assert max(found.values()) == max(plain.values())
    assert {name: found[name] for name in found if name in plain} == {
        name: depth for name, depth in plain.items() if name in found
    }
    assert {depth_of(plain, name) == depth for name, depth in found.items()} == {True}


def test_one_parametrized_module_of_many():
    model = Lists()
    plain = layer_depths(model)
    weight_norm(model.stages[1][0])
    found = layer_depths(model)
    assert found["stages.1.0.parametrizations.weight.original1"] == plain["stages.1.0.weight"] == 2
    assert found["head.weight"] == 4


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("layer2.0.conv1.weight", 3),
        ("layer2.0.conv1.parametrizations.weight.0.a", 3),
        ("layer2.0.conv1.weight.deeper", 3),
        ("layer2.1.adapter.down.weight", 4),
        ("layer2.new.weight", 3),
        ("layer2", 3),
        ("fc.1.weight", 9),
        ("layer", 0),
        ("prompt", 0),
    ],
)
def test_depth_of_what_came_in_later(name, depth):
    assert depth_of(layer_depths(ResNet((3, 8, 8), 3, width=4)), name) == depth


@pytest.mark.parametrize(
    ("name", "count", "some"),
    [
        ("resnet18", 10, {"bn1.weight": 0, "layer3.0.downsample.1.bias": 5, "fc.bias": 9}),
        ("vit_b_32", 14, {"class_token": 0, "encoder.layers.encoder_layer_3.mlp.0.weight": 4, "encoder.ln.bias": 12}),
        ("mobilenet_v2", 20, {"features.0.0.weight": 0, "features.3.conv.1.0.weight": 3, "classifier.1.bias": 19}),
        ("convnext_tiny", 23, {"features.1.2.layer_scale": 3, "classifier.0.bias": 21, "classifier.2.bias": 22}),
        ("swin_t", 17, {"features.5.3.attn.qkv.weight": 10, "norm.bias": 15, "head.weight": 16}),
        ("densenet121", 63, {"features.conv0.weight": 0, "features.denseblock1.denselayer3.conv2.weight": 3}),
    ],
)
def test_torchvision(name, count, some):
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        depths = layer_depths(models.get_model(name))
    assert max(depths.values()) + 1 == count
    assert {key: depths[key] for key in some} == some


def test_timm_tells_by_itself():
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", depth=3)
    depths = layer_depths(model)
    assert depths["patch_embed.proj.weight"] == depths["cls_token"] == 0
    assert depths["blocks.1.attn.qkv.weight"] == 2
    assert depths["head.weight"] == max(depths.values())


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


@pytest.mark.parametrize("pieces", [1, 5, 12])
def test_slices_differ_by_one_layer_at_most_and_run_from_input_to_output(pieces):
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(12)))
    groups = parameter_groups(model, lr=1.0, slices=[1.0 + n for n in range(pieces)])
    assert [group["lr"] for group in groups] == [1.0 + n for n in range(pieces)]
    sizes = [len(group["params"]) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    names = [name for group in groups for name in group["param_names"]]
    assert names == [f"{n}.weight" for n in range(12)]
    assert sorted(group["name"] for group in groups) == [group["name"] for group in groups]


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


def order(*names: str, **more: Any) -> Any:
    """An order in which parameters are used one after the other."""
    uses: dict[str, list[int]] = {}
    for moment, name in enumerate(names):
        uses.setdefault(name, []).append(moment)
    return SimpleNamespace(uses=uses, **{"products": set(), "unsteady": set(), **more})


def test_layers_are_sorted_and_those_that_do_not_run_stay_behind_their_neighbour() -> None:
    layers = [NetworkLayer(name, (f"{name}.w",)) for name in ("out", "idle", "b", "a")]
    found = in_order(layers, order("a.w", "b.w", "out.w"))
    assert [layer.path for layer in found] == ["a", "b", "out", "idle"]


def test_what_modules_hold_directly_goes_where_it_is_used() -> None:
    layers = [
        NetworkLayer("out", ("out.w",), held=("token", "unused")),
        NetworkLayer("b", ("b.w",)),
        NetworkLayer("a", ("a.w",)),
    ]
    found = in_order(layers, order("a.w", "token", "b.w", "out.w"))
    assert [(layer.path, layer.held) for layer in found] == [("a", ("token",)), ("b", ()), ("out", ("unused",))]


def test_bare_matrices_are_layers() -> None:
    model = nn.Module()
    model.w2, model.b2, model.w1, model.b1 = (nn.Parameter(torch.rand(2)) for _ in range(4))
    known = order("w1", "b1", "w2", "b2", products={"w1", "w2"})
    assert layer_depths(model, known) == {"w1": 0, "b1": 0, "w2": 1, "b2": 1}
    listed = nn.Module()
    listed.ws = nn.ParameterList([torch.rand(2, 2) for _ in range(3)])
    known = order("ws.2", "ws.0", "ws.1", products={"ws.0", "ws.1", "ws.2"})
    assert layer_depths(listed, known) == {"ws.2": 0, "ws.0": 1, "ws.1": 2}


def test_a_norm_belongs_to_the_layer_that_runs_before_it() -> None:
    model = nn.ModuleDict({"b": nn.Linear(2, 2), "norm": nn.LayerNorm(2), "a": nn.Linear(2, 2)})
    depths = layer_depths(model, order("a.weight", "norm.weight", "norm.bias", "b.weight"))
    assert {name: depths[f"{name}.weight"] for name in ("a", "norm", "b")} == {"a": 0, "norm": 0, "b": 1}


def test_what_cannot_be_told_is_said() -> None:
    model = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in ("a", "b", "c", "d", "idle")})
    names = ("a.weight", "b.weight", "a.weight", "c.weight", "d.weight")
    notes = order_notes(model, order(*names, unsteady={"c.weight", "d.weight"}))
    assert notes == [
        "order of the layers: idle: not used in a forward pass, so placed behind the layer that is defined before",
        "order of the layers: c, d: run in an order that depends on the samples, so placed as the first of them tell",
        "order of the layers: a: used again after later layers, so placed where first used",
    ]
    assert order_notes(model, None, "no sample is known") == [
        "order of the layers: that of their definition, as no sample is known"
    ]
    assert order_notes(model, order("a.weight", "b.weight", "c.weight", "d.weight", "idle.weight")) == []
