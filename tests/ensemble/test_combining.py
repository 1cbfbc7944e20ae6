"""Votes and means over members, with gaps; probabilities and logits; weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import log_loss
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.combining import (
    as_logits,
    as_probabilities,
    decisions,
    hard,
    mean_loss,
    select,
    smallest_loss,
    soft,
    subsets,
    weigh,
)
from lightkit.ensemble.oof import MemberPredictions

NAN = torch.nan


def test_soft_is_the_weighted_mean_of_those_who_predicted() -> None:
    predictions = torch.tensor([[[0.2], [NAN], [0.4]], [[0.6], [0.5], [NAN]], [[1.0], [NAN], [NAN]]])
    for weights, expected in ((None, [0.6, 0.5, 0.4]), ([3, 1, 0], [0.3, 0.5, 0.4]), ([0, 1, 1], [0.8, 0.5, NAN])):
        assert soft(predictions, weights)[:, 0].tolist() == pytest.approx(expected, nan_ok=True)
    for wrong, words in (([1, 2], "wrong number"), ([0, 0, 0], "cannot weigh"), ([1, 1, -1], "cannot weigh")):
        with pytest.raises(UserError, match=words):
            soft(predictions, wrong)
    with pytest.raises(UserError, match="cannot weigh"):
        soft(predictions, [1, 1, math.nan])


def test_soft_of_several_ensembles_at_once_has_the_bits_of_each() -> None:
    predictions = torch.rand(5, 3, 7, 4, generator=torch.Generator().manual_seed(0))
    predictions[1, 2, 3] = math.nan
    alone = torch.stack([soft(own, [1, 2, 3, 4, 5]) for own in predictions.unbind(1)])
    assert torch.equal(soft(predictions, [1, 2, 3, 4, 5]), alone)


def test_hard_counts_votes_and_ties_go_to_the_lower_class() -> None:
    votes = torch.tensor([[2, 1, 0], [1, 1, 2], [0, 0, 2], [2, 0, 0]])
    shares = hard(F.one_hot(votes, 3).float() * 0.4 + 0.2, task="multiclass")
    assert shares.tolist() == [[0.25, 0.25, 0.5], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]
    assert hard(torch.full((1, 1, 3), 1 / 3), task="multiclass").tolist() == [[1, 0, 0]]
    predictions = torch.tensor([[[0.9], [0.2], [NAN]], [[0.1], [NAN], [NAN]], [[0.5], [0.7], [NAN]]])
    assert hard(predictions, task="binary")[:, 0].tolist() == pytest.approx([1 / 3, 1 / 2, NAN], nan_ok=True)
    assert torch.allclose(hard(predictions, [2, 1, 1], task="multilabel")[:2], torch.tensor([[0.5], [1 / 3]]))
    with pytest.raises(UserError, match="only classes can be voted for"):
        hard(predictions, task="regression")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_become_probabilities(dtype: torch.dtype) -> None:
    outputs = torch.randn(6, 3).to(dtype)
    assert torch.equal(as_probabilities(outputs, "multiclass"), outputs.float().softmax(1))
    assert torch.equal(as_probabilities(outputs, "multilabel"), outputs.float().sigmoid())
    assert torch.equal(as_probabilities(outputs, "regression"), outputs.float())
    for binary in (outputs[:, 0], outputs[:, :1]):
        assert torch.equal(as_probabilities(binary, "binary"), outputs[:, :1].float().sigmoid())


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "regression"])
def test_logits_give_the_probabilities_back_and_are_finite(task: str) -> None:
    predictions = as_probabilities(torch.randn(50, 1 if task == "binary" else 4) * 3, task)
    assert torch.allclose(as_probabilities(as_logits(predictions, task), task), predictions, atol=1e-6)
    corners = torch.tensor([[0.0, 1.0], [1.0, 0.0], [NAN, NAN]])
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
    drawn = subsets(50, 20, draws=10, seed=1)
    assert len({tuple(chosen) for chosen in drawn}) == 10
    assert all(len(set(chosen)) == 20 for chosen in drawn)
    assert drawn == subsets(50, 20, draws=10, seed=1) != subsets(50, 20, draws=10, seed=2)


def reference(predictions: Any, targets: Any, error: Any, rounds: int = 25) -> list[float]:
    """AutoGluon's rule written down as simply as possible: the mean of a growing list, anew each time."""
    chosen: list[int] = []
    path: list[float] = []
    rounding = False
    for _ in range(rounds):
        errors = []
        for candidate in range(len(predictions)):
            value = error(targets, np.mean([predictions[at] for at in [*chosen, candidate]], axis=0))
            errors.append(round(value, 6) if rounding else value)
        tied = [at for at, value in enumerate(errors) if np.isclose(value, min(errors), atol=0, rtol=1e-12)]
        best = ([at for at in tied if at in chosen] or tied)[0]
        if not chosen:
            rounding = abs(errors[best]) > 1e-4
        path.append(round(errors[best], 6) if rounding else errors[best])
        chosen.append(best)
    chosen = chosen[: path.index(min(path)) + 1]
    return [chosen.count(at) / len(chosen) for at in range(len(predictions))]


