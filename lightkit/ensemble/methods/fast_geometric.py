"""Fast geometric ensembles: short cycles of the rate after a whole run."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.common.errors import UserError
from lightkit.ensemble.methods.base import Method, OneEngine, RunFacts, member
from lightkit.ensemble.plan import MemberResult, RunMember


class FastGeometric(Method):
    """Train a run, then go on in short cycles of a rate that rises and falls; keep the network at the end of each.

    Garipov et al. 2018, https://arxiv.org/abs/1802.10026. The first run is not part of the ensemble.

    Args:
        size: Number of cycles.
        cycle_epochs: Epochs of a cycle.
        high: Largest rate of a cycle, as a factor on `optim.lr`.
        low: Smallest rate, with which a cycle begins and ends, as a factor on `optim.lr`.
        engine: See `Method`.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        *,
        size: int = 5,
        cycle_epochs: int = 4,
        high: float = 0.5,
        low: float = 0.005,
        engine: OneEngine = "sequential",
    ) -> None:
        super().__init__(size=size, engine=engine)
        if not 0 < low < high:
            raise UserError(
                "a cycle needs a smaller and a larger rate",
                argument="low",
                expected="above 0 and below ensemble.high",
                received=low,
            )
        self.cycle_epochs, self.high, self.low = cycle_epochs, high, low

    def next(self, facts: RunFacts, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `Method.next`."""
        if not done:
            return [member(facts, 0, "start")]
        if len(done) > (self.size or 1):
            return []
        triangle = {"_target_": "lightkit.optim.annealing.Triangular", "high": self.high, "low": self.low}
        values = {"trainer.epochs": self.cycle_epochs, "trainer.steps": None, "trainer.test": "last"}
        before = done[-1].member.name
        return [member(facts, len(done), "cycle", {**values, "scheduler": triangle}, weights_of=before)]

    def counted(self, done: Sequence[MemberResult]) -> Sequence[MemberResult]:
        """See `Method.counted`."""
        return done[1:]
