"""The soft decision tree, equal to TorchEnsemble's with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchensemble._base import BaseTree

from lightkit.models import SoftTree
from lightkit.trainer import Supervised


def with_weights_of(tree: SoftTree, features: int, outputs: int) -> Any:
    """TorchEnsemble's tree with the same weights; its bias is the first column of the gates."""
    theirs = BaseTree(features, outputs, depth=tree.depth, lamda=tree.penalty)
    with torch.no_grad():
        theirs.inner_nodes[0].weight.copy_(torch.cat((tree.gates.bias[:, None], tree.gates.weight), dim=1))
        theirs.leaf_nodes.weight.copy_(tree.leaves.weight)
    return theirs


@pytest.mark.parametrize(("depth", "shape"), [(1, (7,)), (2, (1, 3, 5)), (5, (7,))])
def test_it_equals_torchensembles_tree(depth: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(depth)
    features = int(torch.tensor(shape).prod())
    tree = SoftTree(features, 3, depth=depth, penalty=0.1)
    theirs, x, y = with_weights_of(tree, features, 3), torch.randn(20, *shape), torch.randint(3, (20,))
    loss = nn.CrossEntropyLoss()
    expected, penalty = theirs(x, is_training_data=True)
    step = Supervised().step(tree, (x, y), loss)
    torch.testing.assert_close(step.preds, expected)
    torch.testing.assert_close(step.loss, loss(expected, y) + penalty)
    step.loss.backward()
    (loss(expected, y) + penalty).backward()
    gradient = theirs.inner_nodes[0].weight.grad
    torch.testing.assert_close(tree.gates.weight.grad, gradient[:, 1:])
    torch.testing.assert_close(tree.gates.bias.grad, gradient[:, 0])
    torch.testing.assert_close(tree.leaves.weight.grad, theirs.leaf_nodes.weight.grad)
    torch.testing.assert_close(tree.eval()(x), expected)


def test_the_penalty_is_for_training_only() -> None:
    tree, batch = SoftTree(4, 2, penalty=0.5), (torch.randn(6, 4), torch.zeros(6, 2))
    loss = nn.MSELoss()
    trained = Supervised().step(tree, batch, loss).loss
    assert Supervised().step(tree.eval(), batch, loss).loss < trained
    assert isinstance(SoftTree(4, 2, penalty=0)(batch[0]), torch.Tensor)


def test_gates_that_are_certain_have_finite_gradients() -> None:
    tree = SoftTree(2, 1, depth=3)
    nn.init.constant_(tree.gates.bias, 500.0)
    output = tree(torch.randn(5, 2))
    (output["logits"].sum() + output["penalty"]).sum().backward()
    assert torch.isfinite(output["penalty"]).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in tree.parameters() if parameter.grad is not None)
