"""Stacking against scikit-learn's with the same networks and folds, and greedy weights against AutoGluon's rule.

    pip install --no-deps autogluon.core autogluon.common autogluon.features  # for the second table
    python -m experiments.ensembles.against_scikit_learn            # ten seeds, three data sets
    python -m experiments.ensembles.against_scikit_learn --seeds 3  # fewer

Writes two tables. Of the first, scikit-learn's `StackingClassifier` or `StackingRegressor` gets the very networks that
lightkit has trained on each fold and on all training rows, as estimators that are looked up by the rows they are fitted
to. Both fit a linear meta-model to them: scikit-learn its `LogisticRegression` or `RidgeCV`. Of the second, both rules
weigh the same networks by the same out-of-fold predictions. Each seed is also the seed of the split.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.ensemble import StackingClassifier, StackingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from torch import Tensor

from lightkit.assembly import build
from lightkit.config import compose, load_run
from lightkit.ensemble.combining import row_losses, soft
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked
from lightkit.ensemble.stacking import base_predictions
from lightkit.runner import Runner
from lightkit.runner.evaluation import load_weights

DATA = {"breast_cancer": "accuracy", "wine": "accuracy", "diabetes": "r2"}
"""Data set → what is measured beside the loss."""
KINDS = (
    "{model.hidden: [], optim.lr: 0.05}",
    "{model.hidden: [16]}",
    "{model.hidden: [64, 64]}",
    "{model: soft_tree, model.depth: 3, optim.lr: 0.05}",
)
FOLDS = 5
GUARDED = 1 / 9
ROUNDS = 25
Values = dict[str, float]


def train(data: str, seed: int, holdout: float, folder: Path) -> dict[str, Any]:
    """Train our stack and return its result."""
    options = [
        *(f"data={data}", f"data.split.seed={seed}", f"seed={seed}", "data.batch_size=32", "optim.lr=0.01"),
        *("trainer.epochs=20", "device=cpu", "logger=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]"),
        *("ensemble=stacking", f"ensemble.folds={FOLDS}", f"ensemble.holdout={holdout}"),
        f"ensemble.members=[{', '.join(KINDS)}]",
    ]
    with redirect_stdout(StringIO()):  # the closing table
        result: dict[str, Any] = Runner(compose(options).cfg, folder).run()
    return result


class Network(BaseEstimator):
    """A kind of network as an estimator whose inputs are the numbers of rows; fitting looks the right one up."""

    def __init__(self, known: dict[frozenset[int], Tensor], classes: bool) -> None:
        self.known, self.classes = known, classes

    def fit(self, rows: Any, targets: Any) -> Network:
        """Take the network that was trained on these rows."""
        self.outputs_ = self.known[frozenset(rows[:, 0].tolist())]
        if self.classes:
            self.classes_ = np.unique(targets)
        return self

    def predict(self, rows: Any) -> Any:
        """Return the values, or the classes, of rows."""
        return self.predict_proba(rows).argmax(1) if self.classes else self.outputs_[rows[:, 0], 0].numpy()

    def predict_proba(self, rows: Any) -> Any:
        """Return the probabilities of rows."""
        found = self.outputs_[rows[:, 0]]
        return (torch.cat([1 - found, found], 1) if found.shape[1] == 1 else found).numpy()


class Classifier(ClassifierMixin, Network):
    """One that gives classes."""


class Regressor(RegressorMixin, Network):
    """One that gives values."""


def networks(folder: Path) -> tuple[dict[str, dict[frozenset[int], Tensor]], Any]:
    """Return what the networks of each kind predict of all rows, by the rows that they learnt from; and the data."""
    found: dict[str, dict[frozenset[int], Tensor]] = {}
    data = None
    for path in sorted((folder / "members").iterdir()):
        kind, _, part = path.name.partition("-")[2].rpartition("-")
        if not kind:
            continue  # the meta-model
        learner = build(load_run(path).cfg, path, pretrained=False, trains=False)
        load_weights(learner, "last" if part == "refit" else "best", path)
        data = data or learner.data
        x, _ = learner.data.source.take(torch.arange(len(learner.data.source)))
        with torch.no_grad():
            outputs = learner.model.eval()(x)
        activation = {"multiclass": lambda out: out.softmax(1), "binary": torch.sigmoid, "regression": lambda out: out}
        rows = frozenset(learner.data.rows["train"].tolist())
        found.setdefault(kind, {})[rows] = activation[data.info.task](outputs).double()
    return found, data


def theirs(folder: Path) -> Values:
    """Return what scikit-learn's stack of the same networks reaches on the test split."""
    known, data = networks(folder)
    task, targets = data.info.task, data.source.y.reshape(-1)
    everything = frozenset[int]().union(*next(iter(known.values())))
    train, test = torch.tensor(sorted(everything)), data.rows["test"]
    cuts = []
    for rows in next(iter(known.values())):
        if rows != everything:
            inside = np.isin(train.numpy(), sorted(rows))
            cuts.append((np.flatnonzero(inside), np.flatnonzero(~inside)))
    classes = task != "regression"
    kind, stack = (Classifier, StackingClassifier) if classes else (Regressor, StackingRegressor)
    estimators = [(name, kind(own, classes)) for name, own in known.items()]
    last = LogisticRegression(max_iter=1000) if classes else RidgeCV()
    fitted = stack(estimators, last, cv=cuts).fit(train[:, None].numpy(), targets[train].numpy())
    rows = test[:, None].numpy()
    outputs = torch.as_tensor(fitted.predict_proba(rows) if classes else fitted.predict(rows)[:, None])
    return measured(outputs, targets[test], "multiclass" if classes else task)


