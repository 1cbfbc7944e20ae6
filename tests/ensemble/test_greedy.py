"""Greedy selection against a plain reference, and its rules one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.greedy import default_metric, select


def reference(predictions, targets, error, rounds):
    """AutoGluon's rule written down as simply as possible: the mean of a growing list, anew each time."""
    chosen: list[int] = []
    path = []
    rounding = False
    for _ in range(rounds):
        errors = []
        for candidate in range(len(predictions)):
            value = error(targets, np.mean([predictions[at] for at in [*chosen, candidate]], axis=0))
            errors.append(round(value, 6) if rounding else value)
        tied = [at for at, value in enumerate(errors) if np.isclose(value, min(errors), atol=0, rtol=1e-12)]
        again = [at for at in tied if at in chosen]
        best = (again or tied)[0]
        if not chosen:
            rounding = abs(errors[best]) > 1e-4
        path.append(round(errors[best], 6) if rounding else errors[best])
        chosen.append(best)
    chosen = chosen[: path.index(min(path)) + 1]
    return [chosen.count(at) / len(chosen) for at in range(len(predictions))]


def candidates(seed: int, *, members: int = 7, rows: int = 60, classes: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (rows,), generator=draw)
    signal = torch.nn.functional.one_hot(targets, classes) * torch.rand(members, 1, 1, generator=draw) * 2
    noise = torch.randn(members, rows, classes, generator=draw)
    return (signal + noise).double().softmax(-1), targets


@pytest.mark.parametrize("seed", range(12))
def test_log_loss_is_minimised_as_the_reference_does(seed: int) -> None:
    predictions, targets = candidates(seed)
    found = select(predictions, targets, "multiclass")
    expected = reference(predictions.double().numpy(), targets.numpy(), log_loss, 25)
    assert np.allclose(found.weights, expected)
    assert sum(found.weights) == pytest.approx(1)
    mean = torch.einsum("m,mnc->nc", torch.tensor(found.weights, dtype=torch.float64), predictions.double())
    assert found.scores[-1] == pytest.approx(log_loss(targets, mean), abs=1e-6)
    assert found.scores[-1] == min(found.scores)
    assert len(found.scores) == len(found.order)


