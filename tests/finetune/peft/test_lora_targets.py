"""The weights that LoRA adapts, those they are tied to, and what is said of those it cannot adapt."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError, UserErrors
from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.lora_targets import SUPPORTED
from lightkit.finetune.peft.merging import merged_state
from tests.finetune.peft.low_rank import (
    IMPLS,
    Around,
    Odd,
    attention,
    language_model,
    learn,
    make,
    tuned,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_an_output_projection_may_have_a_rank_of_its_own():
    model, _ = make("attention")
    inject_lora(model, {"layer": 3, "layer.out_proj": 1}, alpha=1)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if "lora" in name}
    assert shapes == {
        "layer.parametrizations.in_proj_weight.0.lora_A": (3, 3, 8),
        "layer.parametrizations.in_proj_weight.0.lora_B": (3, 8, 3),
        "layer.out_proj.parametrizations.weight.0.lora_A": (1, 8),
        "layer.out_proj.parametrizations.weight.0.lora_B": (8, 1),
    }


def test_the_network_itself_can_be_the_layer():
    for impl, start in (("parametrize", "parametrizations.weight.0"), ("wrap", "lora")):
        layer, x = nn.Linear(4, 3), torch.randn(2, 4)
        names = learn(layer, inject_lora(layer, {"": 2}, alpha=1, impl=impl))
        assert names == [f"{start}.lora_A", f"{start}.lora_B"]
        plain = nn.Linear(4, 3)
        plain.load_state_dict(merged_state(layer))
        assert torch.allclose(plain(x), layer(x), atol=1e-6)


def test_a_layer_used_twice_is_adapted_once():
    layer = nn.Linear(4, 4)
    model, x = nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 4)
    plain = copy.deepcopy(model)
    for impl in IMPLS:
        network = copy.deepcopy(model)
        assert len(learn(network, inject_lora(network, {"0": 2}, alpha=1, impl=impl))) == 2
        plain.load_state_dict(merged_state(network), strict=True)
        assert torch.allclose(plain(x), network(x), atol=1e-5)


def test_layers_that_cannot_be_one():
    model = nn.Module()
    model.layer, model.table = nn.Linear(4, 4), nn.Bilinear(1, 4, 4)
    model.table.weight = model.layer.weight
    with pytest.raises(UserError, match=r"cannot adapt layer.weight: it is also table.weight, in a Bilinear"):
        inject_lora(model, {"layer": 2}, alpha=1)
    lm, _ = language_model()
    with pytest.raises(UserError, match=r"two ranks for one weight, embed.values.weight and head.weight"):
        inject_lora(lm, {"embed.values": 2, "head": 3}, alpha=1)


def refused() -> Iterator[Any]:
    linear = lambda: nn.Linear(4, 3)  # noqa: E731
    yield (
        lambda: nn.BatchNorm1d(4),
        2,
        {},
        r"match: LoRA cannot adapt layer\n.*Linear, .*MultiheadAttention\n.*BatchNorm1d",
    )
    yield lambda: nn.ConvTranspose1d(4, 4, 1), 2, {}, r"cannot adapt layer\n"
    yield (
        linear,
        4,
        {},
        r"^rank: the rank does not fit layer.weight, a matrix of 3 × 4\n.*1 to 3\n.*4\n.*lora.ranks",
    )
    yield linear, 0, {}, r"the rank does not fit"
    yield lambda: nn.Conv2d(8, 8, 1, groups=8), 2, {}, r"a matrix of 8 × 1\n"
    yield attention(kdim=3, vdim=8), 4, {}, r"fit layer.k_proj_weight, a matrix of 8 × 3"
    yield lambda: nn.LazyLinear(3), 2, {}, r"layer.weight: it has no size yet\n.*that knows its size"
    yield linear, 2, {"alpha": 0}, r"^alpha: LoRA needs a scale"
    yield linear, 2, {"alpha": float("nan")}, r"^alpha: LoRA needs a scale"
    yield linear, 2, {"dropout": 1.0}, r"^dropout: not a probability\n.*0 to below 1"
    yield linear, 2, {"impl": "wrapped"}, r"^impl: no such way to do LoRA\n.*\n.*nearest: wrap"
    yield lambda: nn.Embedding(9, 4, max_norm=1), 2, {"impl": "wrap"}, r"limits the norm .*\n.*\n.*impl=parametrize"
    yield lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), 2, {"impl": "wrap"}, r"divides their gradients"
    yield lambda: nn.Embedding(9, 4, sparse=True), 2, {}, r"gradients are sparse\n.*\n.*lora.impl=wrap"
    yield Odd, 2, {"impl": "wrap"}, r"Odd computes in a way of its own"


@pytest.mark.parametrize(("build", "rank", "options", "message"), list(refused()))
def test_what_cannot_be(build, rank, options, message):
    model = Around(build())
    before = list(model.state_dict())
    with pytest.raises(UserError, match=message):
        inject_lora(model, {"layer": rank}, **{"alpha": 1.0, **options})
    assert list(model.state_dict()) == before


@pytest.mark.parametrize("impl", IMPLS)
def test_twice_is_once_too_often(impl):
    model, x = make("linear")
    tuned(model, "wrap")
    output = model(*x)
    with pytest.raises(UserError, match="has LoRA already"):
        tuned(model, impl)
    assert torch.equal(model(*x), output)


def test_nothing_to_adapt():
    with pytest.raises(UserError, match=r"^match: there is no layer for LoRA\n.*Linear"):
        inject_lora(nn.Linear(4, 3), {}, alpha=1)


def test_all_that_is_wrong_is_told_at_once():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(UserErrors, match=r"(?s)adapt 1\n.*fit 0.weight.*fit 2.weight.*3 problems"):
        inject_lora(model, {"0": 9, "1": 1, "2": 9}, alpha=1)


def test_layers_with_a_forward_of_their_own_can_be_parametrized():
    model, x = Around(Odd()), torch.randn(3, 4)
    tuned(model, "parametrize")
    plain = Around(Odd())
    plain.load_state_dict(merged_state(model))
    assert torch.allclose(plain(x), model(x), atol=1e-6)


def test_what_is_supported():
    assert {kind.__name__ for kind in SUPPORTED} == {
        "Linear", "TransposedLinear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "MultiheadAttention",
    }  # fmt: skip