def candidates(seed: int, *, members: int = 7, rows: int = 60, classes: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (rows,), generator=draw)
    signal = F.one_hot(targets, classes) * torch.rand(members, 1, 1, generator=draw) * 2
    noise = torch.randn(members, rows, classes, generator=draw)
    return (signal + noise).double().softmax(-1), targets


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_what_is_selected_is_minimised_as_the_reference_does(seed: int) -> None:
    predictions, targets = candidates(seed)
    weights = select(predictions, targets, "multiclass")
    assert np.allclose(weights, reference(predictions.numpy(), targets.numpy(), log_loss))
    assert weights.sum() == pytest.approx(1)
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randn(50, generator=draw)
    values = numbers[None, :, None] + torch.randn(6, 50, 1, generator=draw)
    expected = reference(
        values.double().numpy(), numbers.double().numpy(), lambda y, p: float(((p[:, 0] - y) ** 2).mean())
    )
    assert np.allclose(select(values, numbers, "regression"), expected)


def test_of_twins_one_enters_and_only_rows_that_all_predicted_decide() -> None:
    predictions, targets = candidates(1, members=4)
    weights = select(torch.cat([predictions, predictions * (1 + 1e-9), predictions.clone()]), targets, "multiclass")
    assert weights[4:].tolist() == [0] * 8
    assert np.allclose(weights[:4], select(predictions, targets, "multiclass"))
    assert select(predictions[:1], targets, "multiclass").tolist() == [1]
    gaps = predictions.clone()
    gaps[0, :10], gaps[3, 50:] = NAN, NAN
    assert select(gaps, targets, "multiclass").equal(select(predictions[:, 10:50], targets[10:50], "multiclass"))
    infinite = torch.tensor([[[torch.inf], [0.0]], [[5.0], [0.0]]])
    assert select(infinite, torch.zeros(2), "regression").tolist() == [0, 1]


def test_what_cannot_be_selected_from_is_refused() -> None:
    predictions, targets = candidates(0, members=2)
    apart = predictions.clone()
    apart[0, ::2], apart[1, 1::2] = NAN, NAN
    with pytest.raises(UserError, match="no row was predicted by all"):
        select(apart, targets, "multiclass")
    with pytest.raises(UserError, match="nothing to select from"):
        select(predictions[:0], targets, "multiclass")
    with pytest.raises(UserError, match="finite for none"):
        select(torch.full((2, 3, 1), torch.inf), torch.zeros(3), "regression")
    with pytest.raises(UserError, match="rounds"):
        select(predictions, targets, "multiclass", rounds=0)


N = 60


def predicted(predictions: Tensor, targets: Tensor, split: int = 1) -> MemberPredictions:
    rows, kind = torch.arange(N), torch.full((N,), split, dtype=torch.uint8)
    return MemberPredictions(rows, kind, torch.ones_like(rows), predictions.float(), targets, "multiclass")


def test_validated_weights_have_the_smallest_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (N,), generator=generator)
    hints, noise = F.one_hot(targets, 3).double(), torch.randn(3, N, 3, generator=generator, dtype=torch.float64)
    stack = torch.stack([strength * hints + one for strength, one in zip((2.0, 1.0, 0.0), noise)]).softmax(-1)
    members = [predicted(one, targets) for one in stack]
    weights = weigh(members, "multiclass", how="validation")
    assert weights.sum().item() == pytest.approx(1)
    assert weights[0] > weights[2]

    def loss(share: Tensor) -> float:
        return mean_loss(torch.einsum("m,mnc->nc", share.double(), stack), targets, "multiclass")

    grid = [torch.tensor([a, b, 20 - a - b]) / 20 for a in range(21) for b in range(21 - a)]
    assert loss(weights) <= min(map(loss, grid)) + 1e-4
    for how in ("uniform", "validation", "greedy"):
        assert weigh(members[:1], "multiclass", how=how).tolist() == [1.0]
    with pytest.raises(UserError, match="no row is left to weigh members by"):  # test rows weigh nothing
        weigh([predicted(one, targets, split=2) for one in stack], "multiclass", how="greedy")


def test_validated_weights_of_numbers_are_least_squares() -> None:
    generator = torch.Generator().manual_seed(1)
    stack, targets = torch.randn(2, N, 1, generator=generator), torch.zeros(N, 1)
    weights = smallest_loss(stack, targets, "regression")
    a, b = stack[0, :, 0].double(), stack[1, :, 0].double()
    best = float((b * (b - a)).sum() / ((a - b) ** 2).sum())
    assert weights[0].item() == pytest.approx(min(max(best, 0), 1), abs=1e-3)
