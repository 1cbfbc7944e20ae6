"""Methods whose members need nothing of each other: voting, bagging, adversarial training, greedy selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.ensemble.greedy import weigh
from lightkit.ensemble.methods.base import Engine, RunFacts, Vote, Weighed, Weights, member
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.plan import RunMember
from lightkit.ensemble.rows import held_out_rows


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
            held_out_rows(facts.rows, "folds", facts.seed, 0, folds=self.folds, fold=0, repeat=0, **dealt)

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
