"""Which models a run trains, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightkit.trainer.learner import Learner


@dataclass(frozen=True)
class Member:
    """One model of a run."""

    name: str = ""
    """Name among the models of the run; empty where there is only one."""


class Plan(Protocol):
    """Decides what is trained next, knowing what was trained before: members of a vote, folds, rounds of boosting."""

    def next(self, done: Sequence[Learner]) -> Member | None:
        """Return the model to train next; None once all are trained.

        Args:
            done: The models trained so far, in their order.
        """


class OneModel:
    """The plain run: a plan of one."""

    def next(self, done: Sequence[Learner]) -> Member | None:
        """See `Plan.next`."""
        return None if done else Member()
