"""Methods that train all networks together, as one: fusion and soft gradient boosting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from lightkit.ensemble.methods.base import Method, OneEngine, RunFacts, member
from lightkit.ensemble.plan import RunMember


class Fusion(Method):
    """Train one network that is the mean of the outputs of several.

    Args:
        size: Number of networks.
        engine: See `Method`.
    """

    joint: Literal["fusion", "soft_gradient_boosting"] = "fusion"

    def __init__(self, *, size: int = 5, engine: OneEngine = "sequential") -> None:
        super().__init__(size=size, engine=engine)

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """See `Method.members`."""
        return [member(facts, 0, self.joint, joint=self.joint, networks=self.size)]


class SoftGradientBoosting(Fusion):
    """Train all rounds of a boosting together: each network learns what the sum of those before it leaves.

    Feng et al. 2020, https://arxiv.org/abs/2006.04059.

    Args:
        size: Number of networks.
        shrinkage: Factor of every network in the sum.
        engine: See `Method`.
    """

    tasks = ("multiclass", "binary", "regression")
    joint = "soft_gradient_boosting"

    def __init__(self, *, size: int = 5, shrinkage: float = 1.0, engine: OneEngine = "sequential") -> None:
        super().__init__(size=size, engine=engine)
        self.shrinkage = shrinkage

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """See `Method.members`."""
        role: dict[str, Any] = {"joint": self.joint, "networks": self.size, "shrinkage": self.shrinkage}
        return [member(facts, 0, self.joint, **role)]
