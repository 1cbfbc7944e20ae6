"""Tasks of members that learn otherwise, against the formulas of torchensemble and loops by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.ensemble.module import Joint
from lightkit.ensemble.tasks import FastGradientSign, JointResiduals, Residual, residuals
from lightkit.trainer.tasks import Supervised

X, Y = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def test_residuals_are_those_of_torchensemble() -> None:
    operator = pytest.importorskip("torchensemble.utils.operator")
    total, numbers = torch.randn(6, 3), torch.randn(6, 1)
    expected = operator.pseudo_residual_classification(Y, total, 3)
    torch.testing.assert_close(residuals(total, Y, "multiclass"), expected)
    expected = operator.pseudo_residual_regression(numbers, total[:, :1])
    torch.testing.assert_close(residuals(total[:, :1], numbers, "regression"), expected)


@pytest.mark.parametrize(
    ("kind", "loss"), [("binary", F.binary_cross_entropy_with_logits), ("multiclass", F.cross_entropy)]
)
def test_residuals_are_the_negative_gradient_of_the_loss(kind: str, loss: Any) -> None:
    total = torch.randn(6, 3 if kind == "multiclass" else 1, requires_grad=True)
    target = Y if kind == "multiclass" else (Y > 0).float()[:, None]
    (gradient,) = torch.autograd.grad(loss(total, target, reduction="sum"), total)
    torch.testing.assert_close(residuals(total.detach(), target, kind), -gradient)


def test_a_round_learns_what_the_rounds_before_leave() -> None:
    first, second, own = network(1), network(2), network(3)
    task = Residual([first, second], shrinkage=0.5, kind="multiclass")
    with torch.no_grad():
        before = 0.5 * first(X) + 0.5 * second(X)
    step = task.step(own.train(), (X, Y), nn.CrossEntropyLoss())
    torch.testing.assert_close(step.loss, F.mse_loss(own(X), F.one_hot(Y, 3) - before.softmax(1)))
    step = task.step(own.eval(), (X, Y), nn.CrossEntropyLoss())
    torch.testing.assert_close(step.loss, F.cross_entropy(before + 0.5 * own(X), Y))
    torch.testing.assert_close(step.preds, before + 0.5 * own(X))
    assert copy.deepcopy(task).networks[0] is first


def test_the_first_round_learns_what_nothing_leaves() -> None:
    own = network()
    step = Residual([], shrinkage=0.5, kind="multiclass").step(own.train(), (X, Y), nn.CrossEntropyLoss())
    torch.testing.assert_close(step.loss, F.mse_loss(own(X), F.one_hot(Y, 3) - torch.full((6, 3), 1 / 3)))


def test_networks_of_a_soft_boosting_learn_as_those_of_torchensemble() -> None:
    joint = Joint([network(1), network(2)], stacked=True, scale=0.5).train()
    step = JointResiduals(shrinkage=0.5, kind="multiclass").step(joint, (X, Y), nn.CrossEntropyLoss())
    outputs, total = [one(X) for one in joint.estimators], torch.zeros(6, 3)
    expected = torch.zeros(())
    for output in outputs:
        expected = expected + F.mse_loss(output, F.one_hot(Y, 3) - total.softmax(1))
        total = total + 0.5 * output.detach()
    torch.testing.assert_close(step.loss, expected)
    step = JointResiduals(shrinkage=0.5, kind="multiclass").step(joint.eval(), (X, Y), nn.CrossEntropyLoss())
    torch.testing.assert_close(step.preds, total)


def test_adversarial_inputs_are_those_of_torchensemble() -> None:
    module = pytest.importorskip("torchensemble.adversarial_training")
    own, seen = network().train(), list[Tensor]()

    class Noted(Supervised):
        def step(self, model: nn.Module, batch: Any, criterion: Any) -> Any:
            seen.append(batch[0].detach().clone())
            return super().step(model, batch, criterion)

    step = FastGradientSign(Noted(), epsilon=0.1).step(own, (X, Y), nn.CrossEntropyLoss())
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(own(x), Y), x)
    (changed,) = module._get_fgsm_samples([X], 0.1, [gradient])
    torch.testing.assert_close(seen[1], changed)
    torch.testing.assert_close(step.loss, (F.cross_entropy(own(X), Y) + F.cross_entropy(own(changed), Y)) / 2)
    step = FastGradientSign(Supervised(), epsilon=0.1).step(own.eval(), (X, Y), nn.CrossEntropyLoss())
    torch.testing.assert_close(step.loss, F.cross_entropy(own(X), Y))


def test_a_fusion_is_the_mean_of_its_networks() -> None:
    joint = Joint([network(1), network(2)], scale=0.5)
    torch.testing.assert_close(joint(X), (network(1)(X) + network(2)(X)) / 2)
