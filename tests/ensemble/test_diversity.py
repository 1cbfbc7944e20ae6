"""How members differ, against plain counting; uncertainty; metrics over the size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.diversity import (
    MemberOutputs,
    by_size,
    disagreement,
    double_fault,
    error_correlation,
    uncertainty,
)

TASKS = ["multiclass", "binary", "multilabel"]


def members(task: str, count: int = 4, rows: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    predictions = torch.rand(count, rows, 1 if task == "binary" else 3, generator=draw)
    if task == "multiclass":
        return predictions.softmax(-1), torch.randint(3, (rows,), generator=draw)
    return predictions, torch.randint(2, (rows, predictions.shape[2]), generator=draw).float()


def choices(predictions: Tensor, task: str) -> Tensor:
    return predictions.argmax(-1) if task == "multiclass" else (predictions > 0.5).flatten(1).long()


@pytest.mark.parametrize("task", TASKS)
def test_pairs_are_counted_on_the_rows_of_both(task: str) -> None:
    predictions, targets = members(task)
    predictions[0, :20], predictions[1, 70:] = torch.nan, torch.nan
    decided, wide = choices(predictions.nan_to_num(0), task), predictions.shape[2] if task == "multilabel" else 1
    known = ~predictions.isnan().any(-1).repeat_interleave(wide, dim=1)
    wrong = decided != targets.flatten()
    differ, both, related = (
        disagreement(predictions, task),
        double_fault(predictions, targets, task),
        error_correlation(predictions, targets, task),
    )
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
    found = error_correlation(predictions, targets, "regression")
    assert np.allclose(found, np.corrcoef(residuals), atol=1e-6)
    gaps = predictions.clone()
    gaps[1, :30] = torch.nan
    found = error_correlation(gaps, targets, "regression")
    rest = residuals.reshape(3, 50, outputs)[:, 30:].flatten(1)
    assert found[0, 1] == pytest.approx(np.corrcoef(rest)[0, 1], abs=1e-6)
    assert found[0, 2] == pytest.approx(np.corrcoef(residuals)[0, 2], abs=1e-6)


def test_constant_errors_and_strangers_have_no_correlation() -> None:
    predictions = torch.tensor([[[0.9], [0.9]], [[0.9], [0.1]], [[torch.nan], [torch.nan]]])
    related = error_correlation(predictions, torch.tensor([1.0, 1.0]), "binary")
    assert related[0].isnan().all()
    assert related[1, 1] == 1
    assert related[2].isnan().all()
    assert disagreement(predictions, "binary")[0].tolist()[:2] == [0, 0.5]
    assert disagreement(predictions, "binary")[0, 2].isnan()


def test_values_do_not_disagree() -> None:
    with pytest.raises(UserError, match="no decisions"):
        disagreement(torch.rand(2, 3, 1), "regression")


def test_members_that_differ_are_unsure_and_the_difference_is_told_apart() -> None:
    split = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]])
    found = uncertainty(split, "multiclass")
    assert found.entropy.tolist() == pytest.approx([math.log(2), math.log(2), 0])
    assert found.mutual_information.tolist() == pytest.approx([math.log(2), 0, 0])
    assert found.standard_deviation.tolist() == [[0.5, 0.5], [0, 0], [0, 0]]
    binary = uncertainty(split[..., :1], "binary")
    assert torch.allclose(binary.entropy, found.entropy)
    assert torch.allclose(binary.mutual_information, found.mutual_information)
    labels = uncertainty(split, "multilabel")
    assert torch.allclose(labels.entropy, 2 * found.entropy)


def test_uncertainty_of_one_member_of_weights_and_of_gaps() -> None:
    predictions, _ = members("multiclass", 3)
    alone = uncertainty(predictions[:1], "multiclass")
    assert alone.mutual_information.abs().max() == 0
    assert alone.standard_deviation.abs().max() == 0
    weighted = uncertainty(predictions, "multiclass", [1, 0, 0])
    assert torch.allclose(weighted.entropy, alone.entropy)
    predictions[1:, 0] = torch.nan
    predictions[:, 1] = torch.nan
    gaps = uncertainty(predictions, "multiclass")
    assert gaps.entropy[0] == pytest.approx(float(alone.entropy[0]))
    assert gaps.entropy[1].isnan()
    values = uncertainty(torch.tensor([[[1.0]], [[3.0]]]), "regression")
    assert values.standard_deviation.item() == 1
    assert values.entropy.isnan().all()


def test_metric_over_size_begins_with_the_members_and_ends_with_the_ensemble() -> None:
    predictions, targets = members("multiclass", 6)

    def accuracy(chosen: Tensor) -> float:
        return float((chosen.mean(0).argmax(1) == targets).double().mean())

    sizes = range(1, 7)
    found = by_size(predictions, accuracy, sizes=sizes, draws=5)
    assert found.drawn[0] == [accuracy(member[None]) for member in predictions]
    assert [len(values) for values in found.drawn] == [6, 5, 5, 5, 5, 1]
    assert found.first == [accuracy(predictions[:size]) for size in sizes]
    assert found.drawn[-1] == found.first[-1:]
    assert found.mean[0] == pytest.approx(sum(found.drawn[0]) / 6)
    assert found == by_size(predictions, accuracy, sizes=sizes, draws=5)


HALF = torch.tensor([0.5, 0.5])


def test_classes() -> None:
    taken = MemberOutputs("multiclass", HALF)
    taken(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # sure, and of another class each
    taken(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))  # both unsure
    found = taken.columns(torch.tensor([[0.6, 0.4], [0.5, 0.5]]).log())
    assert list(found) == ["entropy", "mutual_information", "disagreement"]
    assert found["entropy"] == pytest.approx([math.log(2)] * 2)
    assert found["mutual_information"] == pytest.approx([math.log(2), 0])
    assert found["disagreement"] == pytest.approx([0.5, 0])


def test_disagreement_counts_members_by_weight() -> None:
    taken = MemberOutputs("binary", torch.tensor([0.7, 0.3]))
    taken(torch.tensor([[[0.9], [0.9]], [[0.1], [0.8]]]))
    assert taken.columns(torch.tensor([2.0, 2.0]))["disagreement"] == pytest.approx([0.3, 0])


def test_labels_have_one_value_a_sample() -> None:
    taken = MemberOutputs("multilabel", HALF)
    taken(torch.tensor([[[0.9, 0.5]], [[0.1, 0.5]]]))
    found = taken.columns(torch.tensor([[1.0, -1.0]]))
    assert found["entropy"] == pytest.approx([2 * math.log(2)])
    assert found["disagreement"] == pytest.approx([0.25])


@pytest.mark.parametrize(("shape", "expected"), [((2,), [1, 0]), ((2, 1), [[1], [0]])])
def test_numbers_have_a_deviation_in_the_form_of_the_prediction(shape: tuple[int, ...], expected: list[float]) -> None:
    taken = MemberOutputs("regression", HALF)
    taken(torch.tensor([[[1.0], [4.0]], [[3.0], [4.0]]]))
    assert taken.columns(torch.zeros(shape)) == {"std": expected}
    scaled = MemberOutputs("regression", HALF, 100.0)
    scaled(taken.batches[0])
    assert scaled.columns(torch.zeros(2)) == {"std": [100, 0]}


def test_nothing_is_said_where_members_predict_nothing_themselves() -> None:
    assert MemberOutputs("multiclass", HALF).columns(torch.zeros(3, 2)) == {}
    alone = MemberOutputs("multiclass", torch.ones(1))
    alone(torch.full((1, 3, 2), 0.5))
    assert alone.columns(torch.zeros(3, 2)) == {}
