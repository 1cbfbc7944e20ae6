"""Voting: networks that differ in their seed, or of different kinds, each trained on all rows."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.ensemble.methods.base import RunFacts, Weighed, member
from lightkit.ensemble.plan import RunMember


class Voting(Weighed):
    """Train members on all rows and let them vote (deep ensembles: https://arxiv.org/abs/1612.01474).

    The arguments are those of `Weighed`.
    """

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """See `Method.members`."""
        return [member(facts, i, label, values) for i, (label, values) in enumerate(self.kinds(facts))]
