"""What all methods of making one model of several have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.data import DataInfo
from lightkit.ensemble.combining import WEIGHTS, hard, soft, weigh, weighing_rows
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked


@dataclass(frozen=True)
class RunMember:
    """One model of a run, and how its configuration differs from that of the others."""

    name: str = ""
    """Name of its folder below `members/`; empty where the run trains one model, in its own folder."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by key, such as `{"seed": 3, "optim.lr": 0.01}`; a node takes the place of the node that was there. Those
    of `data` are the same for all members."""


@dataclass(frozen=True)
class MemberResult:
    """A member that is trained."""

    member: RunMember
    """Which one."""
    folder: Path
    """Its run folder."""
    result: Mapping[str, Any]
    """The content of its `result.json`."""
    predictions: MemberPredictions | None = field(default=None, repr=False, compare=False)
    """What it predicts of rows that it did not learn from, where that need not be read from its folder."""
    weights: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)
    """The weights that count, by the model's names, where they need not be read from its folder."""


class RunPlan(Protocol):
    """Decides what is trained next, knowing what was trained before: members of a vote, folds, rounds of boosting.

    A resumed run asks anew from the beginning, so that the answers have to follow from what is done.
    """

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """Return all models that can be trained now, none of which needs another of them; none once all are trained.

        Args:
            done: The members trained so far, in their order.
        """

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """Return the result of the run, for its `result.json`.

        Args:
            done: All members.
        """


