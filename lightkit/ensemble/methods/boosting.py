"""Gradient boosting: each round learns what the sum of the rounds before leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightkit.common.ranking import improves
from lightkit.ensemble.methods.base import Method, OneEngine, RunFacts, member
from lightkit.ensemble.plan import MemberResult, RunMember


class GradientBoosting(Method):
    """Train round after round on the residuals of the sum so far (https://doi.org/10.1214/aos/1013203451).

    The metrics of a round are those of the sum up to it.

    Args:
        size: Rounds at most.
        shrinkage: Factor of every round in the sum.
        patience: Rounds without a better monitored value after which no more are trained. The sum ends with the best
            round, as later ones fit the noise of the training rows. Null trains all rounds and takes all, as does a
            run without validation.
        engine: See `Method`.

    Raises:
        UserError: An argument is out of its range.
    """

    tasks = ("multiclass", "binary", "multilabel", "regression")
    rule = "last"

    def __init__(
        self, *, size: int = 5, shrinkage: float = 1.0, patience: int | None = 2, engine: OneEngine = "sequential"
    ) -> None:
        super().__init__(size=size, engine=engine)
        self.shrinkage = self.factor = shrinkage
        self.patience = patience

    def next(self, facts: RunFacts, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `Method.next`."""
        if self._tired(done) or len(done) >= (self.size or 1):
            return []
        role: dict[str, Any] = {"adds_to": [result.member.name for result in done], "shrinkage": self.shrinkage}
        values = {"trainer.test": "last"} if facts.last else {}  # tells by which value a round is judged
        return [member(facts, len(done), "round", values, **role)]

    def every(self, facts: RunFacts) -> list[RunMember]:
        """See `Method.every`; `counted` leaves rounds out that come after patience has ended."""
        rounds = GradientBoosting(size=self.size or 1, shrinkage=self.shrinkage, patience=None)
        return super(GradientBoosting, rounds).every(facts)

    def counted(self, done: Sequence[MemberResult]) -> Sequence[MemberResult]:
        """See `Method.counted`."""
        if self.patience is None:
            return done
        ends = (count for count in range(1, len(done) + 1) if self._tired(done[:count]))
        return done[: self._best(done[: next(ends, len(done))]) + 1]

    def _tired(self, done: Sequence[MemberResult]) -> bool:
        """Tell whether so many rounds were no better that no more are trained."""
        return bool(done) and self.patience is not None and len(done) - 1 - self._best(done) >= self.patience

    def _best(self, done: Sequence[MemberResult]) -> int:
        """Return the number of the best round; of equal ones the first, without validation the last."""
        best, reached = len(done) - 1, None
        for number, result in enumerate(done):
            value = _value(result)
            if value is not None and improves(value, reached, mode=result.result["objective"]["mode"]):
                best, reached = number, value
        return best


def _value(round: MemberResult) -> float | None:
    """Return the monitored value of the weights of a round that count."""
    objective, last = round.result["objective"], round.member.values.get("trainer.test") == "last"
    found: float | None = round.result["metrics"].get(objective["name"]) if last else objective["value"]
    return found
