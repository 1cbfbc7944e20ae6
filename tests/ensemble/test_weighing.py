"""How much each member counts."""

from __future__ import annotations

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.ensemble.greedy import default_metric, smallest_loss, weigh
from lightkit.ensemble.oof import MemberPredictions

N = 60


def predicted(
    predictions: torch.Tensor, targets: torch.Tensor, split: int = 1, task: str = "multiclass"
) -> MemberPredictions:
    rows, kind = torch.arange(N), torch.full((N,), split, dtype=torch.uint8)
    return MemberPredictions(rows, kind, torch.ones_like(rows), predictions.float(), targets, task)


def members() -> tuple[list[MemberPredictions], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (N,), generator=generator)
    hints = torch.nn.functional.one_hot(targets, 3).double()
    noise = [torch.randn(N, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
    strength = (2.0, 1.0, 0.0)
    return [predicted((s * hints + one).softmax(1), targets) for s, one in zip(strength, noise)], targets


def test_validated_weights_have_the_smallest_loss() -> None:
    found, targets = members()
    weights = weigh(found, "multiclass", how="validation")
    assert weights.sum().item() == pytest.approx(1)
    assert weights[0] > weights[2]
    stack, metric = torch.stack([one.predictions for one in found]).double(), default_metric("multiclass")

    def loss(share: torch.Tensor) -> float:
        return metric(targets, torch.einsum("m,mnc->nc", share, stack))

    grid = [torch.tensor([a, b, 20 - a - b]) / 20 for a in range(21) for b in range(21 - a)]
    assert loss(weights) <= min(loss(share.double()) for share in grid) + 1e-4


def test_validated_weights_of_numbers_are_least_squares() -> None:
    generator = torch.Generator().manual_seed(1)
    stack, targets = torch.randn(2, N, 1, generator=generator), torch.zeros(N, 1)
    weights = smallest_loss(stack, targets, "regression")
    a, b = stack[0, :, 0].double(), stack[1, :, 0].double()
    best = float((b * (b - a)).sum() / ((a - b) ** 2).sum())
    assert weights[0].item() == pytest.approx(min(max(best, 0), 1), abs=1e-3)


@pytest.mark.parametrize("how", ["uniform", "validation", "greedy"])
def test_one_member_counts_wholly(how: str) -> None:
    assert weigh(members()[0][:1], "multiclass", how=how).tolist() == [1.0]


def test_the_test_split_weighs_nothing() -> None:
    found, targets = members()
    tested = [predicted(one.predictions, targets, split=2) for one in found]
    with pytest.raises(UserError, match="no row is left to weigh members by"):
        weigh(tested, "multiclass", how="greedy")
