"""Features of a stack, and a guard that has to be right."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn

from lightkit.data import DataInfo, build_data
from lightkit.data.tensors import TensorData
from lightkit.ensemble.combining import row_losses, select
from lightkit.ensemble.judging import judge
from lightkit.ensemble.methods import RunFacts, Stacking
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.rows import member_rows
from lightkit.ensemble.stacking import Inputs, StackedEnsemble, base_predictions, feature_scaling, stack_features

FOLDS = 4


def predictions(rows: Any, split: int, found: Any, targets: Any, task: str) -> MemberPredictions:
    found = torch.as_tensor(np.asarray(found)).float()
    return MemberPredictions(
        rows=torch.as_tensor(rows),
        split=torch.full((len(rows),), split, dtype=torch.uint8),
        counts=torch.ones(len(rows), dtype=torch.int64),
        predictions=found[:, None] if found.ndim == 1 else found,
        targets=torch.as_tensor(targets[rows]),
        task=task,
    )


def predicted(model: Any, x: Any, task: str) -> Any:
    if task == "regression":
        return model.predict(x)
    return model.predict_proba(x)[:, 1] if task == "binary" else model.predict_proba(x)


def test_labels_have_a_column_each_and_two_classes_one() -> None:
    found = torch.rand(5, 3)
    assert torch.equal(stack_features([found, found], "multilabel"), torch.cat([found, found], 1))
    both = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    assert stack_features([both], "multiclass").tolist() == [[0.75], [0.5]]
    images = torch.zeros(2, 1, 2, 2)
    assert stack_features([both], "multiclass", images).shape == (2, 5)


def test_a_row_that_several_folds_did_not_see_is_averaged() -> None:
    targets = np.zeros(4)
    one = predictions(np.array([0, 1]), 0, [1.0, 2.0], targets, "regression")
    other = predictions(np.array([1, 2]), 0, [4.0, 6.0], targets, "regression")
    both = base_predictions([one, other])
    assert (both.predictions[:, 0].tolist(), both.counts.tolist()) == ([1, 3, 6], [1, 2, 1])


def test_a_network_of_all_rows_speaks_outside_of_the_training_rows_only() -> None:
    targets = np.zeros(6)
    inside = predictions(np.array([0, 1]), 0, [1.0, 2.0], targets, "regression")
    outside = predictions(np.array([4, 5]), 2, [3.0, 3.0], targets, "regression")
    refit = predictions(np.array([3, 4, 5]), 1, [9.0, 9.0, 9.0], targets, "regression")
    refit.split[1:] = 2
    base = base_predictions([inside, outside], refit)
    assert base.rows.tolist() == [0, 1, 3, 4, 5]
    assert base.predictions[:, 0].tolist() == [1, 2, 9, 9, 9]


def test_probabilities_are_not_scaled_and_everything_else_is() -> None:
    features = torch.tensor([[0.2, 10.0, 3.0], [0.4, 30.0, 3.0]])
    shift, scale = feature_scaling(features, "binary", 1)
    assert (shift.tolist(), scale.tolist()) == ([0, 20, 3], [1, 10, 1])
    shift, scale = feature_scaling(features, "regression", 3)
    torch.testing.assert_close((features - shift) / scale, torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]))


PLANTED = ("duplicates", "groups", "tree")
CLEAN = ("experts", "common")
TEST = 2000


class Case:
    """A data set whose training rows are divided by the framework, bases, and a meta-model on what they predict.

    Planted: training rows stand twice, or belong to groups, and a base looks up its nearest training row; or the
    meta-model is one that learns everything by heart. Clean: there is something that
    weights cannot express.
    """

    def __init__(self, task: str, kind: str, rows: int, seed: int, *, torn: bool = False) -> None:
        self.random = np.random.default_rng([seed, rows, len(kind), len(task)])
        self.task, self.kind = task, kind
        pool = rows * 9 // 8
        self.count = pool + TEST
        self.extra: Any = np.zeros((self.count, 0))
        groups, effect = self.divided(pool)
        self.x = self.random.normal(size=(self.count, 3))[groups]
        if kind == "groups":  # rows of a group are alike, not equal
            self.x = self.x + self.noise(0.02)[:, None]
        score = self.x @ np.array([1.5, -1.0, 0.8]) + effect
        if kind == "experts":
            score = np.where(self.x[:, 0] > 0, 3 * self.x[:, 1], -3 * self.x[:, 2])
        self.y = score + self.noise(0.7)[groups if kind == "duplicates" else slice(None)]
        if task == "binary":
            chance = self.random.random(self.count)[groups if kind == "duplicates" else slice(None)]
            self.y = (chance < 1 / (1 + np.exp(-score))).astype(float)
        self.cut(pool, groups if kind == "groups" and not torn else None, torn=torn)
        self.bases = self.looked_up() if kind in ("duplicates", "groups") else self.made(self.x, score)

    def divided(self, pool: int) -> Any:
        """Return the group of each row, and what being of that group adds."""
        own = np.arange(self.count)
        if self.kind == "duplicates":
            twice = self.random.permutation(pool)[: 2 * (pool // 3)].reshape(2, -1)
            own[twice[1]] = twice[0]
        if self.kind == "groups":
            own = np.where(own < pool, own // 8, pool + (own - pool) // 8)
        return own, self.noise(3.0)[own] if self.kind in ("duplicates", "groups") else 0.0

    def cut(self, pool: int, groups: Any, *, torn: bool) -> None:
        """Let the framework hold rows back and deal the others out into folds."""
        info = DataInfo(self.task, (3,), 1)
        splits = {"train": torch.arange(pool), "test": torch.arange(pool, self.count)}
        x, y = torch.as_tensor(self.x).float(), torch.as_tensor(self.y).float()
        data = build_data(dataset=TensorData(x, y, info, splits=splits, groups=groups), split={"by": "file", "val": 0})
        self.together = together = None if torn else data.together()
        facts = RunFacts(self.task, seed=0, epochs=1, rows=data.rows["train"], groups=together)
        self.learnt, self.held = Stacking(folds=FOLDS).rows(facts)
        chosen: Any = {"folds": FOLDS, "groups": together}
        self.folds = [member_rows(self.learnt, "folds", 0, fold=fold, **chosen) for fold in range(FOLDS)]

    def noise(self, size: float) -> Any:
        return self.random.normal(size=self.count) * size

    def looked_up(self) -> list[Any]:
        """Two linear bases and one that knows its training rows by heart: out-of-fold, and of all rows elsewhere."""
        binary, found = self.task == "binary", []
        linear: list[Any] = [LogisticRegression(), LogisticRegression(C=0.1)] if binary else [Ridge(), Ridge(alpha=100)]
        nearest = KNeighborsClassifier(1) if binary else KNeighborsRegressor(1)
        for model in [*linear, nearest]:
            model.fit(self.x[self.learnt], self.y[self.learnt])
            own = predicted(model, self.x, self.task)
            for fold in self.folds:
                model.fit(self.x[fold.training], self.y[fold.training])
                own[fold.held_out] = predicted(model, self.x[fold.held_out], self.task)
            found.append(own.clip(0.01, 0.99) if binary else own)
        return found

    def made(self, x: Any, score: Any) -> list[Any]:
        """Bases that are made up: what they predict is right but for noise of their own."""
        bases = [score + self.noise(1.0), score + self.noise(1.0), 0.8 * score + self.noise(1.2)]
        if self.kind == "experts":
            left = x[:, 0] > 0
            bases = [3 * x[:, 1] + self.noise(0.5), -3 * x[:, 2] + self.noise(0.5)]
            self.extra = np.stack([left * bases[0], left * bases[1], left], 1)
        if self.kind == "common":
            shared = self.noise(1.5)
            bases = [score + shared, shared - 0.3 * score, score + self.noise(1.5)]
        if self.task == "binary":
            bases = [(1 / (1 + np.exp(-base))).clip(1e-6, 1 - 1e-6) for base in bases]
        return bases

    def candidates(self) -> dict[str, torch.Tensor]:
        binary = self.task == "binary"
        meta: Any = LogisticRegression(max_iter=500) if binary else Ridge()
        if self.kind == "tree":
            meta = (DecisionTreeClassifier if binary else DecisionTreeRegressor)(random_state=0, min_samples_leaf=2)
        features = np.concatenate([np.stack(self.bases, 1), self.extra], 1)
        meta.fit(features[self.learnt], self.y[self.learnt])
        found = meta.predict_proba(features)[:, 1].clip(1e-4, 1 - 1e-4) if binary else meta.predict(features)
        bases = torch.tensor(np.stack(self.bases))[:, :, None]
        weights = select(bases[:, self.learnt], torch.tensor(self.y[self.learnt]), self.task)
        greedy = torch.einsum("m,mnc->nc", weights, bases)
        return {"stacking": torch.tensor(found)[:, None], "greedy": greedy, "uniform": bases.mean(0)}

    def is_right(self) -> bool:
        """Tell whether what is chosen is on new rows within 2 % of the best that could be."""
        candidates, y = self.candidates(), torch.tensor(self.y)
        held, test = self.held, slice(self.count - TEST, None)
        groups = None if self.together is None else self.together[held]
        judged = {name: found[held] for name, found in candidates.items()}
        chosen = judge(judged, y[held], self.task, share=1 / 9, groups=groups).chosen
        truth = {name: float(row_losses(found[test], y[test], self.task).mean()) for name, found in candidates.items()}
        return truth[chosen] <= 1.02 * min(truth.values())


def test_the_guard_is_right_in_planted_and_clean_cases() -> None:
    kinds = itertools.product(("binary", "regression"), (*PLANTED, *CLEAN), (400, 1600), range(2))
    right = {case: Case(*case).is_right() for case in kinds}
    assert sum(right.values()) >= 0.9 * len(right), [case for case, fine in right.items() if not fine]


def test_rows_that_are_torn_apart_fool_the_guard() -> None:
    cases = [Case(task, kind, 1600, 0, torn=True) for task in ("binary", "regression") for kind in PLANTED[:2]]
    assert not any(case.is_right() for case in cases)


def verdict_of(*losses: float, share: float = 1 / 9) -> Any:
    targets = torch.zeros(len(SPREAD), dtype=torch.float64)
    names = ("stacking", "greedy", "uniform")
    made = {name: (SPREAD * loss)[:, None].sqrt() for name, loss in zip(names, losses)}
    return judge(made, targets, "regression", share=share)


SPREAD = torch.linspace(0.5, 1.5, 50, dtype=torch.float64)


def test_the_decision_is_said_with_its_numbers() -> None:
    verdict = verdict_of(0.35, 0.31, 0.40)
    assert verdict.chosen == "greedy"
    told = "stacking is not used: greedy weights do better on 1/9 of the rows that nothing saw: 0.31 against 0.35"
    assert verdict.sentence() == told
    assert verdict_of(0.35, 0.38, 0.30).sentence().startswith("stacking is not used: the plain mean does better on 1/9")
    told = "stacking is used: it does better than greedy weights on 1/5 of the rows that nothing saw: 0.20 against 0.31"
    assert verdict_of(0.20, 0.31, 0.40, share=0.2).sentence() == told


def test_a_tie_keeps_the_weights() -> None:
    verdict = verdict_of(0.3, 0.3, 0.3)
    assert verdict.chosen == "greedy"
    loss, other = torch.rand(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    candidates = {name: found[:, None] for name, found in (("stacking", loss), ("greedy", other), ("uniform", other))}
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
