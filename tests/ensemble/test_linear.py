"""The solver beside scikit-learn's linear models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from lightkit.ensemble import linear
from lightkit.ensemble.linear import solve

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
    monkeypatch.setattr(linear, "_LARGEST", 1)
    found = solve(torch.as_tensor(x), torch.as_tensor(y), "multiclass")
    np.testing.assert_allclose(found.weight, exact.weight, atol=1e-6)
    np.testing.assert_allclose(found.bias, exact.bias, atol=1e-6)
