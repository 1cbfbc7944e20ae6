"""Likelihood, calibration error and temperature against scikit-learn, and what an ensemble is worth."""

from __future__ import annotations

import math
from typing import Any

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
from lightkit.ensemble.diversity import (
    MemberOutputs,
    by_size,
    disagreement,
    double_fault,
    error_correlation,
    uncertainty,
)

TASKS = ("binary", "multilabel", "multiclass")


def drawn(task: str, rows: int = 4000, *, heat: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities and targets drawn from them, the logits then multiplied by `heat`."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 1 if task == "binary" else 4, generator=draw, dtype=torch.float64) * 1.5
    if task == "multiclass":
        return (logits * heat).softmax(1), torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    return (logits * heat).sigmoid(), (torch.rand(logits.shape, generator=draw) < logits.sigmoid()).float()


def likelihood(predictions: Tensor, targets: Tensor, task: str) -> float:
    return float(log_likelihood(predictions, targets, task).mean())


@pytest.mark.parametrize("task", TASKS)
def test_log_likelihood_is_scikit_learns(task: str) -> None:
    predictions, targets = drawn(task)
    columns = [(targets, predictions)] if task == "multiclass" else [*zip(targets.T, predictions.T)]
    expected = np.mean([log_loss(truth, column) for truth, column in columns])
    for shaped in (targets, targets.long(), *([targets[:, 0]] if task == "binary" else [])):
        assert -likelihood(predictions, shaped, task) == pytest.approx(expected)


def test_certain_and_wrong_is_bad_but_finite() -> None:
    sure = log_likelihood(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), "multiclass")
    assert sure.tolist() == pytest.approx([0, math.log(torch.finfo(torch.float32).eps)], abs=1e-6)
    with pytest.raises(UserError, match="without a variance"):
        log_likelihood(torch.rand(2, 1), torch.rand(2), "regression")


@pytest.mark.parametrize("task", TASKS)
def test_reliability_is_scikit_learns(task: str) -> None:
    predictions, targets = drawn(task, heat=2.0)
    bins = reliability(predictions, targets, task)
    chance, truth = predictions.flatten(), targets.flatten() > 0.5
    if task == "multiclass":
        chance, truth = predictions.max(1).values, predictions.argmax(1) == targets
    true, claimed = calibration_curve(truth.numpy(), chance.numpy(), n_bins=15)
    known = bins.counts > 0
    assert np.allclose(bins.accuracy[known], true)
    assert np.allclose(bins.confidence[known], claimed)
    assert (bins.counts.sum(), len(bins.edges)) == (len(chance), 16)
    shares = np.histogram(chance.numpy(), bins.edges.numpy())[0] / len(chance)
    assert bins.error == pytest.approx(float((shares[known] * np.abs(true - claimed)).sum()))


def test_reliability_of_few_rows_and_gaps() -> None:
    sure = torch.tensor([[1.0], [torch.nan], [0.0]])
    bins = reliability(sure, torch.tensor([1.0, 1.0, 0.0]), "binary", bins=2)
    assert (bins.counts.tolist(), bins.error) == ([1, 1], 0)
    with pytest.raises(UserError, match="only probabilities"):
        reliability(sure, torch.zeros(3), "regression")
    with pytest.raises(UserError, match="bins"):
        reliability(sure, torch.zeros(3), "binary", bins=0)


@pytest.mark.parametrize(("task", "heat"), [("binary", 0.5), ("multilabel", 3.0), ("multiclass", 3.0)])
def test_temperature_is_found_and_the_best(task: str, heat: float) -> None:
    predictions, targets = drawn(task, 8000, heat=heat)
    fitted = fit_temperature(predictions, targets, task)
    assert fitted == pytest.approx(heat, rel=0.1)
    best, *others = (
        likelihood(with_temperature(predictions, fitted * factor, task), targets, task)
        for factor in (1, 0.99, 0.999, 1.001, 1.01)
    )
    assert best >= max(others)


