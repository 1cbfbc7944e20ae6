"""When a network uses its parameters, as forward passes show it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tests.finetune.strange as strange
from lightkit.finetune.running_order import running_order

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


def test_parameters_in_and_outside_of_layers_are_seen_and_nothing_is_left() -> None:
    model = strange.Bare(4, 3).train()
    order, why = running_order(model, [lambda twin: twin(X)])
    assert order is not None, why
    assert sorted(order.uses, key=lambda name: order.uses[name][0]) == ["body.bias", "body.weight", "out", "shift"] or (
        sorted(order.uses, key=lambda name: order.uses[name][0]) == ["body.weight", "body.bias", "out", "shift"]
    )
    assert order.products >= {"body.weight", "out"}
    assert "shift" not in order.products
    assert model.training


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
