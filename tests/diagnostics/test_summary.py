"""What is known of a model before it trains."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.diagnostics.summary import ModelSummary, TrainingSetup, in_units, summarize, summarize_training
from lightkit.models import CNN, TransformerLM


def step(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return loss


def trained(model: nn.Module, x: Tensor, *, samples: int = 32, **options: Any) -> ModelSummary:
    batch = (x, torch.zeros(len(x), dtype=torch.long))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    return summarize_training(model, TrainingSetup(optimizer, step, batch, samples, **options))


def test_of_inputs_at_hand() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    found = summarize(model, torch.rand(3, 8))
    assert found.inputs == ((3, 8),)
    assert found.flops.macs == 3 * (8 * 16 + 16 * 4)
    assert found.layers.parameters == 9 * 16 + 17 * 4
    assert found.training is found.memory is None
    text = str(found)
    assert "Linear" in text
    assert "576 MACs" in text
    assert "relu (1 ×)" in text


def test_memory_of_a_step_by_hand() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    found = trained(model, torch.rand(2, 8))
    count = 4 * (9 * 16 + 17 * 4)
    assert found.memory is not None
    parts = dict(found.memory.parts)
    activations = parts.pop("activations")
    assert parts == {
        "weights": count,
        "gradients": count,
        "optimizer": 2 * count + 4 * 4,  # two moments, and a step for each of four tensors
        "average": 0,
        "batch": 32 * (8 * 4 + 8),
    }
    # What a ReLU gives is kept once, for it and for the layer after it; the loss keeps log-probabilities and a number.
    assert activations == pytest.approx(32 * 4 * (16 + 4), rel=0.05)
    assert found.memory.total == sum(parts.values()) + activations
    assert found.training is not None
    assert found.training.total == 32 * (2 * 2 * 8 * 16 + 3 * 2 * 16 * 4)
    assert found.inputs == ((1, 8),)


def test_frozen_layers_take_no_gradients() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    found, whole = trained(model, torch.rand(2, 8)), trained(nn.Sequential(*model), torch.rand(2, 8))
    assert found.flops.total == whole.flops.total
    assert found.memory is not None
    assert found.memory.parts["gradients"] == 4 * 17 * 4
    assert found.training is not None
    assert found.training.total == 32 * (2 * 8 * 16 + 2 * 2 * 16 * 4)
    assert "68 train (32 %)" in dict(found.lines())["parameters"]
    assert [row[5] for row in found.table()[1]] == ["part", "no", "", "yes"]


def test_blocks_that_are_alike_share_a_row() -> None:
    model = TransformerLM(20, 8, dim=16, depth=3, heads=2)
    found = summarize(model, torch.zeros(1, 8, dtype=torch.long))
    titles, rows = found.table()
    assert titles[0] == "layer"
    (blocks,) = [row for row in rows if "…" in row[0]]
    assert blocks[:3] == ["    0 … 2", "Block", "3"]
    assert sum(float(row[-1]) for row in rows if row[0].strip() in ("0 … 2", "head")) == pytest.approx(100, abs=0.2)
    every = [row[0].strip() for row in found.table(every=True, depth=2)[1]]
    assert every == ["model", "embed", "values", "dropout", "blocks", "0", "1", "2", "norm", "head"]
    assert [row[0] for row in found.table(depth=0)[1]] == ["model"]


def test_as_json() -> None:
    found = trained(CNN((1, 8, 8), 10), torch.rand(2, 1, 8, 8))
    content = json.loads(json.dumps(found.to_json()))
    assert content["forward"]["macs"] * 2 == content["forward"]["flops"] == content["layers"][0]["flops"]
    assert content["layers"][0]["output"] == [1, 10]
    assert content["memory"]["total"] == sum(
        content["memory"][part] for part in ("weights", "gradients", "optimizer", "average", "activations", "batch")
    )
    assert content["training"]["samples"] == 32
    assert {"name": "batch_norm", "calls": 3, "values": 3584, "minor": True} in content["forward"]["not_counted"]


class Secret(nn.Module):
    """Looks at values in training, and computes what has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and float(x.sum()) > 1e9:
            return x
        out: Tensor = torch.linalg.inv(self.linear(x) + torch.eye(4))[:, 0]
        return out


def test_what_cannot_be_told() -> None:
    found = trained(Secret(), torch.rand(2, 4, 4))
    lines = dict(found.lines())
    assert lines["no rule for"].startswith("linalg_inv_ex (1 ×): what these compute is missing")
    assert found.training is not None
    assert found.training.measured
    # A product forward, one for the weights, and two in the gradient of the inverse.
    assert found.training.total == 32 * 4 * (2 * 4 * 4 * 4)
    assert found.memory is not None
    assert found.memory.parts["activations"]


def test_a_loss_that_cannot_be_computed_without_training_on() -> None:
    class Odd(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise ZeroDivisionError
            return super().forward(x)

    found = trained(Odd(4, 4), torch.rand(2, 4))
    assert found.training is None
    assert found.memory is not None
    assert found.memory.parts["activations"] is None
    assert [note.split(" is not known")[0] for note in found.notes] == [
        "what training computes",
        "the memory of activations",
    ]
    assert "activations unknown" in [text for _, text in found.lines()][-3]


def test_a_model_that_cannot_be_run() -> None:
    with pytest.raises(UserError, match="cannot be run on such inputs: .*mat1 and mat2"):
        summarize(nn.Linear(4, 4), torch.rand(2, 5))
    with pytest.raises(UserError, match="cannot be run on such inputs"):
        trained(nn.Linear(4, 4), torch.rand(2, 5))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (4.09e9, "4.09 G"), (999_600, "1000 k"), (2.5e15, "2.5 P")],
)
def test_large_numbers(count: float, text: str) -> None:
    assert in_units(count) == text