def test_temperature_keeps_its_limits() -> None:
    right = torch.tensor([[0.6], [0.4]])
    assert fit_temperature(right, torch.tensor([1.0, 0.0]), "binary") == pytest.approx(0.1, rel=1e-3)
    assert fit_temperature(right, torch.tensor([0.0, 1.0]), "binary") == pytest.approx(100, rel=1e-3)
    sure = torch.tensor([[1.0], [1e-9]])  # as certain as single precision can be
    assert fit_temperature(sure, torch.tensor([1.0, 0.0]), "binary") == 0.1
    assert fit_temperature(torch.full((2, 1), 0.5), torch.tensor([0.0, 1.0]), "binary") == 1
    assert 1 < fit_temperature(torch.tensor([[1.0], [1.0], [0.0]]), torch.tensor([1.0, 0.0, 0.0]), "binary") <= 100


def test_calibrated_likelihood_does_not_depend_on_the_temperature_and_leaves_gaps_out() -> None:
    (cold, targets), (plain, _) = drawn("multiclass", heat=4), drawn("multiclass")
    fitting = torch.arange(4000) % 2 == 0
    for choice in (fitting, None):
        values = [calibrated_log_likelihood(p, targets, "multiclass", fitting=choice) for p in (cold, plain)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
        assert values[0] > likelihood(cold, targets, "multiclass")
    gaps = plain.clone()
    gaps[:100] = torch.nan
    expected = calibrated_log_likelihood(plain[100:], targets[100:], "multiclass", fitting=fitting[100:])
    assert calibrated_log_likelihood(gaps, targets, "multiclass", fitting=fitting) == pytest.approx(expected)
    for few in (None, torch.tensor([True]), torch.tensor([False])):
        with pytest.raises(UserError, match="rows to fit on, and others to measure"):
            calibrated_log_likelihood(torch.tensor([[0.5]]), torch.tensor([1.0]), "binary", fitting=few)


def test_calibrated_likelihood_of_regression_is_that_of_a_normal_distribution() -> None:
    draw = torch.Generator().manual_seed(0)
    targets = torch.randn(40_000, generator=draw)
    predictions = (targets + 0.5 * torch.randn(40_000, generator=draw))[:, None]
    expected = -0.5 * math.log(2 * math.pi * 0.25) - 0.5
    for fitting in (torch.arange(40_000) < 10_000, None):
        value = calibrated_log_likelihood(predictions, targets, "regression", fitting=fitting)
        assert value == pytest.approx(expected, abs=0.02)


def networks(count: int, rows: int = 3000) -> tuple[Tensor, Tensor]:
    """Networks that see the same logits with noise of their own."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 3, generator=draw) * 2
    targets = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    return (logits + 2 * torch.randn(count, rows, 3, generator=draw)).softmax(-1), targets


def test_an_ensemble_of_independent_networks_is_worth_its_size() -> None:
    both, targets = networks(14, 6000)
    members, fitting = both[:8], torch.arange(6000) % 2 == 0

    def worth(predictions: Tensor) -> float | None:
        return independent_networks(members, predictions, targets, "multiclass", fitting=fitting)

    for size in (2, 4):
        assert worth(soft(both[8 : 8 + size])) == pytest.approx(size, rel=0.35)
    assert worth(soft(members)) == pytest.approx(8, abs=1e-6)
    assert worth(torch.rand(6000, 3, generator=torch.Generator().manual_seed(1)).softmax(1)) == 1
    assert worth(torch.nn.functional.one_hot(targets, 3) * 0.9 + 0.03) == math.inf
    assert independent_networks(members[:1], members[0], targets, "multiclass") == 1


def test_worth_lies_between_sizes_and_leaves_gaps_out() -> None:
    members, targets = networks(5, 1500)
    between = torch.stack([soft(members[:2]), soft(members[:3])]).mean(0)
    assert 1.5 < independent_networks(members, between, targets, "multiclass") < 4
    gaps = members.clone()
    gaps[0, :500] = torch.nan
    expected = independent_networks(members[:, 500:], between[500:], targets[500:], "multiclass")
    assert independent_networks(gaps, between, targets, "multiclass") == pytest.approx(expected)


def test_a_temperature_is_taken_where_it_proves_useful() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(600, 3, generator=generator)
    predictions, sure = logits.softmax(1), (3 * logits).softmax(1)
    targets = torch.multinomial(predictions, 1, generator=generator)[:, 0]
    assert useful_temperature(predictions, targets, "multiclass") == 1.0
    assert useful_temperature(sure, targets, "multiclass") == fit_temperature(sure, targets, "multiclass")
    for few in (0, 1, 2):
        assert useful_temperature(predictions[:few], targets[:few], "multiclass") == 1.0
    before, worse = likelihood(predictions, targets, "multiclass"), {}
    for find in (fit_temperature, useful_temperature):  # of 12 rows: how often the others become less likely
        found = [find(predictions[at : at + 12], targets[at : at + 12], "multiclass") for at in range(0, 600, 12)]
        after = [with_temperature(predictions, temperature, "multiclass") for temperature in found]
        worse[find] = sum(likelihood(own, targets, "multiclass") < before - 0.02 for own in after)
    assert worse[fit_temperature] > 15
    assert worse[useful_temperature] < 5


NAN = torch.nan


def members(task: str, count: int = 4, rows: int = 80) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    predictions = torch.rand(count, rows, 1 if task == "binary" else 3, generator=draw)
    if task == "multiclass":
        return predictions.softmax(-1), torch.randint(3, (rows,), generator=draw)
    return predictions, torch.randint(2, (rows, predictions.shape[2]), generator=draw).float()


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
def test_pairs_are_counted_on_the_rows_of_both(task: str) -> None:
    predictions, targets = members(task)
    predictions[0, :20], predictions[1, 70:] = NAN, NAN
    known, whole = ~predictions.isnan().any(-1), predictions.nan_to_num(0)
    decided = whole.argmax(-1) if task == "multiclass" else (whole > 0.5).flatten(1).long()
    known = known.repeat_interleave(predictions.shape[2] if task == "multilabel" else 1, dim=1)
    wrong, differ = decided != targets.flatten(), disagreement(predictions, task)
    both, related = double_fault(predictions, targets, task), error_correlation(predictions, targets, task)
    for one in range(4):
        for other in range(4):
            common = known[one] & known[other]
            mine, theirs = wrong[one][common], wrong[other][common]
            expected = (decided[one] != decided[other])[common].double().mean()
            assert differ[one, other] == pytest.approx(float(expected))
            assert both[one, other] == pytest.approx(float((mine & theirs).double().mean()))
            assert related[one, other] == pytest.approx(float(np.corrcoef(mine, theirs)[0, 1]), abs=1e-9)


@pytest.mark.parametrize("outputs", [1, 2])
def test_residuals_are_correlated_as_numpy_does(outputs: int) -> None:
    draw = torch.Generator().manual_seed(0)
    predictions = torch.randn(3, 50, outputs, generator=draw) + 100
    targets = torch.randn(50, generator=draw) if outputs == 1 else torch.randn(50, 2, generator=draw)
    residuals = (predictions - targets.reshape(50, outputs)).flatten(1).double()
    assert np.allclose(error_correlation(predictions, targets, "regression"), np.corrcoef(residuals), atol=1e-6)
    predictions[1, :30] = NAN
    related = error_correlation(predictions, targets, "regression")
    rest = residuals.reshape(3, 50, outputs)[:, 30:].flatten(1)
    assert related[0, 1] == pytest.approx(np.corrcoef(rest)[0, 1], abs=1e-6)
    assert related[0, 2] == pytest.approx(np.corrcoef(residuals)[0, 2], abs=1e-6)


def test_constant_errors_and_strangers_have_no_correlation() -> None:
    predictions = torch.tensor([[[0.9], [0.9]], [[0.9], [0.1]], [[NAN], [NAN]]])
    related = error_correlation(predictions, torch.tensor([1.0, 1.0]), "binary")
    assert related[[0, 2]].isnan().all()
    assert related[1, 1] == 1
    assert disagreement(predictions, "binary")[0].tolist() == pytest.approx([0, 0.5, NAN], nan_ok=True)
    with pytest.raises(UserError, match="no decisions"):
        disagreement(torch.rand(2, 3, 1), "regression")


def test_members_that_differ_are_unsure_and_the_difference_is_kept_apart() -> None:
    split = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]])
    classes, binary = uncertainty(split, "multiclass"), uncertainty(split[..., :1], "binary")
    assert classes.entropy.tolist() == pytest.approx([math.log(2), math.log(2), 0])
    assert classes.mutual_information.tolist() == pytest.approx([math.log(2), 0, 0])
    assert classes.standard_deviation.tolist() == [[0.5, 0.5], [0, 0], [0, 0]]
    assert torch.allclose(binary.entropy, classes.entropy)
    assert torch.allclose(binary.mutual_information, classes.mutual_information)
    assert torch.allclose(uncertainty(split, "multilabel").entropy, 2 * classes.entropy)
    values = uncertainty(torch.tensor([[[1.0]], [[3.0]]]), "regression")
    assert (values.standard_deviation.item(), values.entropy.isnan().all()) == (1, True)


def test_uncertainty_of_one_member_of_weights_and_of_gaps() -> None:
    predictions, _ = members("multiclass", 3)
    alone = uncertainty(predictions[:1], "multiclass")
    assert alone.mutual_information.abs().max() == alone.standard_deviation.abs().max() == 0
    assert torch.allclose(uncertainty(predictions, "multiclass", [1, 0, 0]).entropy, alone.entropy)
    predictions[1:, 0], predictions[:, 1] = NAN, NAN
    gaps = uncertainty(predictions, "multiclass")
    assert gaps.entropy[0] == pytest.approx(float(alone.entropy[0]))
    assert gaps.entropy[1].isnan()


def test_metric_over_size_begins_with_the_members_and_ends_with_the_ensemble() -> None:
    predictions, targets = members("multiclass", 6)

    def accuracy(chosen: Tensor) -> float:
        return float((chosen.mean(0).argmax(1) == targets).double().mean())

    measured = by_size(predictions, accuracy, sizes=range(1, 7), draws=5)
    assert measured.drawn[0] == [accuracy(member[None]) for member in predictions]
    assert [len(values) for values in measured.drawn] == [6, 5, 5, 5, 5, 1]
    assert measured.first == [accuracy(predictions[:size]) for size in range(1, 7)]
    assert measured.drawn[-1] == measured.first[-1:]
    assert measured.mean[0] == pytest.approx(sum(measured.drawn[0]) / 6)
    assert measured == by_size(predictions, accuracy, sizes=range(1, 7), draws=5)


ENTROPY = math.log(2)


@pytest.mark.parametrize(
    ("task", "weights", "batches", "output", "expected"),
    [
        (
            "multiclass",
            [0.5, 0.5],
            [[[[1.0, 0.0]], [[0.0, 1.0]]], [[[0.5, 0.5]], [[0.5, 0.5]]]],  # sure, and of another class each; unsure
            [[-0.5, -0.9], [-0.7, -0.7]],
            {"entropy": [ENTROPY] * 2, "mutual_information": [ENTROPY, 0], "disagreement": [0.5, 0]},
        ),
        ("binary", [0.7, 0.3], [[[[0.9], [0.9]], [[0.1], [0.8]]]], [2.0, 2.0], {"disagreement": [0.3, 0]}),
        ("multilabel", [0.5, 0.5], [[[[0.9, 0.5]], [[0.1, 0.5]]]], [[1.0, -1.0]], {"entropy": [2 * ENTROPY]}),
        ("multilabel", [0.5, 0.5], [[[[0.9, 0.5]], [[0.1, 0.5]]]], [[1.0, -1.0]], {"disagreement": [0.25]}),
        ("regression", [0.5, 0.5], [[[[1.0], [4.0]], [[3.0], [4.0]]]], [0.0, 0.0], {"std": [100, 0]}),
        ("multiclass", [0.5, 0.5], [], [[0.0, 0.0]], {}),
        ("multiclass", [1.0], [[[[0.5, 0.5]]]], [[0.0, 0.0]], {}),
    ],
)
def test_columns_of_predictions(task: str, weights: Any, batches: Any, output: Any, expected: dict[str, Any]) -> None:
    taken = MemberOutputs(task, torch.tensor(weights), *([100.0] if task == "regression" else []))
    for batch in batches:
        taken(torch.tensor(batch))
    columns = taken.columns(torch.tensor(output))
    assert bool(columns) == bool(expected)
    assert {name: columns[name] for name in expected} == {name: pytest.approx(own) for name, own in expected.items()}


def test_numbers_have_a_deviation_in_the_form_of_the_prediction() -> None:
    taken = MemberOutputs("regression", torch.tensor([0.5, 0.5]))
    taken(torch.tensor([[[1.0], [4.0]], [[3.0], [4.0]]]))
    assert taken.columns(torch.zeros(2, 1)) == {"std": [[1], [0]]}
