"""Stacking: predictions as the inputs of another model.

Shapes: N rows or B samples, C classes, labels or targets, F columns of features, M networks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.data import DataInfo
from lightkit.ensemble.combining import as_probabilities, row_losses
from lightkit.ensemble.module import Ensemble
from lightkit.ensemble.oof import KINDS, SPLITS, MemberPredictions, aligned, in_order, pooled
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


STACK, GREEDY, UNIFORM = "stacking", "greedy", "uniform"
_SPOKEN = {STACK: "the stack", GREEDY: "greedy weights", UNIFORM: "the plain mean"}
_ERRORS = 4.0
"""Standard errors from which a difference is no chance."""
_TIMES = 1.5
"""How many times a loss has to be another one to be spoken of."""
_LEAST = 10
"""Rows of a split below which it says nothing."""
_MEANT = {
    "oof": "training rows left out (oof)",
    "holdout": "rows held out (holdout)",
    "val": "validation rows",
    "test": "test rows",
}


@dataclass(frozen=True)
class Decision:
    """What a stack is worth on rows that nothing saw.

    Args:
        chosen: `stacking`, `greedy` or `uniform`.
        losses: The mean loss of each of them.
        error: Standard error of the difference between the stack and the better of the others.
        rows: How many rows decided.
        share: What part of the training rows they are.
    """

    chosen: str
    losses: Mapping[str, float]
    error: float
    rows: int
    share: float

    def record(self) -> dict[str, Any]:
        """Return what is written down of it."""
        held = {"rows": self.rows, "losses": dict(self.losses), "standard_error": self.error}
        return {"why": self.sentence(), "holdout": held}

    def line(self) -> str:
        """Return the losses as a line below the table."""
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in self.losses.items())
        return f"held out  used: {self.chosen}; loss of {self.rows} rows that nothing saw: {losses}"

    def sentence(self) -> str:
        """Say what was decided, and by what."""
        rest = min((name for name in self.losses if name != STACK), key=self.losses.__getitem__)
        other = rest if self.chosen == STACK else self.chosen
        share = Fraction(self.share).limit_denominator(100)
        where = f"on {share} of the rows that nothing saw"
        losses = self.losses[STACK], self.losses[other]
        digits = next((n for n in range(2, 7) if len({f"{loss:.{n}f}" for loss in losses}) > 1), 6)
        stack, best = (f"{loss:.{digits}f}" for loss in losses)
        do = "do" if other == GREEDY else "does"
        if self.chosen == STACK:
            return f"stacking is used: it does better than {_SPOKEN[other]} {where}: {stack} against {best}"
        if self.losses[other] <= self.losses[STACK]:
            return f"stacking is not used: {_SPOKEN[other]} {do} better {where}: {best} against {stack}"
        spread = f"{best} against {stack} ± {self.error:.{digits}f}"
        return f"stacking is not used: {_SPOKEN[other]} {do} as well {where}, but for chance: {spread}"


def judge(
    candidates: Mapping[str, Tensor], targets: Tensor, task: str, *, share: float = 0.0, groups: Tensor | None = None
) -> Decision:
    """Decide by rows that nothing saw whether a stack is used, or weights.

    The losses are those of single rows: negative log-likelihood, or squared error. Weights that were selected give way
    to equal ones where these are better by more than a standard error. The stack has to be better than what is left
    by half of one: the leaks that this guards against make it worse by several.

    Args:
        candidates: Predictions `(N, C)` of `stacking`, `greedy` and `uniform`.
        targets: `(N, ...)`.
        task: Kind of target.
        share: What part of the training rows these are, for the record.
        groups: `(N,)`: the group of each row, whose losses go up and down together; None where there are none.
    """
    losses = {name: row_losses(found, targets, task) for name, found in candidates.items()}

    def gain(before: str, after: str, *, errors: float) -> float:
        saved = losses[before] - losses[after]
        return float(saved.mean()) - errors * standard_error(saved, groups)

    rest = UNIFORM if gain(GREEDY, UNIFORM, errors=1.0) > 0 else GREEDY
    chosen = STACK if gain(rest, STACK, errors=STRICTNESS) > 0 else rest
    means = {name: float(loss.mean()) for name, loss in losses.items()}
    return Decision(chosen, means, standard_error(losses[rest] - losses[STACK], groups), len(targets), share)


STRICTNESS = 0.5
"""By how many standard errors a stack has to be better than weights."""


def standard_error(values: Tensor, groups: Tensor | None = None) -> float:
    """Return the standard error of the mean of values, `(N,)`; infinite where nearly all are of one group.

    Args:
        values: Those of single rows.
        groups: `(N,)`: the group of each; values of one group count as depending on each other.
    """
    if groups is None:
        return float(values.std()) / math.sqrt(len(values))
    unit = groups.unique(return_inverse=True)[1]
    sizes = unit.bincount().double()
    count = float(sizes.sum().square() / sizes.square().sum())  # as many groups of the same size say as much
    if count < 2:
        return math.inf
    sums = torch.zeros(len(sizes), dtype=values.dtype).index_add_(0, unit, values - values.mean())
    return math.sqrt(float(sums.square().sum()) * count / (count - 1)) / len(values)


def contradictions(
    views: Sequence[Sequence[MemberPredictions]], groups: Tensor | None = None, apart: Tensor | None = None
) -> list[dict[str, Any]]:
    """Compare the losses of the same models on rows of several kinds that none of them learnt from.

    Args:
        views: Of each view what the models predict. The loss of a row is the mean over the models of a view.
        groups: The group of each row of the data set; losses of a group go up and down together.
        apart: See `MemberPredictions.by_rows`, whose kinds of rows these are.

    Returns:
        For the first view with a difference beyond noise the lowest and the highest loss, and how many standard errors
        they are apart; nothing where there is none.
    """
    for models in views:
        there = [own.take(own.predicted) for own in models]
        losses = torch.cat([row_losses(own.predictions, own.targets, own.task).double() for own in there])
        kinds, rows = torch.cat([own.kinds(apart) for own in there]), torch.cat([own.rows for own in there])
        known = {name: _mean_loss(rows[kinds == n], losses[kinds == n], groups) for n, name in enumerate(KINDS)}
        told = {name: facts for name, facts in known.items() if facts is not None}
        if len(told) < 2:
            continue
        low, high = (choose(told, key=lambda name: told[name][0]) for choose in (min, max))
        (least, error, few), (most, other, many) = told[low], told[high]
        errors = (most - least) / max(math.hypot(error, other), 1e-12)
        if errors > _ERRORS and most > _TIMES * least:
            ends = {low: (least, few), high: (most, many)}
            facts = [{"on": name, "loss": loss, "rows": count} for name, (loss, count) in ends.items()]
            return [{"low": facts[0], "high": facts[1], "standard_errors": errors}]
    return []


def _mean_loss(rows: Tensor, losses: Tensor, groups: Tensor | None) -> tuple[float, float, int] | None:
    """Return the mean of the losses of rows, its standard error and the number of rows; None of too few rows."""
    known = (counts := rows.bincount()).nonzero()[:, 0]
    if len(known) < _LEAST:
        return None
    sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, rows, losses)
    mean = (sums / counts)[known]
    error = standard_error(mean, None if groups is None else groups[known])
    return (float(mean.mean()), error, len(known)) if math.isfinite(error) else None


def contradiction_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which losses contradict each other, and what that usually comes from."""
    said = []
    for one in found:
        low, high = one["low"], one["high"]
        digits = next((n for n in range(3, 7) if round(low["loss"], n)), 6)
        said += [
            f"warning     losses contradict each other: {low['loss']:.{digits}f} on {_MEANT[low['on']]}, "
            f"{high['loss']:.{digits}f} on {_MEANT[high['on']]}, {one['standard_errors']:.0f} standard errors apart",
            f"            values on {_MEANT[low['on']]} may be too good: rows like them (near copies, one person, one "
            "moment) may have been learnt from; name what such rows share by data.split.groups",
        ]
    return said
