"""Estimators of scikit-learn over a composed configuration: `from lightkit.sklearn import Classifier, Regressor`.

Shapes: N rows, `...` the shape of one input, C classes, K targets.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from lightkit.assembly.ensemble import is_ensemble
from lightkit.assembly.origin import preprocessing_of
from lightkit.config import compose
from lightkit.data.memory import held, holding
from lightkit.data.sources import kept_generators
from lightkit.data.tensors import DataInfo, TensorData
from lightkit.runner import Runner
from lightkit.runner.evaluation import load_weights
from lightkit.runner.fit import Observer
from lightkit.runner.predictor import load
from lightkit.runner.program import Whole
from lightkit.trainer.learner import Learner

EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": "other rows come in another order, in other steps",
}
"""Checks of scikit-learn's `check_estimator` that do not hold, with the reason."""
_USUAL = {
    "data": "custom",
    "data.dataset._target_": f"{held.__module__}.{held.__qualname__}",
    "data.normalize": "standard",
    "data.split.val": "0",
    "data.split.test": "0",
    "metrics": "none",
    "trainer.test": "none",
    "logger": "quiet",
}
"""What a fit has where nothing else is given: all rows train, and the last weights count."""
_ALONE = Lock()
"""Held while a fit lasts: random numbers and the standard output are those of the whole process."""
_AT_ONCE = 1024
"""Rows that are predicted at once."""


