"""Snapshots: one long run whose rate starts anew several times, and what it has learnt each time."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.common.errors import UserError
from lightkit.ensemble.methods.base import Method, OneEngine, RunFacts, member
from lightkit.ensemble.plan import MemberResult, RunMember

COSINE = {"_target_": "lightkit.optim.annealing.Cosine", "floor": 0.0, "warmup_steps": 0, "warmup_epochs": 0.0}


class Snapshot(Method):
    """Train in cycles of a cosine rate, and keep the network at the end of each (https://arxiv.org/abs/1704.00109).

    Each cycle is a member that starts with the last weights of the one before. All of them together take the epochs of
    one run (`trainer.epochs`).

    Args:
        size: Number of cycles; they divide the epochs of the run.
        engine: See `Method`.
    """

    def __init__(self, *, size: int = 5, engine: OneEngine = "sequential") -> None:
        super().__init__(size=size, engine=engine)

    def check(self, facts: RunFacts) -> None:
        """See `Method.check`."""
        super().check(facts)
        if facts.epochs is None or facts.epochs % (self.size or 1):
            raise UserError(
                "the cycles do not divide the epochs of the run",
                key="trainer.epochs",
                expected=f"a multiple of {self.size}, the cycles (ensemble.size)",
                received="steps (trainer.steps)" if facts.epochs is None else facts.epochs,
                family="ensemble",
            )

    def next(self, facts: RunFacts, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `Method.next`."""
        size = self.size or 1
        if len(done) >= size:
            return []
        values = {"trainer.epochs": (facts.epochs or size) // size, "trainer.test": "last", "scheduler": COSINE}
        before = done[-1].member.name if done else None
        return [member(facts, len(done), "cycle", values, weights_of=before)]
