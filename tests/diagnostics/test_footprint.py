"""Whose activations a step keeps: counted without memory, and the same with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.device.recompute import recompute
from lightkit.diagnostics.footprint import Origin, activations, bytes_of, enlarged, measured, origins, repeated_blocks

CPU = torch.device("cpu")


class Block(nn.Module):
    """Two layers and a gate between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(torch.relu(self.first(x)))
        return out


class Net(nn.Module):
    """Three blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(8) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def step(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    loss: Tensor = nn.functional.cross_entropy(model(x), y)
    return loss


def batch_of(count: int) -> tuple[Tensor, Tensor]:
    return torch.ones(count, 8), torch.zeros(count, dtype=torch.int64)


def known(model: nn.Module, size: int, **options: Any) -> dict[str, int]:
    return activations(model, batch_of(2), step, samples=2, size=size, device=CPU, **options)


def test_every_kept_tensor_counts_once_for_the_module_that_made_it() -> None:
    found = known(Net(), 100)
    # The input of the first layer is the batch itself; relu keeps its output, which is the input of the second layer.
    assert found["layers.0"] == 100 * 32 * 4
    assert found["layers.1.first"] == 100 * 8 * 4
    assert "layers.0.first" not in found
    assert found["head"] == 100 * 8 * 4
    assert known(Net(), 200)["layers.0"] == 2 * found["layers.0"]


def test_nothing_of_the_model_changes_and_nothing_is_drawn() -> None:
    model, state = Net().eval(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    known(model, 50)
    assert not model.training
    assert not model._forward_hooks
    assert not model.layers[0]._forward_pre_hooks
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_had_without_values_is_measured_with_a_few_samples() -> None:
    class Picky(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2.0 if x.sum().item() > 0 else 1.0)

    with pytest.raises(Exception, match="scalar"):
        known(Picky(), 100)
    batch = batch_of(2)
    found = measured(Picky(), batch, step, samples=2, size=100)
    exact = known(Net(), 100)
    assert found["layers.1.first"] == exact["layers.1.first"]
    assert found["layers.0"] == exact["layers.0"]


def test_recomputed_blocks_keep_their_inputs_only() -> None:
    model = Net()
    recompute(model, ["layers.*"])
    found = known(model, 100, recomputed=["layers.*"])
    assert {name: count for name, count in found.items() if name.startswith("layers")} == {
        "layers.1": 100 * 8 * 4,
        "layers.2": 100 * 8 * 4,
    }
    assert measured(model, batch_of(2), step, samples=2, size=100, recomputed=["layers.*"])["layers.1"] == 100 * 8 * 4


def test_frozen_parts_keep_less() -> None:
    model = Net()
    for layer in model.layers:
        layer.requires_grad_(False)
    found = known(model, 100)
    assert not any(name.startswith("layers") for name in found)
    assert found["head"] == 100 * 8 * 4


def test_in_an_evaluation_outputs_count() -> None:
    found = known(Net(), 100, keeps=False)
    assert found["layers.0.first"] == 100 * 32 * 4
    assert found["head"] == 100 * 2 * 4


def test_autocast_halves_what_is_kept() -> None:
    half = known(Net(), 100, context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert half["layers.0"] < known(Net(), 100)["layers.0"]


def test_tied_weights_and_models_that_cannot_be_copied() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model[1].weight = model[0].weight
    assert known(model, 10)["1"] == 10 * 8 * 4
    model.handle = iter([])  # type: ignore[assignment]
    model.lock = __import__("threading").Lock()
    with pytest.raises(TypeError, match="pickle"):
        known(model, 10)


def test_a_batch_of_another_size() -> None:
    batch = {"x": torch.arange(6).view(2, 3), "y": [torch.zeros(2), "name"], "weights": torch.ones(5), "n": 2}
    large = enlarged(batch, 2, 7)
    assert large["x"].shape == (7, 3)
    assert large["y"][0].shape == (7,)
    assert large["y"][1] == "name"
    assert large["weights"].shape == (5,)


def test_modules_alike_are_taken_together() -> None:
    found = {"layers.0.attention": 5, "layers.1.attention": 6, "layers.10.mlp": 4, "head": 20, "0": 1}
    assert origins(found) == [
        Origin("head", 20),
        Origin("layers.*.attention", 11, 2),
        Origin("layers.*.mlp", 4),
        Origin("*", 1),
    ]


def test_the_pattern_of_the_blocks_that_keep_most() -> None:
    assert repeated_blocks(Net(), known(Net(), 10)) == "layers.*"
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    assert repeated_blocks(plain, known(plain, 10)) is None


def test_bytes_of_a_nesting() -> None:
    tensor = torch.zeros(4)
    assert bytes_of({"a": [tensor, tensor], "b": (torch.zeros(2, dtype=torch.float64), None, 3)}) == 32
