"""Greedy selection: the members that together do best."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightkit.ensemble.methods.base import Engine, RunFacts
from lightkit.ensemble.methods.voting import Voting
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.weighing import weigh


class Greedy(Voting):
    """Train members as for a vote, then select with replacement those that together have the smallest loss.

    Caruana et al. 2004, https://doi.org/10.1145/1015330.1015432, on rows that no member learnt from. A member may count
    several times or not at all.

    Args:
        size: See `Method`.
        rounds: Selections at most.
        engine: See `Method`.
        slots: See `Method`.
    """

    copies = 10

    def __init__(
        self, *, size: int | None = None, rounds: int = 25, engine: Engine = "auto", slots: int | None = None
    ) -> None:
        super().__init__(size=size, weights="greedy", engine=engine, slots=slots)
        self.rounds = rounds

    def weigh(self, members: Sequence[MemberPredictions], facts: RunFacts) -> Tensor:
        """See `Method.weigh`."""
        return weigh(members, facts.task, how="greedy", rounds=self.rounds)
