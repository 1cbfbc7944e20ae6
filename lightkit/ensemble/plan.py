"""Which models a run trains: all at once that need nothing of each other, or one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from lightkit.ensemble.oof import MemberPredictions


@dataclass(frozen=True)
class RunMember:
    """One model of a run, and how its configuration differs from that of the others."""

    name: str = ""
    """Name of its folder below `members/`; empty where the run trains one model, in its own folder."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by key, such as `{"seed": 3, "optim.lr": 0.01}`; a node takes the place of the node that was there. Those
    of `data` are the same for all members."""


@dataclass(frozen=True)
class MemberResult:
    """A member that is trained."""

    member: RunMember
    """Which one."""
    folder: Path
    """Its run folder."""
    result: Mapping[str, Any]
    """The content of its `result.json`."""
    predictions: MemberPredictions | None = field(default=None, repr=False, compare=False)
    """What it predicts of rows that it did not learn from, where that need not be read from its folder."""
    weights: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)
    """The weights that count, by the model's names, where they need not be read from its folder."""


class RunPlan(Protocol):
    """Decides what is trained next, knowing what was trained before: members of a vote, folds, rounds of boosting.

    A resumed run asks anew from the beginning, so that the answers have to follow from what is done.
    """

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """Return all models that can be trained now, none of which needs another of them; none once all are trained.

        Args:
            done: The members trained so far, in their order.
        """

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """Return the result of the run, for its `result.json`.

        Args:
            done: All members.
        """


class OneModel:
    """The plain run: a plan of one."""

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`."""
        return [] if done else [RunMember()]

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """See `RunPlan.combine`."""
        return dict(done[0].result)
