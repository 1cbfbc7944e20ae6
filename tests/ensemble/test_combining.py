"""Votes and means over members, with gaps; probabilities and logits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lightkit.common.errors import UserError
from lightkit.ensemble.combining import as_logits, as_probabilities, decisions, hard, mean, soft, subsets

NAN = torch.nan


def test_soft_is_the_weighted_mean_of_those_who_predicted() -> None:
    predictions = torch.tensor([[[0.2], [NAN], [0.4]], [[0.6], [0.5], [NAN]], [[1.0], [NAN], [NAN]]])
    assert torch.allclose(soft(predictions), torch.tensor([[0.6], [0.5], [0.4]]))
    assert torch.allclose(soft(predictions, [3, 1, 0]), torch.tensor([[0.3], [0.5], [0.4]]))
    assert torch.allclose(soft(predictions, [0, 1, 1]), torch.tensor([[0.8], [0.5], [NAN]]), equal_nan=True)
    assert mean is soft


def test_one_member_is_itself() -> None:
    predictions = torch.rand(1, 5, 3).softmax(-1)
    assert torch.equal(soft(predictions), predictions[0])
    assert torch.equal(hard(predictions, task="multiclass").argmax(1), predictions[0].argmax(1))


def test_hard_counts_votes_and_ties_go_to_the_lower_class() -> None:
    votes = torch.tensor([[2, 1, 0], [1, 1, 2], [0, 0, 2], [2, 0, 0]])
    shares = hard(F.one_hot(votes, 3).float() * 0.4 + 0.2, task="multiclass")
    assert shares.tolist() == [[0.25, 0.25, 0.5], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]
    assert shares.argmax(1).tolist() == [2, 0, 0]
    assert hard(torch.full((1, 1, 3), 1 / 3), task="multiclass").tolist() == [[1, 0, 0]]


def test_hard_votes_weigh_and_leave_gaps_out() -> None:
    predictions = torch.tensor([[[0.9], [0.2], [NAN]], [[0.1], [NAN], [NAN]], [[0.5], [0.7], [NAN]]])
    assert torch.allclose(hard(predictions, task="binary"), torch.tensor([[1 / 3], [1 / 2], [NAN]]), equal_nan=True)
    assert torch.allclose(hard(predictions, [2, 1, 1], task="multilabel")[:2], torch.tensor([[0.5], [1 / 3]]))
    with pytest.raises(UserError, match="only classes can be voted for"):
        hard(predictions, task="regression")


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1, 2, 3], "wrong number"), ([0, 0], "cannot weigh"), ([1, -1], "cannot weigh"), ([1, math.nan], "cannot weigh")],
)
def test_weights_that_cannot_be_are_refused(weights: list[float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        soft(torch.rand(2, 4, 1), weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_become_probabilities(dtype: torch.dtype) -> None:
    outputs = torch.randn(6, 3).to(dtype)
    assert torch.equal(as_probabilities(outputs, "multiclass"), outputs.float().softmax(1))
    assert torch.equal(as_probabilities(outputs, "multilabel"), outputs.float().sigmoid())
    assert torch.equal(as_probabilities(outputs, "regression"), outputs.float())
    for binary in (outputs[:, 0], outputs[:, :1]):
        assert torch.equal(as_probabilities(binary, "binary"), outputs[:, :1].float().sigmoid())


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "regression"])
def test_logits_give_the_probabilities_back(task: str) -> None:
    outputs = torch.randn(50, 1 if task == "binary" else 4) * 3
    predictions = as_probabilities(outputs, task)
    assert torch.allclose(as_probabilities(as_logits(predictions, task), task), predictions, atol=1e-6)


def test_logits_are_finite_and_nan_stays() -> None:
    corners = torch.tensor([[0.0, 1.0], [1.0, 0.0], [NAN, NAN]])
    for task in ("multiclass", "multilabel"):
        logits = as_logits(corners, task)
        assert logits[:2].isfinite().all()
        assert logits[2].isnan().all()
        assert torch.allclose(as_probabilities(logits[:2], task), corners[:2], atol=1e-6)
    assert as_logits(torch.tensor([[0.5]]), "binary").item() == 0


def test_decisions_are_as_torch_makes_them() -> None:
    assert decisions(torch.tensor([[0.4, 0.4, 0.2]]), "multiclass").tolist() == [0]
    assert decisions(torch.tensor([[0.5, 0.6, NAN]]), "multilabel").tolist() == [[0, 1, 0]]


def test_subsets_are_all_or_a_draw() -> None:
    assert subsets(4, 3) == [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]
    assert subsets(3, 3) == [[0, 1, 2]]
    drawn = subsets(50, 20, draws=10, seed=1)
    assert len({tuple(chosen) for chosen in drawn}) == 10
    assert all(len(set(chosen)) == 20 for chosen in drawn)
    assert drawn == subsets(50, 20, draws=10, seed=1) != subsets(50, 20, draws=10, seed=2)
