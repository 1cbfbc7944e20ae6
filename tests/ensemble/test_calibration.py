"""Likelihood, calibration error and temperature against scikit-learn, and what an ensemble is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.calibration import (
    calibrated_log_likelihood,
    fit_temperature,
    independent_networks,
    reliability,
    useful_temperature,
    with_temperature,
)
from lightkit.ensemble.combining import log_likelihood, soft


def drawn(task: str, rows: int = 4000, *, heat: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities and targets drawn from them, the logits then multiplied by `heat`."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 1 if task == "binary" else 4, generator=draw, dtype=torch.float64) * 1.5
    if task == "multiclass":
        return (logits * heat).softmax(1), torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    return (logits * heat).sigmoid(), (torch.rand(logits.shape, generator=draw) < logits.sigmoid()).float()


def test_log_likelihood_is_scikit_learns() -> None:
    predictions, targets = drawn("multiclass")
    assert -log_likelihood(predictions, targets, "multiclass").mean() == pytest.approx(log_loss(targets, predictions))
    predictions, targets = drawn("binary")
    for shaped in (targets, targets[:, 0], targets.long()):
        found = -log_likelihood(predictions, shaped, "binary").mean()
        assert found == pytest.approx(log_loss(targets[:, 0], predictions[:, 0]))
    predictions, targets = drawn("multilabel")
    expected = np.mean([log_loss(targets[:, at], predictions[:, at]) for at in range(4)])
    assert -log_likelihood(predictions, targets, "multilabel").mean() == pytest.approx(expected)


def test_certain_and_wrong_is_bad_but_finite() -> None:
    found = log_likelihood(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), "multiclass")
    assert found.tolist() == pytest.approx([0, math.log(torch.finfo(torch.float32).eps)], abs=1e-6)
    with pytest.raises(UserError, match="without a variance"):
        log_likelihood(torch.rand(2, 1), torch.rand(2), "regression")


@pytest.mark.parametrize("task", ["binary", "multilabel", "multiclass"])
def test_reliability_is_scikit_learns(task: str) -> None:
    predictions, targets = drawn(task, heat=2.0)
    found = reliability(predictions, targets, task)
    if task == "multiclass":
        chance, truth = predictions.max(1).values, predictions.argmax(1) == targets
    else:
        chance, truth = predictions.flatten(), targets.flatten() > 0.5
    true, claimed = calibration_curve(truth.numpy(), chance.numpy(), n_bins=15)
    known = found.counts > 0
    assert np.allclose(found.accuracy[known], true)
    assert np.allclose(found.confidence[known], claimed)
    assert found.counts.sum() == len(chance)
    assert len(found.edges) == 16
    shares = np.histogram(chance.numpy(), found.edges.numpy())[0] / len(chance)
    assert found.error == pytest.approx(float((shares[known] * np.abs(true - claimed)).sum()))


def test_reliability_of_few_rows_and_gaps() -> None:
    sure = torch.tensor([[1.0], [torch.nan], [0.0]])
    found = reliability(sure, torch.tensor([1.0, 1.0, 0.0]), "binary", bins=2)
    assert found.counts.tolist() == [1, 1]
    assert found.error == 0
    assert reliability(torch.tensor([[0.2, 0.8]]), torch.tensor([0]), "multiclass").error == pytest.approx(0.8)
    with pytest.raises(UserError, match="only probabilities"):
        reliability(sure, torch.zeros(3), "regression")
    with pytest.raises(UserError, match="bins"):
        reliability(sure, torch.zeros(3), "binary", bins=0)


@pytest.mark.parametrize("task", ["binary", "multilabel", "multiclass"])
@pytest.mark.parametrize("heat", [0.5, 1.0, 3.0])
def test_temperature_is_found_and_the_best(task: str, heat: float) -> None:
    predictions, targets = drawn(task, 8000, heat=heat)
    found = fit_temperature(predictions, targets, task)
    assert found == pytest.approx(heat, rel=0.1)

    def value(temperature: float) -> float:
        return float(log_likelihood(with_temperature(predictions, temperature, task), targets, task).mean())

    assert value(found) >= max(value(found * factor) for factor in (0.99, 0.999, 1.001, 1.01))


def test_temperature_keeps_its_limits() -> None:
    right = torch.tensor([[0.6], [0.4]])
    assert fit_temperature(right, torch.tensor([1.0, 0.0]), "binary") == pytest.approx(0.1, rel=1e-3)
    assert fit_temperature(right, torch.tensor([0.0, 1.0]), "binary") == pytest.approx(100, rel=1e-3)
    assert fit_temperature(torch.full((2, 1), 0.5), torch.tensor([0.0, 1.0]), "binary") == 1
    assert 1 < fit_temperature(torch.tensor([[1.0], [1.0], [0.0]]), torch.tensor([1.0, 0.0, 0.0]), "binary") <= 100


def test_calibrated_likelihood_does_not_depend_on_the_temperature() -> None:
    cold, targets = drawn("multiclass", heat=4)
    plain, _ = drawn("multiclass")
    fitting = torch.arange(4000) % 2 == 0
    for choice in (fitting, None):
        values = [calibrated_log_likelihood(p, targets, "multiclass", fitting=choice) for p in (cold, plain)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
        assert values[0] > float(log_likelihood(cold, targets, "multiclass").mean())


def test_calibrated_likelihood_of_regression_is_that_of_a_normal_distribution() -> None:
    draw = torch.Generator().manual_seed(0)
    targets = torch.randn(40_000, generator=draw)
    predictions = (targets + 0.5 * torch.randn(40_000, generator=draw))[:, None]
    expected = -0.5 * math.log(2 * math.pi * 0.25) - 0.5
    fitting = torch.arange(40_000) < 10_000
    assert calibrated_log_likelihood(predictions, targets, "regression", fitting=fitting) == pytest.approx(
        expected, abs=0.02
    )
    assert calibrated_log_likelihood(predictions, targets, "regression") == pytest.approx(expected, abs=0.02)


def test_calibrated_likelihood_leaves_gaps_out() -> None:
    predictions, targets = drawn("multiclass")
    fitting = torch.arange(4000) % 2 == 0
    gaps = predictions.clone()
    gaps[:100] = torch.nan
    expected = calibrated_log_likelihood(predictions[100:], targets[100:], "multiclass", fitting=fitting[100:])
    assert calibrated_log_likelihood(gaps, targets, "multiclass", fitting=fitting) == pytest.approx(expected)


@pytest.mark.parametrize("fitting", [None, torch.tensor([True]), torch.tensor([False])])
def test_one_row_cannot_be_calibrated(fitting: Tensor | None) -> None:
    with pytest.raises(UserError, match="rows to fit on, and others to measure"):
        calibrated_log_likelihood(torch.tensor([[0.5]]), torch.tensor([1.0]), "binary", fitting=fitting)


def networks(count: int, rows: int = 3000, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Networks that see the same logits with noise of their own."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 3, generator=draw) * 2
    targets = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    return (logits + 2 * torch.randn(count, rows, 3, generator=draw)).softmax(-1), targets


def test_an_ensemble_of_independent_networks_is_worth_its_size() -> None:
    both, targets = networks(14, 6000)
    members, others = both[:8], both[8:]
    fitting = torch.arange(6000) % 2 == 0
    for size in (2, 4):
        worth = independent_networks(members, soft(others[:size]), targets, "multiclass", fitting=fitting)
        assert worth == pytest.approx(size, rel=0.35)
    whole = independent_networks(members, soft(members), targets, "multiclass", fitting=fitting)
    assert whole == pytest.approx(8, abs=1e-6)


def test_what_is_no_better_than_one_is_worth_1_and_what_is_better_than_all_infinity() -> None:
    members, targets = networks(4)
    noise = torch.rand(3000, 3, generator=torch.Generator().manual_seed(1)).softmax(1)
    fitting = torch.arange(3000) % 2 == 0
    assert independent_networks(members, noise, targets, "multiclass", fitting=fitting) == 1
    oracle = torch.nn.functional.one_hot(targets, 3) * 0.9 + 0.03
    assert independent_networks(members, oracle, targets, "multiclass", fitting=fitting) == math.inf
    assert independent_networks(members[:1], members[0], targets, "multiclass") == 1


def test_worth_lies_between_sizes_and_leaves_gaps_out() -> None:
    members, targets = networks(5, 1500)
    between = torch.stack([soft(members[:2]), soft(members[:3])]).mean(0)
    worth = independent_networks(members, between, targets, "multiclass")
    assert 1.5 < worth < 4
    gaps = members.clone()
    gaps[0, :500] = torch.nan
    expected = independent_networks(members[:, 500:], between[500:], targets[500:], "multiclass")
    assert independent_networks(gaps, between, targets, "multiclass") == pytest.approx(expected)


def test_a_temperature_is_taken_where_it_proves_useful() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 3, generator=generator)
    targets = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    assert useful_temperature(logits.softmax(1), targets, "multiclass") == 1.0
    sure = (3 * logits).softmax(1)
    assert useful_temperature(sure, targets, "multiclass") == fit_temperature(sure, targets, "multiclass")
    for few in (0, 1, 2):
        assert useful_temperature(logits.softmax(1)[:few], targets[:few], "multiclass") == 1.0


def test_a_few_rows_rarely_make_others_less_likely() -> None:
    generator = torch.Generator().manual_seed(1)
    predictions = torch.randn(600, 3, generator=generator).softmax(1)
    targets = torch.multinomial(predictions, 1, generator=generator)[:, 0]

    def worse(temperatures: list[float]) -> int:
        """Count the temperatures, each of 12 rows, with which the other rows are less likely by 0.02."""
        before = float(log_likelihood(predictions, targets, "multiclass").mean())
        after = [with_temperature(predictions, temperature, "multiclass") for temperature in temperatures]
        return sum(float(log_likelihood(own, targets, "multiclass").mean()) < before - 0.02 for own in after)

    parts = [(predictions[start : start + 12], targets[start : start + 12]) for start in range(0, 600, 12)]
    fitted = worse([fit_temperature(*part, "multiclass") for part in parts])
    useful = worse([useful_temperature(*part, "multiclass") for part in parts])
    assert fitted > 15
    assert useful < 5
