"""Methods whose members become one by votes and sums: alike or unlike, at once or each after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from lightkit.common.argument_checks import check_choice, check_cycles, check_range, check_rates
from lightkit.common.errors import UserError, keys_under
from lightkit.common.ranking import improves
from lightkit.ensemble.combining import weigh
from lightkit.ensemble.methods.base import (
    Engine,
    MemberResult,
    Method,
    OneEngine,
    RunFacts,
    RunMember,
    Vote,
    Weighed,
    Weights,
    member,
)
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.rows import member_rows


class Voting(Weighed):
    """Train members on all rows and let them vote (deep ensembles: https://arxiv.org/abs/1612.01474).

    The arguments are those of `Weighed`.
    """

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """See `Method.members`."""
        return [member(facts, i, label, values) for i, (label, values) in enumerate(self.kinds(facts))]


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


class Bagging(Weighed):
    """Train every member on other rows (https://doi.org/10.1007/BF00058655), and keep what it predicts for the rest.

    Args:
        size: Members of `bootstrap`; with `folds` each kind of member is trained once for each fold and repeat.
        resample: `bootstrap` draws as many rows with replacement; `folds` leaves out one fold after the other, so that
            every training row is predicted by a member that has not seen it.
        folds: Number of folds.
        repeats: How often the rows are dealt out into folds. More of them make a finished bag larger.
        vote: See `Weighed`.
        weights: See `Weighed`.
        engine: See `Method`.
        slots: See `Method`.

    Raises:
        UserError: An argument is out of its range, or there is no such choice.
    """

    copies = 10
    divides = True

    def __init__(
        self,
        *,
        size: int | None = None,
        resample: Literal["bootstrap", "folds"] = "bootstrap",
        folds: int = 5,
        repeats: int = 1,
        vote: Vote = "soft",
        weights: Weights = "uniform",
        engine: Engine = "auto",
        slots: int | None = None,
    ) -> None:
        super().__init__(size=size, vote=vote, weights=weights, engine=engine, slots=slots)
        check_choice("resample", resample, ("bootstrap", "folds"), what="not a way to draw rows")
        check_range("folds", folds, low=2, what="too few folds")
        check_range("repeats", repeats, low=1, what="the rows have to be dealt out once")
        if resample == "folds" and size is not None:
            fix = "ensemble.folds and ensemble.repeats say how many there are; ensemble.size=null"
            raise UserError("the folds are the members", argument="size", received=size, fix=fix)
        self.resample, self.folds, self.repeats = resample, folds, repeats

    def check(self, facts: RunFacts) -> None:
        """See `Method.check`."""
        super().check(facts)
        if self.resample == "folds":
            dealt: dict[str, Any] = {"strata": facts.strata, "groups": facts.groups, "ordered": facts.ordered}
            member_rows(facts.rows, "folds", facts.seed, 0, folds=self.folds, fold=0, repeat=0, **dealt)

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """See `Method.members`."""
        if self.resample == "bootstrap":
            kinds = enumerate(self.kinds(facts))
            return [member(facts, i, label, v, rows="bootstrap", draw=facts.seed, index=i) for i, (label, v) in kinds]
        return fold_members(facts, self.folds, self.repeats)


def fold_members(
    facts: RunFacts, folds: int, repeats: int, *, first: int = 0, label: str = "", **role: Any
) -> list[RunMember]:
    """Return a member for each fold, repeat and kind of member; those of a repeat more come last.

    Args:
        facts: What is known of the run.
        folds: Number of folds.
        repeats: How often the rows are dealt out.
        first: Number of the first of them.
        label: Follows the name of the kind in those of their folders.
        **role: What else they are among the members; see `lightkit.config.schema.MemberConfig`.
    """
    found: list[RunMember] = []
    for repeat in range(repeats):
        for kind, values in facts.members or [("", {})]:
            for fold in range(folds):
                own = "-".join(filter(None, [kind, label, f"r{repeat}" if repeat else "", f"fold{fold}"]))
                dealt = {"rows": "folds", "draw": facts.seed, "folds": folds, "fold": fold, "repeat": repeat}
                found.append(member(facts, first + len(found), own, values, **dealt, **role))
    return found


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
            what = "adversarial training needs inputs in [0, 1]"
            raise UserError(what, key="data.normalize", received=seen, fix="data.normalize=minmax", family="ensemble")

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """See `Method.members`."""
        kinds = enumerate(self.kinds(facts))
        return [member(facts, i, label, values, epsilon=self.epsilon) for i, (label, values) in kinds]


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
            objective, last = result.result["objective"], result.member.values.get("trainer.test") == "last"
            value = result.result["metrics"].get(objective["name"]) if last else objective["value"]
            if value is not None and improves(value, reached, mode=objective["mode"]):
                best, reached = number, value
        return best


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
        with keys_under("trainer"):
            check_cycles(self.size or 1, facts.epochs)

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
        check_rates(low, high)
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
