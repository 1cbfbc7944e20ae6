"""Weights that are not finite are no start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.checkpoint.fitting import fit
from lightkit.checkpoint.weights import load_weights
from lightkit.common.errors import UserError
from tests.checkpoint.parts import net, same
from tests.checkpoint.test_fitting import THREE, given


def broken(**values: float) -> dict:
    state = {name: tensor.clone() for name, tensor in THREE.items()}
    for name, value in values.items():
        state[name.replace("_", ".")].view(-1)[:2] = value
    return state


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_that_diverged_are_no_start(value, kind):
    state = {name: t.to(kind) if t.is_floating_point() else t for name, t in broken(layers_a_weight=value).items()}
    model, before = net(2), net(2)
    with pytest.raises(UserError, match="x.pt: the weights were not loaded: 1 tensor") as caught:
        load_weights(model, given(state), asked="finetune.weights.")
    kind_of = "NaN" if value != value else "infinite"
    assert f"layers.a.weight: 2 of 20 values are {kind_of}" in str(caught.value)
    assert "finetune.weights.mapping={NAME: null}" in str(caught.value)
    assert same(model, before)


def test_what_is_not_loaded_may_have_diverged():
    state = broken(head_weight=float("nan"))
    assert load_weights(net(2), given(state), head="reset").left == ("head.weight", "head.bias")
    assert fit(net(2), state, source="a run that goes on").loaded
    huge = THREE | {"layers.a.weight": torch.full((5, 4), 3e38)}
    assert load_weights(net(2), given(huge)).loaded


def test_infinities_that_belong_there():
    def masked() -> nn.Module:
        model = net()
        model.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        return model

    state = masked().state_dict()
    assert "mask" in load_weights(masked(), given(state)).loaded
    state["mask"] = state["mask"].t()
    with pytest.raises(UserError, match="mask: 3 of 9 values are infinite"):
        load_weights(masked(), given(state))
