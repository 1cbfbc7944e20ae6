"""Adversarial training: members that learn from the inputs and from worst changes of them."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.common.errors import UserError
from lightkit.ensemble.methods.base import Engine, RunFacts, Vote, Weighed, Weights, member
from lightkit.ensemble.plan import RunMember


class Adversarial(Weighed):
    """Train members on inputs and on inputs changed by the sign of the gradient (https://arxiv.org/abs/1612.01474).

    Args:
        epsilon: Size of the change (fast gradient sign, https://arxiv.org/abs/1412.6572), above 0. Inputs lie in
            [0, 1], and so do the changed ones.
        size: See `Method`.
        vote: See `Weighed`.
        weights: See `Weighed`.
        engine: See `Method`.
        slots: See `Method`.

    Raises:
        UserError: An argument is out of its range, or there is no such choice.
    """

    def __init__(
        self,
        *,
        epsilon: float = 0.01,
        size: int | None = None,
        vote: Vote = "soft",
        weights: Weights = "uniform",
        engine: Engine = "auto",
        slots: int | None = None,
    ) -> None:
        super().__init__(size=size, vote=vote, weights=weights, engine=engine, slots=slots)
        self.epsilon = epsilon

    def check(self, facts: RunFacts) -> None:
        """See `Method.check`."""
        super().check(facts)
        if facts.inputs is None or facts.inputs[0] < 0 or facts.inputs[1] > 1:
            seen = (
                "inputs that are not in memory" if facts.inputs is None else "from {:g} to {:g}".format(*facts.inputs)
            )
            raise UserError(
                "adversarial training needs inputs in [0, 1]",
                key="data.normalize",
                received=seen,
                fix="data.normalize=minmax",
                family="ensemble",
            )

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """See `Method.members`."""
        kinds = enumerate(self.kinds(facts))
        return [member(facts, i, label, values, epsilon=self.epsilon) for i, (label, values) in kinds]