def measured(predictions: Tensor, targets: Tensor, task: str) -> Values:
    """Return loss and accuracy or R² of predictions, `(N, C)` probabilities or `(N, 1)` values."""
    loss = float(row_losses(predictions, targets.long() if task != "regression" else targets[:, None], task).mean())
    if task == "regression":
        return {"loss": loss, "r2": 1 - loss / float(targets.double().var(correction=0))}
    return {"loss": loss, "accuracy": float((predictions.argmax(1) == targets).double().mean())}


def ours(result: dict[str, Any]) -> Values:
    """Return the same of a result of ours."""
    return {name.removeprefix("test/"): value for name, value in result["test"].items()}


def weighed(folder: Path, result: dict[str, Any]) -> tuple[Values, Values, float]:
    """Return the test values of greedy weights and of AutoGluon's, and how far these weights are apart at most."""
    from autogluon.core.metrics import log_loss, mean_squared_error
    from autogluon.core.models.greedy_ensemble.ensemble_selection import EnsembleSelection

    own = result["stacking"]["greedy"]
    members: dict[str, list[MemberPredictions]] = {}
    for path in sorted((folder / "members").iterdir()):
        kind = path.name.partition("-")[2].rpartition("-")[0]
        if kind:
            members.setdefault(kind, []).append(MemberPredictions.read(path / "oof.safetensors"))
    bases = [base_predictions(found[:-1], found[-1]) for found in members.values()]  # the last one is the refit
    seen = aligned([base.of_split("train") for base in bases])
    task, predictions, targets = seen[0].task, stacked(seen).double(), seen[0].targets.reshape(-1)
    given = predictions if task == "multiclass" else predictions[..., 0]
    metric = mean_squared_error if task == "regression" else log_loss
    rule = EnsembleSelection(ROUNDS, task, metric, tie_breaker="second_metric")
    rule.fit(list(given.numpy()), targets.numpy())
    apart = aligned([base.of_split("test") for base in bases])
    found = []
    for weights in (list(own.values()), rule.weights_.tolist()):
        outputs = soft(stacked(apart).double(), torch.tensor(weights, dtype=torch.float64))
        outputs = torch.cat([1 - outputs, outputs], 1) if task == "binary" else outputs
        kind = task if task == "regression" else "multiclass"
        found.append(measured(outputs, apart[0].targets.reshape(-1), kind))
    return found[0], found[1], max(abs(a - b) for a, b in zip(own.values(), rule.weights_))


def compared(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the mean difference of pairs with its standard error."""
    gains = [one - other for one, other in pairs]
    return f"{statistics.mean(gains):+.4f} ± {statistics.stdev(gains) / len(gains) ** 0.5:.4f}"


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def measure(data: str, seeds: int) -> Iterator[tuple[str, str]]:
    """Yield the rows of a data set, each with the number of its table."""
    stack, guarded, sklearn, used = list[Values](), list[Values](), list[Values](), 0
    greedy = list[tuple[Values, Values, float]]()
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "stack"
            result = train(data, seed, 0, folder)
            stack.append(ours(result))
            sklearn.append(theirs(folder))
            greedy.append(weighed(folder, result))
            result = train(data, seed, GUARDED, Path(place) / "guarded")
            guarded.append(ours(result))
            used += result["stacking"]["used"] == "stacking"
    for name in (DATA[data], "loss"):
        sides = [[found[name] for found in side] for side in (stack, guarded, sklearn)]
        cells = " | ".join(map(spread, sides))
        gains = " | ".join(compared(list(zip(side, sides[2]))) for side in sides[:2])
        yield "stack", f"| {data}, {name} | {cells} | {gains} | {used}/{seeds} |"
        pairs = [(own[name], other[name]) for own, other, _ in greedy]
        cells = " | ".join(spread(side) for side in zip(*pairs))
        yield "greedy", f"| {data}, {name} | {cells} | {compared(pairs)} | {max(apart for *_, apart in greedy):.2g} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    tables = {
        "stack": [
            "| test split | stack | guarded | scikit-learn | stack, difference | guarded, difference | stack used |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ],
        "greedy": [
            "| test split | lightkit | AutoGluon | difference ± its standard error | weights apart by at most |",
            "| --- | --- | --- | --- | --- |",
        ],
    }
    for data in options.data:
        for table, row in measure(data, options.seeds):
            tables[table].append(row)
    sys.stdout.write("\n\n".join("\n".join(rows) for rows in tables.values()) + "\n")


if __name__ == "__main__":
    main()
