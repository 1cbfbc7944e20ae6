"""An ensemble of MLPs in one network: what it computes, written out member by member, and what trains it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.losses import SupervisedContrastive
from lightkit.models import TabM
from lightkit.models.tabm import combine
from lightkit.trainer import Supervised


def spread(model: TabM) -> TabM:
    """Give every member scales and biases of its own, as training would."""
    for name, parameter in model.named_parameters():
        if "scale" in name or "bias" in name:
            nn.init.normal_(parameter)
    return model


def one_by_one(model: TabM, x: Tensor) -> Tensor:
    """Outputs of the members `(B, K, C)`, each computed as an MLP with weights of its own."""
    layers: Any = model.layers
    outputs = []
    for member in range(model.k):
        hidden = x.flatten(1)
        for layer in (layers.linear0, layers.linear1):
            weight = layer.scale_out[member, :, None] * layer.shared.weight * layer.scale_in[member]
            hidden = F.relu(F.linear(hidden, weight, layer.bias[member]))
        outputs.append(hidden @ model.head.weight[member] + model.head.bias[member])
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize(
    ("task", "shape"),
    [("multiclass", (7,)), ("binary", (1, 3, 5)), ("multilabel", (7,)), ("regression", (7,))],
)
def test_training_gives_members_and_evaluation_the_ensemble(task: Any, shape: tuple[int, ...]) -> None:
    features = int(torch.tensor(shape).prod())
    model = TabM(features, 3, task=task, k=4, hidden=[16, 8], dropout=0.2, activation="gelu")
    x = torch.randn(5, *shape)
    output = model(x)
    assert (output["logits"].shape, output["members"].shape) == ((5, 3), (5, 4, 3))
    assert torch.equal(output["logits"], combine(output["members"], task))
    assert model.eval()(x).shape == (5, 3)


def test_it_is_the_members_written_out() -> None:
    torch.manual_seed(0)
    model, x = spread(TabM(6, 3, k=5, hidden=[8, 7])).double(), torch.randn(9, 2, 3, dtype=torch.float64)
    members = one_by_one(model, x)
    torch.testing.assert_close(model(x)["members"], members)
    torch.testing.assert_close(model.eval()(x).softmax(-1), members.softmax(-1).mean(1))


def test_gradients_are_those_of_the_mean_of_the_losses() -> None:
    torch.manual_seed(0)
    model, x, y = spread(TabM(6, 3, k=5, hidden=[8, 7])).double(), torch.randn(9, 6).double(), torch.randint(3, (9,))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]).double())
    step = Supervised().step(model, (x, y), loss)
    written = torch.stack([loss(member, y) for member in one_by_one(model, x).unbind(1)]).mean()
    torch.testing.assert_close(step.loss, written)
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad(each, parameters) for each in (step.loss, written))
    torch.testing.assert_close(ours, theirs)
    assert all(gradient.abs().sum() > 0 for gradient in ours)


@pytest.mark.parametrize(
    ("task", "mean"), [("binary", torch.sigmoid), ("multilabel", torch.sigmoid), ("regression", lambda x: x)]
)
def test_probabilities_are_averaged_or_values(task: Any, mean: Any) -> None:
    members = 4 * torch.randn(6, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(mean(combine(members, task)), mean(members).mean(1))


def test_members_that_are_certain_give_finite_outputs() -> None:
    members = torch.tensor([[[200.0, -200.0], [300.0, -300.0]]])
    assert all(torch.isfinite(combine(members, task)).all() for task in ("multiclass", "multilabel"))
    assert combine(members.bfloat16(), "multilabel").dtype == torch.float32


def test_members_start_apart_by_signs_alone() -> None:
    model = TabM(6, 3, k=8, hidden=[16, 4])
    layers: Any = model.layers
    assert set(layers.linear0.scale_in.unique().tolist()) == {-1.0, 1.0}
    for scales in (layers.linear0.scale_out, layers.linear1.scale_in, layers.linear1.scale_out):
        assert torch.equal(scales, torch.ones_like(scales))
    assert all(torch.equal(layer.bias, layer.bias[:1].expand(8, -1)) for layer in (layers.linear0, layers.linear1))
    assert not torch.equal(model.head.weight[0], model.head.weight[1])
    assert model.no_weight_decay()[0] == "layers.linear0.scale_in"


def test_a_loss_that_compares_samples_sees_one_member_at_a_time() -> None:
    model, x, y = TabM(6, 3, k=4, hidden=[8]), torch.randn(10, 6), torch.arange(10) % 3
    loss = SupervisedContrastive()
    expected = torch.stack([loss(member, y) for member in model(x)["members"].unbind(1)]).mean()
    torch.testing.assert_close(Supervised().step(model, (x, y), loss).loss, expected)
