"""Tasks of members that learn otherwise, against the formulas of torchensemble and loops by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn

from lightkit.ensemble import tasks
from lightkit.ensemble.module import Joint
from lightkit.ensemble.tasks import FastGradientSign, JointResiduals, Residual, residuals, solve
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


ROWS, FEATURES = 120, 5


def data(kind: str, classes: int) -> tuple[Any, Any]:
    random = np.random.default_rng([classes, len(kind)])
    x = random.normal(size=(ROWS, FEATURES))
    out = x @ random.normal(size=(FEATURES, classes))
    y = (out + 0.5 * random.normal(size=out.shape)).argmax(1)
    if kind == "separable":
        y = out.argmax(1)
    if kind == "constant columns":
        x[:, 1], x[:, 3] = 7.0, 0.0
    if kind == "huge scale":
        x = x * np.array([1e6, 1e-4, 1.0, 1e3, 1.0]) + np.array([1e6, 0, 0, 1e5, 0])
    return x, y


def logistic(x: Any, y: Any, own: Any = None) -> Any:
    """Scikit-learn's model, by Newton steps to the end, on features that are scaled as it should have them."""
    return LogisticRegression(solver="newton-cholesky", tol=1e-13, max_iter=1000).fit(x, y, sample_weight=own)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("kind", ["plain", "separable", "constant columns"])
def test_classes_are_those_of_logistic_regression(kind: str, classes: int, weighted: bool) -> None:
    x, y = data(kind, classes)
    own = np.linspace(0.1, 3.0, classes)[y] if weighted else None
    expected = logistic(x, y, own).predict_proba(x)
    weights = None if own is None else torch.as_tensor(own)
    found = solve(torch.as_tensor(x), torch.as_tensor(y), "multiclass", weights=weights, outputs=classes)
    np.testing.assert_allclose((torch.as_tensor(x) @ found.weight.T + found.bias).softmax(1), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "separable", "constant columns"])
def test_a_single_output_and_labels_are_models_of_their_own(kind: str) -> None:
    x, y = data(kind, 2)
    labels = np.stack([y, data("plain", 3)[1] == 1], 1).astype(float)
    inputs = torch.as_tensor(x)
    for targets, task in ((labels[:, 0], "binary"), (labels, "multilabel")):
        found = solve(inputs, torch.as_tensor(targets), task)
        chances = (inputs @ found.weight.T + found.bias).sigmoid().numpy()
        for column in range(chances.shape[1]):
            expected = logistic(x, labels[:, column]).predict_proba(x)[:, 1]
            np.testing.assert_allclose(chances[:, column], expected, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [1, 2, 4])
@pytest.mark.parametrize("kind", ["plain", "constant columns", "huge scale"])
def test_numbers_are_those_of_ridge(kind: str, outputs: int, weighted: bool) -> None:
    x, _ = data(kind, 2)
    random = np.random.default_rng(outputs)
    y = x[:, :1] / np.abs(x[:, :1]).max() + random.normal(size=(ROWS, outputs)) * 100 + 1e4
    own = random.random(ROWS) + 0.1 if weighted else None
    expected = Ridge(solver="svd").fit(x, y, sample_weight=own).predict(x).reshape(ROWS, -1)
    weights = None if own is None else torch.as_tensor(own)
    found = solve(torch.as_tensor(x), torch.as_tensor(y), "regression", weights=weights)
    given = torch.as_tensor(x) @ found.weight.T + found.bias
    np.testing.assert_allclose(given / 1e4, expected / 1e4, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_huge_scales_have_the_solution_of_scikit_learns_on_its_own_terms(classes: int) -> None:
    x, y = data("huge scale", classes)
    found = solve(torch.as_tensor(x), torch.as_tensor(y), "multiclass", outputs=classes)
    weight, bias = (part.clone().requires_grad_() for part in found)
    losses = torch.nn.functional.cross_entropy(
        torch.as_tensor(x) @ weight.T + bias, torch.as_tensor(y), reduction="sum"
    )
    squares = weight.square().sum() * (2 if classes == 2 else 1)
    (losses + squares / 2).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert (weight.grad.abs() <= 1e-6 * torch.as_tensor(np.abs(x)).sum(0)).all()
    assert (bias.grad.abs() <= 1e-6 * ROWS).all()


def test_many_unknowns_are_solved_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data("plain", 3)
    exact = solve(torch.as_tensor(x), torch.as_tensor(y), "multiclass")
    monkeypatch.setattr(tasks, "_LARGEST", 1)
    found = solve(torch.as_tensor(x), torch.as_tensor(y), "multiclass")
    np.testing.assert_allclose(found.weight, exact.weight, atol=1e-6)
    np.testing.assert_allclose(found.bias, exact.bias, atol=1e-6)
