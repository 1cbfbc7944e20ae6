"""When a network uses its parameters, as forward passes show it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tests.finetune.strange as strange
from lightkit.finetune.tracing import running_order
from lightkit.optim.layers import layer_depths
from tests.finetune.outputs import CASES

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


def test_parameters_in_and_outside_of_layers_are_seen_and_nothing_is_left() -> None:
    model = strange.Bare(4, 3).train()
    order, why = running_order(model, [lambda twin: twin(X)])
    assert order is not None, why
    assert set(order.uses) == {"body.weight", "body.bias", "out", "shift"}
    assert order.uses["body.weight"][0] < order.uses["out"][0] < order.uses["shift"][0]
    assert order.products == {"body.weight", "out"}
    assert model.training


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("all in the network itself", {"w1": 0, "b1": 0, "w2": 1, "b2": 1}),
        ("parameter dict", {"p.a": 0, "p.b": 1, "p.c": 1}),
        ("bare with bias", {"body.0.weight": 0, "body.3.weight": 1, "w": 2, "b": 2}),
        ("cosine with a scale", {"body.0.weight": 0, "body.3.weight": 1, "w": 2, "s": 2}),
        ("einsum", {"body.0.weight": 0, "body.3.weight": 1, "w": 2}),
        ("temperature", {"body.0.weight": 0, "body.3.weight": 1, "fc.weight": 2, "t": 2}),
    ],
)
def test_matrices_outside_of_layers_have_a_depth_of_their_own(name: str, depths: dict[str, int]) -> None:
    model = CASES[name].make()
    order, why = running_order(model, [lambda twin: twin(CASES[name].x)])
    assert order is not None, why
    found = layer_depths(model, order)
    assert {name: found[name] for name in depths} == depths


def test_a_body_without_gradients_is_seen() -> None:
    order, _ = running_order(strange.Quiet(4, 3), [lambda twin: twin(X)])
    assert order is not None
    assert order.uses["body.weight"][0] < order.uses["last.weight"][0]


def test_what_changes_its_place_with_the_samples_is_told() -> None:
    def sample(seed: int) -> Tensor:
        return torch.rand(2, 4, generator=torch.Generator().manual_seed(seed))

    model = strange.Unordered(4, 3)
    turns = {bool((sample(seed).double().sum() * 1e4).floor() % 2): seed for seed in range(20)}
    order, _ = running_order(model, [lambda twin, seed=seed: twin(sample(seed)) for seed in turns.values()])
    assert order is not None
    assert order.unsteady == {f"{layer}.{name}" for layer in ("one", "two") for name in ("weight", "bias")}


def test_without_a_forward_pass_there_is_a_reason() -> None:
    assert running_order(nn.Linear(2, 2), []) == (None, "no sample of the inputs is known")
    order, why = running_order(strange.Stubborn(4, 3), [lambda twin: twin(X)])
    assert order is None
    assert "a forward pass fails: RuntimeError: only for training" in why