class _Estimator(BaseEstimator):
    """What both estimators share: parameters that are keys of the configuration, and a run in a folder for the time."""

    loss: ClassVar[str]

    def __init__(
        self, *words: str, overrides: Sequence[str] = (), values: Mapping[str, Any] | None = None, **keys: Any
    ) -> None:
        self.overrides = (*words, *overrides) if words else overrides
        # Of another type they are refused by `fit`, as scikit-learn wants it.
        named = values if isinstance(values, Mapping) else {} if values is None else {"values": values}
        self.values = {**named, **keys}

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return ["overrides"]  # for scikit-learn, which refuses `*words`

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name: `overrides`, and each key that was given."""
        del deep  # no parameter is an estimator
        return {"overrides": self.overrides, **self.values}

    def set_params(self, **params: Any) -> _Estimator:
        """Set parameters: `overrides`, or any key, with dots or with `__` for them. `fit` judges them."""
        self.overrides = params.pop("overrides", self.overrides)
        self.values = {**self.values, **params}
        return self

    def _words(self) -> tuple[list[str], bool]:
        """Return the overrides of a fit, and whether it holds rows out for validation."""
        values = (f"{name.replace('__', '.')}={_typed(value)}" for name, value in self.values.items())
        typed = [*self.overrides, *values]
        given = {text.lstrip("+~").partition("=")[0]: text.partition("=")[2] for text in typed}
        validates = given.get("data.split.val", "0") not in ("0", "0.0")
        usual = {**_USUAL, "loss": self.loss, "metrics.monitor": "val/loss" if validates else "train/loss"}
        usual |= {} if validates else {"checkpoint.every_epochs": "null"}
        return [*(f"{key}={text}" for key, text in usual.items() if key not in given), *typed], validates

    def _train(self, x: np.ndarray, y: Tensor, info: DataInfo, sample_weight: Any) -> None:
        """Train the network, or the ensemble, and keep it with what is done to inputs."""
        words, validates = self._words()
        data, inputs = None, torch.tensor(x)
        if sample_weight is not None:
            weight = torch.tensor(_check_sample_weight(sample_weight, x, dtype=np.float32))
            counts = weight > 0
            data = TensorData(inputs[counts], y[counts], info, weights=weight[counts])
        looker = _Keeper()
        with (
            _ALONE,
            kept_generators(),
            TemporaryDirectory(prefix="lightkit-") as place,
            redirect_stdout(io.StringIO()),
            holding(data or TensorData(inputs, y, info)),
        ):
            folder, cfg = Path(place) / "run", compose(words).cfg
            Runner(cfg, folder, observer=looker, on_end=False).run()
            if is_ensemble(folder):
                found = load(folder)
                self.module_ = Whole(found.network, found.preprocessing).eval()
            else:
                load_weights(looker.learner, "best" if validates else "last", folder)
                self.module_ = Whole(looker.learner.model.cpu(), preprocessing_of(looker.learner.data)).eval()

    def _outputs(self, X: Any) -> np.ndarray:
        """Return what the network predicts of rows, `(N, C)`."""
        check_is_fitted(self)
        x = torch.tensor(validate_data(self, X, dtype=np.float32, allow_nd=True, reset=False))
        with torch.no_grad():
            return torch.cat([self.module_(part) for part in x.split(_AT_ONCE)]).double().numpy()


class Classifier(ClassifierMixin, _Estimator):
    """A classifier that any configuration trains.

    Nothing is written but into a temporary folder. All rows train, and the last weights count, unless
    `data.split.val` holds some out: then the best weights do.

    Args:
        *words: Overrides as on the command line, such as `"model=mlp"`.
        overrides: The same as a list.
        values: Values by key, such as `{"optim.lr": 0.01}`.
        **keys: The same, with `__` for dots: `trainer__epochs=5`.

    Example:
        ```python
        GridSearchCV(Classifier(model="mlp", trainer__epochs=20), {"optim__lr": [1e-3, 1e-2]}).fit(X, y)
        ```
    """

    loss = "cross_entropy"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Train on rows `(N, ...)` and their classes `(N,)`, of any type.

        Args:
            X: Inputs: an array or a data frame of numbers.
            y: Classes.
            sample_weight: How much each row counts, `(N,)`; None counts all the same.

        Raises:
            ValueError: These are no rows and classes, or the configuration is wrong (`lightkit.UserError`).
        """
        X, y = validate_data(self, X, y, dtype=np.float32, allow_nd=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("a classifier needs rows of 2 classes or more, and there is one class only")
        info = DataInfo("multiclass", X.shape[1:], len(self.classes_), tuple(map(str, self.classes_)))
        self._train(X, torch.from_numpy(codes), info, sample_weight)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, `(N, C)`, in the order of `classes_`."""
        found = self._outputs(X)
        return found / found.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, `(N,)`."""
        chosen = self._outputs(X).argmax(1)
        return self.classes_[chosen]


class Regressor(RegressorMixin, _Estimator):
    """A regressor that any configuration trains, on targets with mean 0 and deviation 1; see `Classifier`.

    Args:
        *words: Overrides as on the command line, such as `"model=mlp"`.
        overrides: The same as a list.
        values: Values by key, such as `{"optim.lr": 0.01}`.
        **keys: The same, with `__` for dots: `trainer__epochs=5`.
    """

    loss = "mse"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Train on rows `(N, ...)` and their targets `(N,)` or `(N, K)`; see `Classifier.fit`."""
        X, y = validate_data(self, X, y, dtype=np.float32, allow_nd=True, multi_output=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        self.center_ = np.average(y, axis=0, weights=weights)
        spread = np.sqrt(np.average((y - self.center_) ** 2, axis=0, weights=weights))
        self.spread_ = np.where(spread > 0, spread, 1.0)
        scaled = torch.from_numpy((y - self.center_) / self.spread_).float()
        self._train(X, scaled, DataInfo("regression", X.shape[1:], y.shape[1] if y.ndim > 1 else 1), sample_weight)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the values of each row, `(N,)` or `(N, K)`, as they were fitted."""
        found = self._outputs(X)
        return (found if self.center_.ndim else found[:, 0]) * self.spread_ + self.center_


class _Keeper(Observer):
    """Keeps the model that a run trains."""

    learner: Learner

    def watch(self, learner: Learner) -> Learner:
        """See `Observer.watch`."""
        self.learner = learner
        return learner


def _typed(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_typed, value))}]"
    return "null" if value is None else repr(value) if isinstance(value, float) else str(value)