@pytest.mark.parametrize("seed", range(6))
def test_regression_is_minimised_as_the_reference_does(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randn(50, generator=draw)
    predictions = targets[None, :, None] + torch.randn(6, 50, 1, generator=draw)
    expected = reference(
        predictions.double().numpy(), targets.double().numpy(), lambda y, p: float(((p[:, 0] - y) ** 2).mean()), 25
    )
    assert np.allclose(select(predictions, targets, "regression").weights, expected)


def test_the_better_the_value_of_a_metric_to_maximise_the_better() -> None:
    predictions, targets = candidates(3)

    def accuracy(truth: Tensor, mean: Tensor) -> float:
        return float((mean.argmax(1) == truth).double().mean())

    found = select(predictions, targets, "multiclass", metric=accuracy, mode="max")
    singles = [accuracy(targets, member) for member in predictions]
    assert found.scores[0] == pytest.approx(max(singles))
    assert found.scores[-1] >= found.scores[0]
    mean = torch.einsum("m,mnc->nc", torch.tensor(found.weights, dtype=torch.float64), predictions.double())
    assert found.scores[-1] == pytest.approx(accuracy(targets, mean), abs=1e-6)


def test_of_twins_one_enters() -> None:
    predictions, targets = candidates(1, members=4)
    twins = torch.cat([predictions, predictions * (1 + 1e-9), predictions.clone()])
    found = select(twins, targets, "multiclass")
    assert set(found.order) <= set(range(4))
    assert np.allclose(found.weights[:4], select(predictions, targets, "multiclass").weights)


def test_ties_go_to_members_already_in() -> None:
    targets = torch.tensor([0.0, 0.0])
    predictions = torch.tensor([[[1.0], [1.0]], [[3.0], [3.0]], [[1.0], [1.0]]])
    calls = []

    def first_then_flat(_: Tensor, mean: Tensor) -> float:
        calls.append(mean)
        return [2.0, 1.0, 3.0][len(calls) - 1] if len(calls) <= 3 else 0.5

    assert set(select(predictions, targets, "regression", metric=first_then_flat, rounds=4).order) == {1}


def test_ties_of_the_metric_are_broken_by_the_likelihood() -> None:
    targets = torch.tensor([1, 0])
    predictions = torch.tensor([[[0.4, 0.6], [0.6, 0.4]], [[0.2, 0.8], [0.8, 0.2]], [[0.1, 0.9], [0.3, 0.7]]])

    def accuracy(truth: Tensor, mean: Tensor) -> float:
        return float((mean.argmax(1) == truth).double().mean())

    assert select(predictions, targets, "multiclass", metric=accuracy, mode="max").weights == (0, 1, 0)


def test_one_member_has_all_the_weight() -> None:
    predictions, targets = candidates(0, members=1)
    found = select(predictions, targets, "multiclass")
    assert (found.weights, found.order) == ((1.0,), (0,))


def test_only_rows_that_all_predicted_decide() -> None:
    predictions, targets = candidates(5)
    gaps = predictions.clone()
    gaps[0, :10], gaps[3, 50:] = torch.nan, torch.nan
    found = select(gaps, targets, "multiclass")
    assert found.rows == 40
    assert found.weights == select(predictions[:, 10:50], targets[10:50], "multiclass").weights


def test_one_row_is_enough() -> None:
    found = select(torch.tensor([[[0.3]], [[0.6]], [[0.8]]]), torch.tensor([1.0]), "binary")
    assert found.weights == (0, 0, 1)


@pytest.mark.parametrize("task", ["binary", "multilabel", "multiclass"])
def test_the_default_is_the_log_loss(task: str) -> None:
    draw = torch.Generator().manual_seed(0)
    predictions = torch.rand(30, 1 if task == "binary" else 3, generator=draw, dtype=torch.float64)
    targets = torch.randint(2, predictions.shape, generator=draw).float()
    expected = np.mean([log_loss(targets[:, at], predictions[:, at]) for at in range(predictions.shape[1])])
    if task == "multiclass":
        targets, predictions = torch.arange(30) % 3, predictions.softmax(1)
        expected = log_loss(targets, predictions)
    assert default_metric(task)(targets, predictions) == pytest.approx(expected)


def test_what_cannot_be_selected_from_is_refused() -> None:
    predictions, targets = candidates(0, members=2)
    apart = predictions.clone()
    apart[0, ::2], apart[1, 1::2] = torch.nan, torch.nan
    with pytest.raises(UserError, match="no row was predicted by all"):
        select(apart, targets, "multiclass")
    with pytest.raises(UserError, match="nothing to select from"):
        select(predictions[:0], targets, "multiclass")
    with pytest.raises(UserError, match="finite for none"):
        select(predictions, targets, "multiclass", metric=lambda *_: float("nan"))
    with pytest.raises(UserError, match="rounds"):
        select(predictions, targets, "multiclass", rounds=0)
    with pytest.raises(UserError, match="mode"):
        select(predictions, targets, "multiclass", mode="up")


def test_a_metric_that_fails_for_one_member_loses() -> None:
    predictions, targets = candidates(0, members=2)

    def metric(truth: Tensor, mean: Tensor) -> float:
        return float("nan") if torch.allclose(mean, predictions[0]) else default_metric("multiclass")(truth, mean)

    assert select(predictions, targets, "multiclass", metric=metric).order[0] == 1


def test_many_rows_are_cheap() -> None:
    predictions, targets = candidates(0, members=5, rows=100_000)
    assert select(predictions, targets, "multiclass", rounds=3).rows == 100_000
