"""A metric that is a function of all predictions of a split, such as those of `sklearn.metrics`.

Shapes: N samples, C classes or labels, `...` further dimensions such as pixels or positions in a text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightkit.common.errors import UserError
from lightkit.metrics.results import convert

Kind = Literal["labels", "probabilities", "scores"]


class Function(Metric):
    """What a function makes of all targets and predictions of a split at once.

    The function is called once, with arrays of NumPy (with tensors where it says so in its annotations): the targets
    first as in `sklearn.metrics`, or the predictions first where its first argument is called so (`preds`, `y_pred`,
    `output`).

    - `labels`: the most likely class; 0 or 1 of each label; of regression the value.
    - `probabilities`: `(N, C)`; of two classes, and of one yes or no, that of the second, `(N,)`.
    - `scores`: outputs of the model as they are, in the same shapes.

    Args:
        function: The function; in a configuration its dotted path.
        takes: What it takes. By default this follows from the name of its argument: `y_score` and `y_proba` are
            probabilities, `pred_decision` scores, and anything else is labels.
        task: Kind of the targets; it comes from the data.
        **arguments: Further arguments of the function.

    Raises:
        UserError: There is no such function, or it does not take targets and predictions.
    """

    full_state_update = False
    higher_is_better = None
    preds: Any
    target: Any

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        takes: Literal["labels", "probabilities", "scores"] | None = None,
        task: str = "custom",
        **arguments: Any,
    ) -> None:
        super().__init__()
        first, second = _parameters(function)
        names = f"{first.name} {second.name}"
        by_name: Kind = "probabilities" if "scor" in names or "prob" in names else "labels"
        self.takes, self.task = takes or ("scores" if "decision" in names else by_name), task
        self._call = partial(function, **arguments)
        self._reversed = any(word in first.name for word in ("pred", "output", "score", "prob", "input"))
        self._takes_tensors = "Tensor" in f"{first.annotation}{second.annotation}"
        self.add_state("preds", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep a batch.

        Args:
            preds: Outputs of the model, `(N, ...)`, `(N, C, ...)`, or of a language model `(N, ..., C)`.
            target: Targets.
        """
        found, target = _AS.get(self.task, _by_shape)(preds, target, self.takes)
        self.preds.append(found)
        self.target.append(target)

    def compute(self) -> Any:
        """Return what the function gives, numbers as tensors."""
        given: list[Any] = [dim_zero_cat(self.target), dim_zero_cat(self.preds)]
        given = given if self._takes_tensors else [value.cpu().numpy() for value in given]
        return _as_tensors(self._call(*(reversed(given) if self._reversed else given)))


def _parameters(function: Any) -> tuple[inspect.Parameter, inspect.Parameter]:
    """Return the first two arguments of a function."""
    if not callable(function):
        expected = "the dotted path of a function, such as sklearn.metrics.fbeta_score"
        raise UserError("not a function", argument="function", expected=expected, received=function)
    try:
        listed = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # compiled code says nothing of itself
        listed = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("target", "labels")]
    taken = [item for item in listed if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    if len(taken) < 2:
        named = function.func if isinstance(function, partial) else function
        received = f"{getattr(named, '__name__', type(named).__name__)}({', '.join(map(str, listed))})"
        expected = "a function of targets and predictions"
        raise UserError("it does not take both", argument="function", expected=expected, received=received)
    return taken[0], taken[1]


def _classes(preds: Tensor, target: Tensor, takes: Kind) -> tuple[Tensor, Tensor]:
    """Convert outputs `(N, C, ...)` and classes `(N, ...)`, or shares of classes `(N, C, ...)`.

    Classes below 0 count for nothing, and are left out.
    """
    if target.is_floating_point() and target.shape == preds.shape:
        target = target.argmax(1)
    each, target = preds.movedim(1, -1).flatten(0, -2), target.flatten()
    each, target = each[target >= 0], target[target >= 0]
    if takes == "labels":
        return each.argmax(1), target
    if takes == "probabilities":
        each = each.double().softmax(1)
    elif each.shape[1] == 2:
        each = each.diff(dim=1).expand(-1, 2)  # of two scores only the difference counts
    return each[:, 1] if each.shape[1] == 2 else each, target


def _labels(preds: Tensor, target: Tensor, takes: Kind) -> tuple[Tensor, Tensor]:
    """Convert outputs for yes and no, and 0 or 1, `(N, ...)` both."""
    target = (target > 0.5).long()
    chances = preds.double().sigmoid()
    return {"labels": (preds > 0).long(), "probabilities": chances, "scores": preds}[takes], target


def _by_shape(preds: Tensor, target: Tensor, takes: Kind) -> tuple[Tensor, Tensor]:
    """Convert the outputs of a task of one's own: there are classes where they have a dimension more than targets."""
    is_of_classes = preds.ndim > target.ndim and not target.is_floating_point()
    return _classes(preds, target, takes) if is_of_classes else convert("regression", preds, target)


_AS: Mapping[str, Callable[[Tensor, Tensor, Kind], tuple[Tensor, Tensor]]] = {
    "multiclass": _classes,
    "language_modeling": lambda preds, target, takes: _classes(preds.movedim(-1, 1), target, takes),
    "binary": lambda preds, target, takes: _labels(preds.flatten(), target.flatten(), takes),
    "multilabel": _labels,
    "regression": lambda preds, target, _takes: convert("regression", preds, target),
}
"""By the kind of targets: the conversion of outputs and targets to what a function takes."""


def _as_tensors(result: Any) -> Any:
    """Return a result with its numbers and arrays as tensors, in double precision."""
    listed = result if isinstance(result, (list, tuple)) else [result]
    if isinstance(result, np.ndarray) or all(isinstance(one, (float, np.generic)) for one in listed):
        return torch.from_numpy(np.asarray(result))
    if isinstance(result, Mapping):
        return {name: _as_tensors(value) for name, value in result.items()}
    return result
