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
from torch.testing import assert_close

from lightkit.ensemble import tasks
from lightkit.ensemble.module import Joint
from lightkit.ensemble.tasks import FastGradientSign, JointResiduals, Residual, residuals, solve
from lightkit.trainer.tasks import Supervised

X, Y = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
LOSS = nn.CrossEntropyLoss()


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def test_residuals_are_those_of_torchensemble() -> None:
    operator = pytest.importorskip("torchensemble.utils.operator")
    total, numbers = torch.randn(6, 3), torch.randn(6, 1)
    assert_close(residuals(total, Y, "multiclass"), operator.pseudo_residual_classification(Y, total, 3))
    expected = operator.pseudo_residual_regression(numbers, total[:, :1])
    assert_close(residuals(total[:, :1], numbers, "regression"), expected)
    binary, target = torch.randn(6, 1, requires_grad=True), (Y > 0).float()[:, None]
    loss = F.binary_cross_entropy_with_logits(binary, target, reduction="sum")
    assert_close(residuals(binary.detach(), target, "binary"), -torch.autograd.grad(loss, binary)[0])


def test_a_round_learns_what_the_rounds_before_leave() -> None:
    first, second, own = network(1), network(2), network(3)
    task = Residual([first, second], shrinkage=0.5, kind="multiclass")
    with torch.no_grad():
        before = 0.5 * first(X) + 0.5 * second(X)
    assert_close(task.step(own.train(), (X, Y), LOSS).loss, F.mse_loss(own(X), F.one_hot(Y, 3) - before.softmax(1)))
    step = task.step(own.eval(), (X, Y), LOSS)
    assert_close(step.loss, F.cross_entropy(before + 0.5 * own(X), Y))
    assert_close(step.preds, before + 0.5 * own(X))
    assert copy.deepcopy(task).networks[0] is first
    alone = Residual([], shrinkage=0.5, kind="multiclass").step(own.train(), (X, Y), LOSS)
    assert_close(alone.loss, F.mse_loss(own(X), F.one_hot(Y, 3) - torch.full((6, 3), 1 / 3)))


def test_networks_that_are_trained_as_one() -> None:
    joint = Joint([network(1), network(2)], stacked=True, scale=0.5).train()
    task, total, expected = JointResiduals(shrinkage=0.5, kind="multiclass"), torch.zeros(6, 3), torch.zeros(())
    loss = task.step(joint, (X, Y), LOSS).loss
    for output in (one(X) for one in joint.estimators):  # as those of torchensemble's soft boosting
        expected = expected + F.mse_loss(output, F.one_hot(Y, 3) - total.softmax(1))
        total = total + 0.5 * output.detach()
    assert_close(loss, expected)
    assert_close(task.step(joint.eval(), (X, Y), LOSS).preds, total)
    assert_close(Joint([network(1), network(2)], scale=0.5)(X), (network(1)(X) + network(2)(X)) / 2)


def test_adversarial_inputs_are_those_of_torchensemble() -> None:
    module = pytest.importorskip("torchensemble.adversarial_training")
    own, seen = network().train(), list[Tensor]()

    class Noted(Supervised):
        def step(self, model: nn.Module, batch: Any, criterion: Any) -> Any:
            seen.append(batch[0].detach().clone())
            return super().step(model, batch, criterion)

    step = FastGradientSign(Noted(), epsilon=0.1).step(own, (X, Y), LOSS)
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(own(x), Y), x)
    (changed,) = module._get_fgsm_samples([X], 0.1, [gradient])
    assert_close(seen[1], changed)
    assert_close(step.loss, (F.cross_entropy(own(X), Y) + F.cross_entropy(own(changed), Y)) / 2)
    assert_close(FastGradientSign(Supervised(), epsilon=0.1).step(own.eval(), (X, Y), LOSS).loss, LOSS(own(X), Y))


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


def solved(x: Any, y: Any, task: str, own: Any = None, outputs: int | None = None) -> tuple[Tensor, Tensor]:
    """What a linear network gives for its own rows when it is solved for, and its weights."""
    more = {} if outputs is None else {"outputs": outputs}
    weights = None if own is None else torch.as_tensor(own)
    linear = solve(torch.as_tensor(x), torch.as_tensor(y), task, weights=weights, **more)
    return torch.as_tensor(x) @ linear.weight.T + linear.bias, linear


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 6])
@pytest.mark.parametrize("kind", ["plain", "separable", "constant columns"])
def test_classes_are_those_of_logistic_regression(kind: str, classes: int, weighted: bool) -> None:
    x, y = data(kind, classes)
    own = np.linspace(0.1, 3.0, classes)[y] if weighted else None
    outputs, _ = solved(x, y, "multiclass", own, classes)
    np.testing.assert_allclose(outputs.softmax(1), logistic(x, y, own).predict_proba(x), atol=1e-6)


def test_a_single_output_and_labels_are_models_of_their_own() -> None:
    x, y = data("plain", 2)
    labels = np.stack([y, data("plain", 3)[1] == 1], 1).astype(float)
    for targets, task in ((labels[:, 0], "binary"), (labels, "multilabel")):
        chances = solved(x, targets, task)[0].sigmoid().numpy()
        for column in range(chances.shape[1]):
            expected = logistic(x, labels[:, column]).predict_proba(x)[:, 1]
            np.testing.assert_allclose(chances[:, column], expected, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "constant columns", "huge scale"])
def test_numbers_are_those_of_ridge(kind: str, outputs: int, weighted: bool) -> None:
    x, random = data(kind, 2)[0], np.random.default_rng(outputs)
    y = x[:, :1] / np.abs(x[:, :1]).max() + random.normal(size=(ROWS, outputs)) * 100 + 1e4
    own = random.random(ROWS) + 0.1 if weighted else None
    expected = Ridge(solver="svd").fit(x, y, sample_weight=own).predict(x).reshape(ROWS, -1)
    np.testing.assert_allclose(solved(x, y, "regression", own)[0] / 1e4, expected / 1e4, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_huge_scales_have_the_solution_of_scikit_learns_on_its_own_terms(classes: int) -> None:
    x, y = data("huge scale", classes)
    weight, bias = (part.clone().requires_grad_() for part in solved(x, y, "multiclass", outputs=classes)[1])
    losses = F.cross_entropy(torch.as_tensor(x) @ weight.T + bias, torch.as_tensor(y), reduction="sum")
    (losses + weight.square().sum() * (2 if classes == 2 else 1) / 2).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert (weight.grad.abs() <= 1e-6 * torch.as_tensor(np.abs(x)).sum(0)).all()
    assert (bias.grad.abs() <= 1e-6 * ROWS).all()


def test_many_unknowns_are_solved_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data("plain", 3)
    exact, _ = solved(x, y, "multiclass")
    monkeypatch.setattr(tasks, "_LARGEST", 1)
    np.testing.assert_allclose(solved(x, y, "multiclass")[0], exact, atol=1e-6)
