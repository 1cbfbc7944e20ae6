"""Features of a stack, and a guard that has to be right."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from torch import nn

from lightkit.data import DataInfo, build_data
from lightkit.data.tensors import TensorData
from lightkit.ensemble.combining import row_losses, select
from lightkit.ensemble.methods import RunFacts, Stacking
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.rows import member_rows
from lightkit.ensemble.stacking import Inputs, StackedEnsemble, base_predictions, feature_scaling, judge, stack_features

FOLDS = 4


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


TEST = 2000


class Case:
    """A regression whose training rows are divided by the framework, bases, and a meta-model on what they predict.

    Planted: training rows stand twice, or belong to groups, and a base looks up its nearest training row. Clean
    (`experts`): there is something that weights cannot express.
    """

    def __init__(self, kind: str, rows: int, seed: int, *, torn: bool = False) -> None:
        self.random = np.random.default_rng([seed, rows, len(kind), 10])
        pool = rows * 9 // 8
        self.count = pool + TEST
        own, planted = np.arange(self.count), kind != "experts"
        if kind == "duplicates":
            twice = self.random.permutation(pool)[: 2 * (pool // 3)].reshape(2, -1)
            own[twice[1]] = twice[0]
        if kind == "groups":
            own = np.where(own < pool, own // 8, pool + (own - pool) // 8)
        effect = self.noise(3.0)[own] if planted else 0.0
        self.x = self.random.normal(size=(self.count, 3))[own]
        if kind == "groups":  # rows of a group are alike, not equal
            self.x = self.x + self.noise(0.02)[:, None]
        score = self.x @ np.array([1.5, -1.0, 0.8]) + effect
        left = self.x[:, 0] > 0
        if not planted:
            score = np.where(left, 3 * self.x[:, 1], -3 * self.x[:, 2])
        self.y = score + self.noise(0.7)[own if kind == "duplicates" else slice(None)]
        self.cut(pool, own if kind == "groups" and not torn else None, torn=torn)
        self.extra: Any = np.zeros((self.count, 0))
        if planted:
            self.bases = [self.fitted(model) for model in (Ridge(), Ridge(alpha=100), KNeighborsRegressor(1))]
        else:
            self.bases = [3 * self.x[:, 1] + self.noise(0.5), -3 * self.x[:, 2] + self.noise(0.5)]
            self.extra = np.stack([left * self.bases[0], left * self.bases[1], left], 1)

    def cut(self, pool: int, groups: Any, *, torn: bool) -> None:
        """Let the framework hold rows back and deal the others out into folds."""
        splits = {"train": torch.arange(pool), "test": torch.arange(pool, self.count)}
        x, y = torch.as_tensor(self.x).float(), torch.as_tensor(self.y).float()
        dataset = TensorData(x, y, DataInfo("regression", (3,), 1), splits=splits, groups=groups)
        data = build_data(dataset=dataset, split={"by": "file", "val": 0})
        self.together = together = None if torn else data.together()
        facts = RunFacts("regression", seed=0, epochs=1, rows=data.rows["train"], groups=together)
        self.learnt, self.held = Stacking(folds=FOLDS).rows(facts)
        chosen: Any = {"folds": FOLDS, "groups": together}
        self.folds = [member_rows(self.learnt, "folds", 0, fold=fold, **chosen) for fold in range(FOLDS)]

    def noise(self, size: float) -> Any:
        return self.random.normal(size=self.count) * size

    def fitted(self, model: Any) -> Any:
        """What a base predicts: out-of-fold, and of all rows elsewhere."""
        own = model.fit(self.x[self.learnt], self.y[self.learnt]).predict(self.x)
        for fold in self.folds:
            model.fit(self.x[fold.training], self.y[fold.training])
            own[fold.held_out] = model.predict(self.x[fold.held_out])
        return own

    def is_right(self) -> bool:
        """Tell whether what is chosen is on new rows within 2 % of the best that could be."""
        features, y = np.concatenate([np.stack(self.bases, 1), self.extra], 1), torch.tensor(self.y)
        meta = Ridge().fit(features[self.learnt], self.y[self.learnt]).predict(features)
        bases = torch.tensor(np.stack(self.bases))[:, :, None]
        weights = select(bases[:, self.learnt], y[self.learnt], "regression")
        greedy = torch.einsum("m,mnc->nc", weights, bases)
        candidates = {"stacking": torch.tensor(meta)[:, None], "greedy": greedy, "uniform": bases.mean(0)}
        groups = None if self.together is None else self.together[self.held]
        judged = {name: one[self.held] for name, one in candidates.items()}
        chosen = judge(judged, y[self.held], "regression", share=1 / 9, groups=groups).chosen
        truth = {
            name: float(row_losses(one[-TEST:], y[-TEST:], "regression").mean()) for name, one in candidates.items()
        }
        return truth[chosen] <= 1.02 * min(truth.values())


def test_the_guard_is_right_in_planted_and_clean_cases() -> None:
    cases = [*itertools.product(("duplicates", "groups", "experts"), (800, 1600), range(3))]
    right = [Case(*case).is_right() for case in cases]
    assert sum(right) >= 0.9 * len(right), [*zip(cases, right)]
    # Rows that are torn apart fool it.
    assert not any(Case(kind, 1600, 0, torn=True).is_right() for kind in ("duplicates", "groups"))


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


def test_a_tie_keeps_the_weights() -> None:
    verdict = verdict_of(0.3, 0.3, 0.3)
    assert verdict.chosen == "greedy"
    loss, other = torch.rand(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    candidates = {name: one[:, None] for name, one in (("stacking", loss), ("greedy", other), ("uniform", other))}
    chance = judge(candidates, torch.full((50,), 0.5, dtype=torch.float64), "regression", share=1 / 9)
    if chance.losses["stacking"] < chance.losses["greedy"] and chance.chosen == "greedy":
        assert "but for chance" in chance.sentence()


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
