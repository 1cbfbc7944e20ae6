"""What rows that nothing learnt from say: whether a stack is worth having, and whether losses contradict each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from lightkit.ensemble.combining import row_losses
from lightkit.ensemble.oof import MemberPredictions

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
        digits = _digits(self.losses[STACK], self.losses[other])
        stack, best = (f"{self.losses[name]:.{digits}f}" for name in (STACK, other))
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


def _digits(one: float, other: float) -> int:
    """Return how many decimals tell two numbers apart, two at least."""
    return next((n for n in range(2, 7) if f"{one:.{n}f}" != f"{other:.{n}f}"), 6)


def contradictions(
    views: Sequence[Sequence[Mapping[str, MemberPredictions]]], groups: Tensor | None = None
) -> list[dict[str, Any]]:
    """Compare the losses of the same models on rows of several kinds that none of them learnt from.

    Args:
        views: Of each view the models, and what each predicts by the name of the rows (`oof`, `val`, …). The loss of a
            row is the mean over the models of a view.
        groups: The group of each row of the data set; losses of a group go up and down together.

    Returns:
        For the first view with a difference beyond noise the lowest and the highest loss, and how many standard errors
        they are apart; nothing where there is none.
    """
    for models in views:
        names = dict.fromkeys(name for own in models for name in own)
        known = {name: _losses([own[name] for own in models if name in own], groups) for name in names}
        told = {name: facts for name, facts in known.items() if facts is not None}
        if len(told) < 2:
            continue
        low, high = (choose(told, key=lambda name: told[name][0]) for choose in (min, max))
        (least, error, few), (most, other, many) = told[low], told[high]
        apart = (most - least) / max(math.hypot(error, other), 1e-12)
        if apart > _ERRORS and most > _TIMES * least:
            ends = {low: (least, few), high: (most, many)}
            facts = [{"on": name, "loss": loss, "rows": rows} for name, (loss, rows) in ends.items()]
            return [{"low": facts[0], "high": facts[1], "standard_errors": apart}]
    return []


def _losses(models: Sequence[MemberPredictions], groups: Tensor | None) -> tuple[float, float, int] | None:
    """Return mean loss, its standard error and the number of rows; None of too few rows."""
    rows, losses = list[Tensor](), list[Tensor]()
    for own in models:
        there = own.take(own.predicted)
        rows.append(there.rows)
        losses.append(row_losses(there.predictions, there.targets, there.task).double())
    known, place = torch.cat(rows).unique(return_inverse=True)
    if len(known) < _LEAST:
        return None
    sums = torch.zeros(len(known), dtype=torch.float64).index_add_(0, place, torch.cat(losses))
    mean = sums / place.bincount(minlength=len(known))
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
