"""Features of a stack, and a guard that has to be right."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.stacking import Inputs, StackedEnsemble, base_predictions, feature_scaling, judge, stack_features


def numbers(rows: list[int], values: list[float], split: int = 0) -> MemberPredictions:
    at = torch.tensor(rows)
    kind = torch.full((len(rows),), split, dtype=torch.uint8)
    return MemberPredictions(
        at, kind, torch.ones_like(at), torch.tensor(values)[:, None], torch.zeros(len(rows)), "regression"
    )


def test_labels_have_a_column_each_and_two_classes_one() -> None:
    labels = torch.rand(5, 3)
    assert torch.equal(stack_features([labels, labels], "multilabel"), torch.cat([labels, labels], 1))
    both = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    assert stack_features([both], "multiclass").tolist() == [[0.75], [0.5]]
    images = torch.zeros(2, 1, 2, 2)
    assert stack_features([both], "multiclass", images).shape == (2, 5)


def test_a_row_that_several_folds_did_not_see_is_averaged() -> None:
    both = base_predictions([numbers([0, 1], [1.0, 2.0]), numbers([1, 2], [4.0, 6.0])])
    assert (both.predictions[:, 0].tolist(), both.counts.tolist()) == ([1, 3, 6], [1, 2, 1])


def test_a_network_of_all_rows_speaks_outside_of_the_training_rows_only() -> None:
    refit = numbers([3, 4, 5], [9.0, 9.0, 9.0], 1)
    refit.split[1:] = 2
    base = base_predictions([numbers([0, 1], [1.0, 2.0]), numbers([4, 5], [3.0, 3.0], 2)], refit)
    assert base.rows.tolist() == [0, 1, 3, 4, 5]
    assert base.predictions[:, 0].tolist() == [1, 2, 9, 9, 9]


def test_probabilities_are_not_scaled_and_everything_else_is() -> None:
    features = torch.tensor([[0.2, 10.0, 3.0], [0.4, 30.0, 3.0]])
    shift, scale = feature_scaling(features, "binary", 1)
    assert (shift.tolist(), scale.tolist()) == ([0, 20, 3], [1, 10, 1])
    shift, scale = feature_scaling(features, "regression", 3)
    torch.testing.assert_close((features - shift) / scale, torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]))


def verdict_of(*losses: float, share: float = 1 / 9) -> Any:
    targets = torch.zeros(len(SPREAD), dtype=torch.float64)
    names = ("stacking", "greedy", "uniform")
    made = {name: (SPREAD * loss)[:, None].sqrt() for name, loss in zip(names, losses)}
    return judge(made, targets, "regression", share=share)


SPREAD = torch.linspace(0.5, 1.5, 50, dtype=torch.float64)


def test_the_decision_is_said_with_its_numbers() -> None:
    verdict = verdict_of(0.35, 0.31, 0.40)
    assert verdict.chosen == "greedy"
    line = "stacking is not used: greedy weights do better on 1/9 of the rows that nothing saw: 0.31 against 0.35"
    assert verdict.sentence() == line
    assert verdict_of(0.35, 0.38, 0.30).sentence().startswith("stacking is not used: the plain mean does better on 1/9")
    line = "stacking is used: it does better than greedy weights on 1/5 of the rows that nothing saw: 0.20 against 0.31"
    assert verdict_of(0.20, 0.31, 0.40, share=0.2).sentence() == line


def test_the_weights_are_kept_unless_the_stack_is_better_by_more_than_chance() -> None:
    assert verdict_of(0.3, 0.3, 0.3).chosen == "greedy", "of equals those that were selected"
    generator, rows = torch.Generator().manual_seed(0), 400
    noise = torch.randn(2, rows, generator=generator, dtype=torch.float64)
    groups = torch.arange(rows) // 40

    def chosen(stack: float, uniform: float = -1.0, groups: torch.Tensor | None = None) -> str:
        """What is used where rows are predicted better by so much on average; the standard error is 0.05."""
        own, other = noise - noise.mean(1, keepdim=True)
        gains = {"stacking": stack + own, "greedy": torch.zeros_like(own), "uniform": uniform + other}
        candidates = {name: (10.0 - gain)[:, None].sqrt() for name, gain in gains.items()}
        return judge(candidates, torch.zeros(rows, dtype=torch.float64), "regression", groups=groups).chosen

    assert (chosen(0.02), chosen(0.03)) == ("greedy", "stacking")
    assert (chosen(-1.0, 0.04), chosen(-1.0, 0.06)) == ("greedy", "uniform")
    noise[0] = noise[0][groups * 40]  # rows of a group go up and down together, so there are ten
    assert (chosen(0.1), chosen(0.1, groups=groups)) == ("stacking", "greedy")


def test_a_meta_model_sees_what_its_bases_predict() -> None:
    torch.manual_seed(0)
    bases = [nn.Linear(4, 3) for _ in range(3)]
    meta = nn.Linear(3 + 3 + 4, 3)
    inputs = Inputs([["a"], ["b0", "b1"]], True, [0.0] * 6 + [1.0] * 4, [1.0] * 6 + [2.0] * 4)
    made = StackedEnsemble(
        [*bases, meta],
        task="multiclass",
        weights=[0, 0, 0, 1],
        names=["a", "b0", "b1", "meta"],
        inputs={"meta": inputs},
    ).eval()
    x = torch.randn(5, 4)
    one, two, three = (base(x).softmax(1) for base in bases)
    expected = meta(torch.cat([one, (two + three) / 2, (x - 1) / 2], 1))
    torch.testing.assert_close(made(x).softmax(1), expected.softmax(1))


def test_members_of_two_layers_may_count_together() -> None:
    first, second = nn.Linear(4, 1), nn.Linear(1, 1)
    inputs = Inputs([["first"]], False, [0.5], [2.0])
    made = StackedEnsemble(
        [first, second], task="regression", weights=[0.25, 0.75], names=["first", "second"], inputs={"second": inputs}
    )
    x = torch.randn(5, 4)
    torch.testing.assert_close(made(x), 0.25 * first(x) + 0.75 * second((first(x) - 0.5) / 2))
    assert "scaling1" in dict(made.named_buffers())
    assert len(list(made.parameters())) == 4
