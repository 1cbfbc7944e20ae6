"""How sure an ensemble is of each sample."""

from __future__ import annotations

import math

import pytest
import torch

from lightkit.ensemble.diversity import MemberOutputs

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
