"""Stacking: predictions as the inputs of another model.

Shapes: N rows or B samples, C classes, labels or targets, F columns of features, M networks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.data import DataInfo
from lightkit.ensemble.combining import as_probabilities
from lightkit.ensemble.module import Ensemble
from lightkit.ensemble.oof import SPLITS, MemberPredictions, aligned, in_order, pooled
from lightkit.trainer.tasks import logits

_TRAIN, _VAL, _TEST = range(len(SPLITS))
_FEWEST, _FEWEST_JUDGES = 10, 5
"""Rows at least that a meta-model of finished runs learns from, and is judged by."""


def base_predictions(folds: Sequence[MemberPredictions], refit: MemberPredictions | None = None) -> MemberPredictions:
    """Make the predictions of one base of those of its folds, averaged where several have not seen a row.

    Args:
        folds: Those of its folds and repeats.
        refit: Those of the network that learnt from all rows, and takes their place outside of the training rows.

    Raises:
        UserError: They do not belong together.
    """
    base = pooled(folds)
    if refit is None:
        return base
    inside = base.take(base.split == _TRAIN)
    outside = aligned([inside, refit.take(refit.split != _TRAIN)])
    there = outside[1].predicted
    predictions = torch.where(there[:, None], outside[1].predictions, outside[0].predictions)
    counts = torch.where(there, outside[1].counts, outside[0].counts)
    return dataclasses.replace(outside[0], predictions=predictions, counts=counts, source=refit.source)


def stack_features(predictions: Sequence[Tensor], task: str, inputs: Tensor | None = None) -> Tensor:
    """Put predictions side by side, as scikit-learn's `StackingClassifier` and `StackingRegressor` do, `(N, F)`.

    Of each base there are all classes, one column for two classes, one for each label, or the values.

    Args:
        predictions: For each base `(N, C)`: probabilities, of regression the values.
        task: Kind of target.
        inputs: `(N, ...)`: flattened behind the predictions (`passthrough`); None leaves them away.
    """
    if task == "multiclass":  # of two classes the second says it all
        predictions = [found[:, 1:] if found.shape[1] == 2 else found for found in predictions]
    return torch.cat([*predictions, *([] if inputs is None else [inputs.flatten(1).to(predictions[0].dtype)])], dim=1)


def check_rows(
    own: Sequence[MemberPredictions], learnt: Tensor, judged: Tensor, info: DataInfo, *, passthrough: bool
) -> None:
    """Refuse rows that are too few for a meta-model of finished runs to learn from, or to be judged by.

    Args:
        own: What each run predicts of rows that none of them trained on.
        learnt: The rows to learn from.
        judged: Those to judge by.
        info: Facts about the data.
        passthrough: Whether the meta-model gets the inputs of the data, too.

    Raises:
        UserError: They are too few, or lack a class.
    """
    size = math.prod(info.input_shape) if passthrough and info.input_shape else 0
    inputs = stack_features([one.predictions[:0] for one in own], info.task).shape[1] + size
    counts = f"{len(learnt)} to learn from, {len(judged)} to judge by"
    fix = "runs with a larger validation split (data.split.val), or --method voting"
    facts: dict[str, Any] = {"key": "lightkit ensemble --method stacking", "fix": fix, "family": "ensemble"}
    least = max(_FEWEST, inputs)
    if len(learnt) < least or len(judged) < _FEWEST_JUDGES:
        raise UserError(
            "too few rows that no run trained on, but those of the test split, for a meta-model",
            expected=f"{least} rows or more to learn from (it has {inputs} inputs), {_FEWEST_JUDGES} to judge by",
            received=counts,
            **facts,
        )
    if info.task == "multiclass":
        there = own[0].targets[torch.isin(own[0].rows, learnt)].reshape(-1).long().unique().tolist()
        missing = [name for number, name in enumerate(info.class_names) if number not in there]
        if missing:
            what = "the rows that no run trained on lack a class, which a meta-model would never predict"
            raise UserError(what, received=f"{counts}; none of {', '.join(missing)}", **facts)


def divided(own: MemberPredictions, judged: Tensor) -> MemberPredictions:
    """Put the rows to learn from into the training split, and those to judge by into the validation split."""
    split = torch.where(torch.isin(own.rows, judged), _VAL, _TRAIN).to(own.split.dtype)
    own = dataclasses.replace(own, split=torch.where(own.split == _TEST, own.split, split))
    return own.take(in_order(own.rows, own.split))


def feature_scaling(features: Tensor, task: str, predicted: int) -> tuple[Tensor, Tensor]:
    """Return by what features are shifted and divided, `(F,)` each; probabilities are left as they are.

    Args:
        features: `(N, F)` of the rows to learn from.
        task: Kind of target.
        predicted: How many of the columns, the first ones, are predictions.
    """
    values = features.double()
    shift, scale = values.mean(0), values.std(0, correction=0)
    constant = scale <= shift.abs() * 1e-7
    kept = torch.zeros_like(constant)
    if task != "regression":
        kept[:predicted] = True
    shift, scale = torch.where(kept, 0.0, shift), torch.where(kept | constant, 1.0, scale)
    return shift.float(), scale.float()


@dataclass(frozen=True)
class Inputs:
    """What a network takes in the place of the inputs of the data."""

    columns: Sequence[Sequence[str]]
    """For each base the networks whose mean prediction counts, by name."""
    passthrough: bool
    """Whether the inputs of the data follow."""
    shift: Sequence[float]
    """`(F,)`: is subtracted."""
    scale: Sequence[float]
    """`(F,)`: divides what is left."""

    def plain(self) -> dict[str, Any]:
        """Return this as plain values."""
        return asdict(self)


class StackedEnsemble(Ensemble):
    """An ensemble of networks of which some learnt from the predictions of others.

    Args:
        estimators: The networks, each behind those whose predictions it takes.
        task: Kind of target.
        weights: How much each counts in the end: 1 for a meta-model, 0 for what feeds it.
        names: Names of the networks.
        inputs: By name, what a network takes that does not take the inputs of the data.
    """

    def __init__(
        self,
        estimators: Sequence[nn.Module],
        *,
        task: str,
        weights: Sequence[float],
        names: Sequence[str],
        inputs: Mapping[str, Inputs],
    ) -> None:
        super().__init__(estimators, task=task, rule="soft", weights=weights, names=names)
        self.inputs = dict(inputs)
        for name, own in inputs.items():
            self.register_buffer(f"scaling{self.names.index(name)}", torch.tensor([own.shift, own.scale]))

    def outputs(self, *x: Tensor) -> Tensor:
        """Return the output of every network, `(M, B, C)`."""
        found, predictions = list[Tensor](), dict[str, Tensor]()
        for number, (name, network) in enumerate(zip(self.names, self.estimators)):
            own = logits(network(self._features(x[0], name, number, predictions)))
            found.append(own[:, None] if own.ndim == 1 else own)
            predictions[name] = as_probabilities(found[-1], self.task)
        return torch.stack(found)

    def _features(self, x: Tensor, name: str, number: int, predictions: Mapping[str, Tensor]) -> Tensor:
        """Return what a network takes in."""
        if name not in self.inputs:
            return x
        own = self.inputs[name]
        bases = [torch.stack([predictions[network] for network in base]).mean(0) for base in own.columns]
        shift, scale = self.get_buffer(f"scaling{number}")
        return (stack_features(bases, self.task, x if own.passthrough else None) - shift) / scale
