"""Methods whose networks depend on each other: boosting, snapshots, fast geometric ensembles, joint training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from lightkit.common.errors import UserError
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
