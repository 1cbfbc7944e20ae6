"""How far probabilities can be believed: log-likelihood, calibration error, temperature scaling.

Ensembles are compared by their log-likelihood *after* temperature scaling, as otherwise the temperature that training
happened to end with decides (https://arxiv.org/abs/2002.06470). Of regression the variance of a normal distribution
around the prediction has the part of the temperature.

Predictions are `(N, C)`: N rows, C classes, labels or targets; probabilities, of regression the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.ensemble.combining import as_logits, log_likelihood, off_limits, soft, subsets

_COLDEST, _HOTTEST = 0.1, 1e2
"""Limits of a temperature: where all rows to fit on are right, none would be cold enough."""
_SINGLES = 20
"""Single networks at most whose mean stands for one network."""
_PARTS = 5
"""Parts of the rows for which it is tried whether a temperature helps that was fitted on the others."""
_HALVINGS = 5
"""How often rows are cut into halves where no other rows are there to fit a temperature on."""
_ELEMENTS = 1 << 20
"""Probabilities that are scaled at once at most, unless those of one ensemble are more."""


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: what was claimed and what came true, by bins of equal width.

    Args:
        edges: `(B + 1,)`: the limits of the bins; a value on one belongs to the lower bin.
        confidence: `(B,)`: mean probability in each bin, NaN in an empty one.
        accuracy: `(B,)`: share of it that was true, NaN in an empty one.
        counts: `(B,)`: predictions in each bin.
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    counts: Tensor

    @property
    def error(self) -> float:
        """The expected calibration error (ECE): the mean distance, weighted by the counts."""
        distance = (self.confidence - self.accuracy).abs().nan_to_num(0.0)
        return float((distance * self.counts).sum() / self.counts.sum())


def reliability(predictions: Tensor, targets: Tensor, task: str, *, bins: int = 15) -> Reliability:
    """Compare claimed probabilities with shares: of the decided class, or of binary and multilabel of every label.

    Rows that nobody predicted (NaN) are left out.

    Raises:
        UserError: The task is regression, or there are no bins.
    """
    if task == "regression":
        raise UserError("only probabilities can be calibrated", argument="task", received=task)
    check_range("bins", bins, low=1)
    known = ~predictions.isnan().any(1)
    chance, truth = predictions[known].double(), targets[known]
    if task == "multiclass":
        chance, decided = chance.max(1)
        right = decided == truth.reshape(-1)
    else:
        chance, right = chance.reshape(-1), truth.reshape(-1) > 0.5
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    place = torch.bucketize(chance, edges[1:-1])
    counts = place.bincount(minlength=bins)
    claimed = place.bincount(chance, minlength=bins) / counts
    return Reliability(edges, claimed, place.bincount(right.double(), minlength=bins) / counts, counts)


def fit_temperature(predictions: Tensor, targets: Tensor, task: str) -> float:
    """Find the temperature that makes the rows most likely: above 1 where the predictions are too sure of themselves.

    The log-likelihood is concave in the inverse of the temperature, so that Newton's method inside of a bracket finds
    its one maximum, between 0.1 and 100. It is looked for over the temperature itself, where it takes fewer steps.
    """
    return float(_temperatures(predictions[None], targets, task)[0])


def _temperatures(predictions: Tensor, targets: Tensor, task: str, fitted: Tensor | None = None) -> Tensor:
    """Find the temperatures of `(S, N, C)` at once, `(S,)` float64, or of `(1, N, C)` for several choices `(S, N)`."""
    logits, truth = as_logits(off_limits(predictions), task), targets.reshape(-1)
    fitted = torch.ones(logits.shape[:2]) if fitted is None else fitted
    if task == "multiclass":
        logits = logits.movedim(-1, 0).contiguous()  # sums over the first dimension are the fast ones
    else:  # a label is a row of two classes
        fitted, truth = fitted.repeat_interleave(logits.shape[-1], 1), truth > 0.5
        logits = torch.stack([torch.zeros_like(logits), logits]).flatten(2)
    excess = logits - logits.gather(0, truth.long().expand(1, *logits.shape[1:]))

    def derivatives(inverse: Tensor) -> tuple[Tensor, Tensor]:
        share = (excess * inverse[:, None]).exp_()  # how much each class has of what the true one has
        total, share = share.sum(0), share.mul_(excess)
        slope, square = share.sum(0) / total, share.mul_(excess).sum(0) / total
        return (slope * fitted).sum(1), ((square - slope.square()) * fitted).sum(1)

    inverse = torch.ones(len(fitted), dtype=torch.float64)
    low, high, (gradient, curvature) = inverse / _HOTTEST, inverse / _COLDEST, derivatives(inverse)
    end = torch.where(gradient < 0, high, low)
    beyond = derivatives(end)[0] * gradient > 0
    inverse, left = torch.where(beyond, end, inverse), ~beyond & (gradient != 0)
    for _ in range(60):
        low, high = torch.where(gradient < 0, inverse, low), torch.where(gradient < 0, high, inverse)
        step = inverse / (1 + gradient / (curvature * inverse))  # a straight line over the temperature
        inside = (low < step) & (step < high)
        before, inverse = inverse, torch.where(left, torch.where(inside, step, (low * high).sqrt()), inverse)
        # Of Newton's method what is left is about the square of the step.
        left = left & ~(inside & ((inverse - before).abs() <= 1e-4 * before))
        if not left.any():
            break
        gradient, curvature = derivatives(inverse)
        left = left & (gradient != 0)
    return 1 / inverse


def useful_temperature(predictions: Tensor, targets: Tensor, task: str, *, seed: int = 0) -> float:
    """Fit a temperature, and take it only where temperatures help on rows that they were not fitted on; else 1.

    The rows are cut into parts; the temperature that is fitted on the others has to make the rows of a part more
    likely, in the mean over all rows and by more than chance (a one-sided t-test at 5 %). So a few rows rarely change
    anything.

    Args:
        predictions: `(N, C)`.
        targets: `(N, ...)`.
        task: Kind of targets.
        seed: Seed of the parts.
    """
    count = len(targets)
    if count < 2:
        return 1.0
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, "temperature")))
    held = torch.zeros(_PARTS + 1, count, dtype=torch.bool)  # of the last one none
    for own, part in zip(held, order.tensor_split(_PARTS)):
        own[part] = True
    temperatures = _temperatures(predictions[None], targets, task, ~held)
    scaled = with_temperature(predictions, (temperatures @ held.double())[:, None], task)
    gain = log_likelihood(scaled, targets, task) - log_likelihood(predictions, targets, task)
    # The 95 % quantile of Student's t, by its expansion around that of the normal distribution.
    quantile = 1.645 + 1.524 / (count - 1) + 1.42 / (count - 1) ** 2
    helps = float(gain.mean()) > quantile * float(gain.std()) / math.sqrt(count)
    return float(temperatures[-1]) if helps else 1.0


def with_temperature(predictions: Tensor, temperature: float | Tensor, task: str) -> Tensor:
    """Scale the logits of probabilities `(..., C)` by a temperature, or one for each; 1 changes nothing."""
    logits = as_logits(off_limits(predictions), task) / temperature
    # Over the last dimension the softmax of few classes takes long.
    scaled = logits.movedim(-1, 0).softmax(0).movedim(0, -1) if task == "multiclass" else logits.sigmoid()
    return scaled.to(predictions.dtype)


def calibrated_log_likelihood(
    predictions: Tensor, targets: Tensor, task: str, *, fitting: Tensor | None = None, seed: int = 0
) -> float:
    """Measure the mean log-likelihood of rows after a temperature was fitted on others.

    Of regression it is that of a normal distribution with the variance of the other rows' errors, per target.

    Args:
        predictions: `(N, C)`; rows with NaN are left out.
        targets: `(N, ...)`.
        task: Kind of targets.
        fitting: `(N,)` bool: the rows to fit on, such as those of the validation split; all others are measured. None
            cuts the rows into random halves, each for the other, five times, and takes the mean.
        seed: Seed of the halves.

    Raises:
        UserError: No row is left to fit on, or to measure.
    """
    known = (~predictions.isnan().any(1)).nonzero().reshape(-1)
    (value,) = _calibrated(predictions[None], targets, task, _parts(known, fitting, seed))
    return value


def _calibrated(predictions: Tensor, targets: Tensor, task: str, parts: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
    """Measure the mean calibrated log-likelihood of several predictions `(S, N, C)` of the same rows."""
    values = []
    for fitted, measured in parts:
        if not len(fitted) or not len(measured):
            what = "a calibrated log-likelihood needs rows to fit on, and others to measure"
            raise UserError(what, argument="fitting", received=f"{len(fitted)} and {len(measured)} rows")
        if task == "regression":
            errors = (predictions.double() - targets.reshape(predictions.shape[1:]).double()).square()
            variance = errors[:, fitted].mean(1, keepdim=True).clamp_min(1e-30)
            likelihood = -0.5 * (torch.log(2 * torch.pi * variance) + errors[:, measured] / variance)
            values.append(likelihood.mean((1, 2)).tolist())
            continue
        temperatures = _temperatures(predictions.index_select(1, fitted), targets[fitted], task)
        scaled = with_temperature(predictions.index_select(1, measured), temperatures[:, None, None], task)
        values.append(log_likelihood(scaled, targets[measured], task).mean(1).tolist())
    return [math.fsum(column) / len(column) for column in zip(*values)]


def independent_networks(
    members: Tensor,
    ensemble: Tensor,
    targets: Tensor,
    task: str,
    *,
    fitting: Tensor | None = None,
    draws: int = 20,
    seed: int = 0,
) -> float:
    """Tell how many independent networks an ensemble is worth: the deep ensemble equivalent, to a fraction of one.

    It is the smallest size at which the mean calibrated log-likelihood of random subsets of independent networks
    reaches that of the ensemble, interpolated between sizes (https://arxiv.org/abs/2002.06470).

    Args:
        members: `(M, N, C)`: predictions of networks that were trained on their own. Rows that one lacks are left out.
        ensemble: `(N, C)`: predictions of what is to be judged.
        targets: `(N, ...)`.
        task: Kind of targets.
        fitting: `(N,)` bool: see `calibrated_log_likelihood`.
        draws: Most subsets of a size.
        seed: Seed of the subsets.

    Returns:
        1 where it is no better than one network, infinity where it is better than all the members together.

    Raises:
        UserError: No row is left to fit on, or to measure.
    """
    known = ~(members.isnan().any(-1).any(0) | ensemble.isnan().any(1))
    members, targets, ensemble = members[:, known], targets[known], ensemble[known]
    fitting = fitting[known] if fitting is not None else None

    parts = list(_parts(torch.arange(len(targets)), fitting, seed))

    @cache
    def reached(size: int) -> float:
        most = min(len(members), max(draws, _SINGLES)) if size == 1 else draws
        chosen, values = subsets(len(members), size, draws=most, seed=seed), list[float]()
        block = max(1, _ELEMENTS // max(1, size * ensemble.numel()))
        for first in range(0, len(chosen), block):
            # With the bits of the ensemble itself, which all members together have to reach.
            places = torch.tensor(chosen[first : first + block]).T
            together = soft(members.index_select(0, places.flatten()).unflatten(0, places.shape))
            values += _calibrated(together, targets, task, parts)
        return math.fsum(values) / len(values)

    (aim,) = _calibrated(ensemble[None], targets, task, parts)
    low, high = 1, len(members)
    if reached(1) >= aim - 1e-12:
        return 1.0
    if reached(high) < aim - 1e-12:
        return math.inf
    while high - low > 1:  # more networks are better, in the mean
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= aim - 1e-12 else (middle, high)
    return low + min(1.0, (aim - reached(low)) / (reached(high) - reached(low)))


def _parts(known: Tensor, fitting: Tensor | None, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows to fit on and those to measure."""
    if fitting is not None:
        yield known[fitting[known]], known[~fitting[known]]
        return
    generator = torch.Generator().manual_seed(mix(seed, "halves"))
    for _ in range(_HALVINGS):
        order = known[torch.randperm(len(known), generator=generator)]
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        yield first, second
        yield second, first