class OneModel:
    """The plain run: a plan of one."""

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`."""
        return [] if done else [RunMember()]

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """See `RunPlan.combine`."""
        return dict(done[0].result)


Engine = Literal["auto", "vectorized", "sequential", "processes", "torchensemble"]
ENGINES = ("auto", "vectorized", "sequential", "processes", "torchensemble")
OneEngine = Literal["sequential", "torchensemble"]
"""Engines of methods whose networks depend on each other."""
NO_ENSEMBLE = "lightkit.ensemble.methods.NoEnsemble"
"""What a member's own configuration names as its method."""
Rule = Literal["soft", "hard", "last"]
Vote = Literal["soft", "hard"]
Weights = Literal["uniform", "validation", "greedy"]
UNTRAINED = {
    "trainer.steps": 1,
    "optim": {"_target_": "torch.optim.SGD", "lr": 1e-30, "weight_decay": 0.0},
    "scheduler": {"_target_": "lightkit.optim.Constant"},
}
"""Training of one step that leaves the weights as they are, to the last bit."""
_SEEDS = 1 << 31
_KIND = "`info` of the data set tells what outputs are compared with: DataInfo('multiclass', (), 2, ('a', 'b'))"


@dataclass(frozen=True)
class RunFacts:
    """What a method knows of the run."""

    task: str
    """Kind of target, as in `lightkit.data.DataInfo`."""
    seed: int
    """Seed of the run."""
    epochs: int | None
    """Epochs of a run; None where it is counted in steps."""
    rows: Tensor
    """`(N,)` training rows."""
    strata: Tensor | None = None
    """Classes of all rows of the data set; None where there are none."""
    groups: Tensor | None = None
    """Groups of all rows of the data set that must stay together; None where there are none. Where the method divides
    the training rows, those of them that have the same inputs are of one group, too."""
    ordered: bool = False
    """Whether the rows are in the order of time, which folds obey."""
    validated: bool = True
    """Whether there is a validation split."""
    last: bool = False
    """Whether the last weights of a model count, and not its best (`trainer.test`)."""
    inputs: tuple[float, float] | None = None
    """The smallest and the largest value of the training inputs; None where it is not known."""
    members: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """Unlike members: a label and the values by which each differs."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The values by which the run of a meta-model differs."""

    solvable: bool = False
    """Whether the weights of a linear network can be solved for under the loss of the run."""
    anew: Mapping[str, Any] = field(default_factory=dict)
    """The values of a member that fine-tunes nothing, whatever the run does."""
    finished: Sequence[str] = ()
    """Names of the members of an ensemble that is made of runs that had finished before."""
    given: Sequence[float] = ()
    """How much each of these counts; empty leaves that to the method."""


@dataclass
class Combination:
    """What the members of an ensemble come to together."""

    members: Sequence[MemberResult]
    """Those whose networks it is compared with."""
    own: Sequence[MemberPredictions]
    """What each of these predicts."""
    predictions: MemberPredictions
    """What the ensemble predicts."""
    weights: Mapping[str, float]
    """How much each network counts, by name."""
    views: Sequence[Sequence[MemberPredictions]]
    """What models predict that are looked at together: their losses should not contradict each other."""
    selected_on: Sequence[str] = ()
    """Names of the rows that the weights were selected on."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is written down of it, in `ensemble.json` and `result.json`."""
    lines: Sequence[str] = ()
    """What else is shown of it below the table."""


class Method:
    """A way to make one model of several. A subclass says which members are trained and how they become one.

    Args:
        size: Number of members; null takes as many as the method usually has. Of unlike members (`ensemble.members`)
            null takes each once, a number each so often.
        engine: How members that need nothing of each other are trained: `vectorized` all at once in one process,
            `sequential` one after the other, `processes` side by side, `auto` what is fastest here. `torchensemble`: by
            that library's class of the method, and its own loop, all members in one go.
        slots: Processes side by side for `processes`; null takes one for each GPU, or as many as processors allow.

    Raises:
        UserError: An argument is out of its range.
    """

    tasks: tuple[str, ...] = ("multiclass", "binary", "multilabel", "regression")
    """Kinds of targets that the method is defined for."""
    unlike = False
    """Whether it takes unlike members."""
    divides = False
    """Whether members learn from parts of the training rows, so that rows with the same inputs have to be known."""
    rule: Rule = "soft"
    """`soft`: the weighted mean of probabilities, or of outputs in regression; `hard`: the share of the votes; `last`:
    the newest member, which has learnt what the others leave, speaks for all."""
    factor = 1.0
    """Factor of each network in the sum, where the rule is `last`."""
    votes = True
    """Whether the ensemble is a vote or a sum of all members, whose networks its file holds."""
    layers = 1
    """Layers of members; those of a further one take vectors."""
    copies = 5
    """Members where neither `size` nor unlike members say how many."""
    selects = False
    """Whether the weights of members are selected by what these predict."""

    def __init__(self, *, size: int | None = None, engine: Engine = "sequential", slots: int | None = None) -> None:
        if size is not None:
            check_range("size", size, low=1, what="an ensemble needs a member")
        if slots is not None:
            check_range("slots", slots, low=1, what="no process is left")
        check_choice("engine", engine, ENGINES, what="unknown engine")
        self.size, self.engine, self.slots = size, engine, slots

    def check(self, facts: RunFacts) -> None:
        """Refuse what the method is not defined for, before anything is trained.

        Raises:
            UserError: The method does not go with the run.
        """
        if facts.task not in self.tasks:
            kind, expected = type(self).__name__, "targets of " + ", ".join(self.tasks)
            what, fix = f"not defined for {facts.task} targets", _KIND if facts.task == "custom" else None
            raise UserError(what, argument="_target_", received=kind, expected=expected, fix=fix, family="ensemble")
        if facts.members and not self.unlike:
            what, received = "all members of this method are alike", f"{len(facts.members)} of their own kind"
            fix = "ensemble=voting, bagging, stacking or greedy takes unlike members; without: ensemble.members=[]"
            raise UserError(what, argument="members", received=received, fix=fix, family="ensemble")

    def next(self, facts: RunFacts, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """Return the members that can be trained now; see `RunPlan.next`."""
        return self.members(facts) if not done else []

    def every(self, facts: RunFacts) -> list[RunMember]:
        """Return all members, each behind those that it needs, where nothing that they reach decides about the next."""
        done = list[MemberResult]()
        while members := self.next(facts, done):
            done += [MemberResult(one, Path(), {}) for one in members]
        return [result.member for result in done]

    def members(self, facts: RunFacts) -> Sequence[RunMember]:
        """Return all members of a method whose members need nothing of each other."""
        raise NotImplementedError

    def counted(self, done: Sequence[MemberResult]) -> Sequence[MemberResult]:
        """Return the members whose predictions become those of the ensemble."""
        return done

    def weigh(self, members: Sequence[MemberPredictions], facts: RunFacts) -> Tensor:
        """Return the weights of members, `(M,)`, which sum to 1.

        Args:
            members: Their predictions for the same rows; only those of training and validation may be used.
            facts: What is known of the run.
        """
        return torch.full((len(members),), 1 / len(members), dtype=torch.float64)

    def combine(
        self, done: Sequence[MemberResult], read: Callable[[MemberResult], MemberPredictions], facts: RunFacts
    ) -> Combination:
        """Make one of the members, all of which are trained.

        Args:
            done: The members.
            read: Returns what a member predicts of rows that it did not learn from.
            facts: What is known of the run.
        """
        counted = self.counted(done)
        own = [read(result) for result in counted]
        given = torch.tensor(facts.given, dtype=torch.float64)
        weights = given / given.sum() if facts.given else self.weigh(own, facts)
        selects = self.selects and not facts.given and len(own) > 1
        judged = own[-1:] if self.rule == "last" else own  # each of these is a sum, of which the last is the ensemble
        return Combination(
            members=counted,
            own=own,
            predictions=combined(own, weights, self.rule),
            weights={result.member.name: float(weight) for result, weight in zip(counted, weights)},
            views=[judged],
            selected_on=[*weighing_rows(own)[0].by_rows()] if selects else [],
        )

    def kinds(self, facts: RunFacts) -> list[tuple[str, Mapping[str, Any]]]:
        """Return a label and the values of each member to be trained on all rows: unlike ones, or copies."""
        if not facts.members:
            return [("", {})] * (self.size or self.copies)
        return [kind for _ in range(self.size or 1) for kind in facts.members]

    def held_apart(self, facts: RunFacts) -> Tensor:
        """Return the training rows that only decide about what was trained on the others, `holdout`."""
        return facts.rows[:0]

    def over_finished(
        self, own: Sequence[MemberPredictions], facts: RunFacts, info: DataInfo
    ) -> Sequence[MemberPredictions]:
        """Return what finished runs predict, in the splits in which the method uses it.

        Args:
            own: Their predictions of rows that none of them trained on.
            facts: What is known of the run; its training rows are those of them that are no test rows.
            info: Facts about the data.

        Raises:
            UserError: The rows do not suffice.
        """
        return own

    def notes(self, facts: RunFacts) -> list[str]:
        """Return what is to be shown of the method before anything is trained."""
        return []


def combined(members: Sequence[MemberPredictions], weights: Tensor, rule: Rule) -> MemberPredictions:
    """Make one of the predictions of several members.

    Args:
        members: Their predictions.
        weights: How much each counts, `(M,)`.
        rule: See `Method.rule`.
    """
    same = aligned(members)
    if rule == "last":
        return same[-1]
    first, predictions = same[0], stacked(same)
    found = hard(predictions, weights, task=first.task) if rule == "hard" else soft(predictions, weights)
    counts = torch.stack([member.counts for member in same]).sum(0)
    counts = torch.where(found.isnan().any(1), torch.zeros_like(counts), counts)
    return replace(first, counts=counts, predictions=found)


class NoEnsemble(Method):
    """One model: a plain run."""

    def __init__(self) -> None:
        super().__init__()


class Weighed(Method):
    """A method whose members may be unlike, and may have unequal weights.

    Args:
        size: See `Method`.
        vote: `soft` takes the mean of probabilities, of regression that of values; `hard` the share of votes.
        weights: `uniform`; `validation`: those with the smallest loss on rows that no member learnt from; `greedy`:
            Caruana's selection with replacement (https://doi.org/10.1145/1015330.1015432) by the same loss.
        engine: See `Method`.
        slots: See `Method`.

    Raises:
        UserError: An argument is out of its range, or there is no such choice.
    """

    unlike = True

    def __init__(
        self,
        *,
        size: int | None = None,
        vote: Vote = "soft",
        weights: Weights = "uniform",
        engine: Engine = "auto",
        slots: int | None = None,
    ) -> None:
        super().__init__(size=size, engine=engine, slots=slots)
        check_choice("vote", vote, ("soft", "hard"), what="not a way to vote")
        check_choice("weights", weights, WEIGHTS, what="not a way to weigh members")
        self.rule, self.weights, self.selects = vote, weights, weights != "uniform"

    def check(self, facts: RunFacts) -> None:
        """See `Method.check`."""
        super().check(facts)
        if self.rule == "hard" and facts.task == "regression":
            raise UserError(
                "numbers cannot be voted for: a hard vote is one for a class or a label",
                argument="vote",
                received="hard",
                expected="soft, which takes the mean of the values",
                fix="ensemble.vote=soft",
                family="ensemble",
            )
        if self.weights != "uniform" and not facts.validated:
            raise UserError(
                "no rows are left to weigh members by, as there is no validation split",
                argument="weights",
                received=self.weights,
                fix="a validation split (data.split.val), or ensemble.weights=uniform",
                family="ensemble",
            )

    def weigh(self, members: Sequence[MemberPredictions], facts: RunFacts) -> Tensor:
        """See `Method.weigh`."""
        return weigh(members, facts.task, how=self.weights)


def member(
    facts: RunFacts, number: int, label: str = "", values: Mapping[str, Any] | None = None, **role: Any
) -> RunMember:
    """Make a member.

    Args:
        facts: What is known of the run.
        number: Its number, which is also that of its seed where `values` has none.
        label: Ends the name of its folder.
        values: By which values it differs.
        **role: What it is among the others; see `lightkit.config.schema.MemberConfig`.
    """
    own = {"seed": mix(facts.seed, "member", number) % _SEEDS, **(values or {})}
    name = f"{number:02}-{label}" if label else f"{number:02}"
    return RunMember(name, {**own, "ensemble": {"_target_": NO_ENSEMBLE, "member": role}})


def computed(
    facts: RunFacts, number: int, label: str, *, of: Sequence[str], by: Mapping[str, Any], **values: Any
) -> RunMember:
    """Make a member that learns nothing: its weights are computed from those of others.

    Args:
        facts: What is known of the run.
        number: See `member`.
        label: See `member`.
        of: Names of the finished members whose weights are taken: the last ones where `trainer.test` is `last`, else
            the best.
        by: What computes them: `{"_target_": "mine.Mean", ...}`. It is called with a list of their weights, a dict of
            tensors by name each, and returns such a dict. Random numbers of PyTorch's are those of the member's seed.
        **values: By what else it differs; the keys of a training over the data that renews the statistics of batch
            norms are `{"trainer.steps": None, "trainer.epochs": 1}`.
    """
    own = {**UNTRAINED, "trainer.test": "last", **values}
    return member(facts, number, label, own, computed_from=[*of], computed_by=dict(by))
