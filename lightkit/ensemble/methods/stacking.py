"""Stacking: a model that learns from the out-of-fold predictions of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.data import DataInfo
from lightkit.ensemble.combining import mean_loss, select, soft
from lightkit.ensemble.methods.base import (
    UNTRAINED,
    Combination,
    Engine,
    MemberResult,
    Method,
    RunFacts,
    RunMember,
    combined,
    member,
)
from lightkit.ensemble.methods.plain import fold_members
from lightkit.ensemble.oof import KINDS, MemberPredictions, aligned, stacked
from lightkit.ensemble.rows import MemberRows, cut_holdout, member_rows
from lightkit.ensemble.stacking import GREEDY, STACK, UNIFORM, Decision, base_predictions, check_rows, divided, judge

_PATIENCE, _TARGET = "trainer.early_stopping.patience", "trainer.early_stopping.target"
_INTERVAL = 100
"""Optimizer steps of a meta-model between two validations, and between two checkpoints."""


@dataclass(frozen=True)
class Base:
    """One kind of member in one layer of a stack."""

    folds: tuple[str, ...]
    """Names of the members of its folds."""
    refit: str | None = None
    """Name of the member that learnt from all rows; None where the folds speak for it."""

    @property
    def networks(self) -> tuple[str, ...]:
        """The members whose mean prediction is that of the base for new rows."""
        return (self.refit,) if self.refit else self.folds


class Stacking(Method):
    """Train a meta-model on out-of-fold predictions (https://doi.org/10.1016/S0893-6080(05)80023-1).

    Each kind of member is trained once for each fold. What its members predict of the rows that they have not seen are
    the inputs of the meta-model (`ensemble.meta`), with scikit-learn's meaning. Rows that nothing saw decide whether it
    does better than weights of the members (https://doi.org/10.1145/1015330.1015432); if not, these are used.

    Args:
        size: Copies with other seeds, 3 for null; of unlike members (`ensemble.members`) each so often, once for null.
        folds: Number of folds.
        repeats: How often the rows are dealt out into folds; predictions of a row are averaged.
        refit: Train each kind of member once more on all training rows, for as many epochs as its folds took to their
            best ones on average; false leaves predicting to the folds' members.
        passthrough: Give the meta-model the inputs of the data, too.
        layers: Layers of members below the meta-model. Those of a further one learn from the predictions of the one
            before and from the inputs of the data, both as one vector.
        holdout: Share of the training rows that decides whether the stack is used; 0 uses it unseen.
        rounds: Selections of the greedy weights at most.
        solver: `exact` solves for the weights of a linear meta-model, as scikit-learn does; `gradient` trains them, as
            those of any other meta-model are.
        engine: See `Method`.
        slots: See `Method`.

    Raises:
        UserError: An argument is out of its range, or there is no such choice.
    """

    unlike = True
    divides = True
    votes = False
    copies = 3

    def __init__(
        self,
        *,
        size: int | None = None,
        folds: int = 5,
        repeats: int = 1,
        refit: bool = True,
        passthrough: bool = False,
        layers: int = 1,
        holdout: float = 1 / 9,
        rounds: int = 25,
        solver: Literal["exact", "gradient"] = "exact",
        engine: Engine = "auto",
        slots: int | None = None,
    ) -> None:
        super().__init__(size=size, engine=engine, slots=slots)
        check_range("folds", folds, low=2, what="too few folds to learn from what they predict")
        check_range("repeats", repeats, low=1, what="the rows have to be dealt out once")
        check_range("layers", layers, low=1, what="a stack needs a layer")
        check_range("holdout", holdout, low=0, high=0.5, what="not a share of the training rows that can be held out")
        check_range("rounds", rounds, low=1)
        check_choice("solver", solver, ("exact", "gradient"), what="not a way to find a meta-model")
        self.solver = solver
        self.folds, self.repeats, self.layers, self.rounds = folds, repeats, layers, rounds
        self.refit, self.passthrough, self.holdout = refit, passthrough, holdout

    def check(self, facts: RunFacts) -> None:
        """See `Method.check`."""
        super().check(facts)
        rows = self.rows(facts)
        if self.holdout and len(rows.held_out) < 2:
            raise UserError(
                "too few rows are held out to judge a stack by",
                argument="holdout",
                expected="2 rows or more",
                received=f"{len(rows.held_out)} of {len(facts.rows)} training rows",
                fix="a larger share, or 0 without a guard",
                family="ensemble",
            )
        for repeat in range(self.repeats):
            dealt: dict[str, Any] = {"folds": self.folds, "fold": 0, "repeat": repeat, **_kept(facts)}
            member_rows(rows.training, "folds", facts.seed, 0, **dealt)

    def rows(self, facts: RunFacts) -> MemberRows:
        """Return the training rows that folds are cut from, and those that decide about the stack."""
        return cut_holdout(facts.rows, self.holdout, facts.seed, **_kept(facts))

    def next(self, facts: RunFacts, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `Method.next`."""
        finished = {result.member.name: result for result in done}
        for stage in self._stages(facts, finished, []):
            left = [member for member in stage if member.name not in finished]
            if left:
                return left
        return []

    def notes(self, facts: RunFacts) -> list[str]:
        """See `Method.notes`."""
        exact = "solved for exactly; optim, scheduler and steps of ensemble.meta count with ensemble.solver=gradient"
        return [] if self.penalty(facts, rows=1) is None else [f"meta    {exact}"]

    def held_apart(self, facts: RunFacts) -> Tensor:
        """See `Method.held_apart`."""
        return self.rows(facts).held_out

    def over_finished(
        self, own: Sequence[MemberPredictions], facts: RunFacts, info: DataInfo
    ) -> Sequence[MemberPredictions]:
        """See `Method.over_finished`: from some rows the meta-model learns, by the others (`holdout`) it is judged."""
        what = "a meta-model learns from some of the rows that no run trained on, and is judged by the others"
        if self.holdout == 0:
            fix = "a share such as 0.33; or --method voting, which nothing is learnt for"
            raise UserError(what, argument="holdout", received=0, fix=fix, family="ensemble")
        if (patience := facts.meta.get(_PATIENCE)) is not None:
            fix = "ensemble.meta.trainer.steps, which says how long it trains"
            raise UserError(what, argument=f"meta.{_PATIENCE}", received=patience, fix=fix, family="ensemble")
        learnt, judged = self.rows(facts)
        check_rows(own, learnt, judged, info, passthrough=self.passthrough)
        return [divided(one, judged) for one in own]

    def combine(
        self, done: Sequence[MemberResult], read: Callable[[MemberResult], MemberPredictions], facts: RunFacts
    ) -> Combination:
        """See `Method.combine`: compare the stack with weights of its bases, and use what does best."""
        # From the files, also where a member is still in memory: in the order of these.
        known = {result.member.name: read(replace(result, predictions=None)) for result in done}
        bases, meta, apart = self.bases(facts, done), done[-1].member.name, self.held_apart(facts)
        own = [base_predictions([known[n] for n in base.folds], known.get(base.refit or "")) for base in bases]
        greedy = self._greedy(own, facts, apart)
        decision = self._decide(own, known[meta], greedy, facts)
        chosen = STACK if decision is None else decision.chosen
        predictions, shares = known[meta], {meta: 1.0}
        if chosen != STACK:
            weights = greedy if chosen == GREEDY else torch.full((len(bases),), 1 / len(bases), dtype=torch.float64)
            predictions = combined(own, weights, "soft")
            pairs = zip(bases, weights.tolist())
            shares = {name: weight / len(base.networks) for base, weight in pairs for name in base.networks}
        record: dict[str, Any] = {
            "used": chosen,
            "greedy": {base.networks[0]: float(weight) for base, weight in zip(bases, greedy)},
            "why": "no rows were held out to decide by (ensemble.holdout=0)",
            **(decision.record() if decision else {}),
        }
        price, cost = _price(done, bases, known, facts.task)
        # On the others the weights were selected.
        judged = predictions if chosen == STACK else predictions.take(predictions.kinds(apart) != KINDS.index("oof"))
        tuned = {"oof": chosen == GREEDY and not facts.given, "holdout": decision is not None}
        networks = {name for base in bases for name in base.networks}
        counted = [result for result in done if result.member.name in networks]
        return Combination(
            members=counted,
            own=[known[result.member.name] for result in counted],
            predictions=predictions,
            weights=shares,
            views=[[judged], own],
            selected_on=[name for name, decides in tuned.items() if decides],
            facts={"stacking": record, **price},
            lines=[*([decision.line()] if decision else []), record["why"], *cost],
        )

    def _greedy(self, bases: Sequence[MemberPredictions], facts: RunFacts, apart: Tensor) -> Tensor:
        """Return the weights of the bases of all layers, by the out-of-fold predictions of training rows."""
        seen = aligned([base.of_split("train") for base in bases])
        there = torch.stack([base.predicted for base in seen]).all(0) & ~torch.isin(seen[0].rows, apart)
        return select(stacked(seen)[:, there], seen[0].targets[there], facts.task, rounds=self.rounds)

    def _decide(
        self, bases: Sequence[MemberPredictions], meta: MemberPredictions, greedy: Tensor, facts: RunFacts
    ) -> Decision | None:
        """Decide by the rows that nothing saw; without them the stack is used."""
        if not self.holdout:
            return None
        apart = self.held_apart(facts)
        *rest, stack = aligned([member.take(torch.isin(member.rows, apart)) for member in [*bases, meta]])
        there = torch.stack([member.predicted for member in [*rest, stack]]).all(0)
        predictions = stacked(rest)[:, there]
        candidates = {STACK: stack.predictions[there], GREEDY: soft(predictions, greedy), UNIFORM: soft(predictions)}
        groups = None if facts.groups is None else facts.groups[stack.rows[there]]
        return judge(candidates, stack.targets[there], facts.task, share=1 / round(1 / self.holdout), groups=groups)

    def bases(self, facts: RunFacts, done: Sequence[MemberResult]) -> list[Base]:
        """Return the bases of all layers, of a stack whose members are all trained."""
        found: list[Base] = []
        for _ in self._stages(facts, {result.member.name: result for result in done}, found):
            pass
        return found

    def _stages(
        self, facts: RunFacts, finished: Mapping[str, MemberResult], bases: list[Base]
    ) -> Iterator[Sequence[RunMember]]:
        """Yield members that can be trained at once, those that they depend on first.

        Args:
            facts: What is known of the run.
            finished: The members trained so far, those of earlier stages among them.
            bases: The bases of finished layers are added to it.
        """
        role: dict[str, Any]
        if facts.finished:
            columns = [[name] for name in facts.finished]
            bases += [Base((name,)) for name in facts.finished]
            role = {"rows": "predicted", "features": columns, "passthrough": self.passthrough}
            meta = self.meta_model(facts, len(columns), **role)
            yield [replace(meta, values={_PATIENCE: None, _TARGET: None, **meta.values})]
            return
        kinds = self.kinds(facts)
        role, number = {}, 0
        for layer in range(self.layers):
            where = f"layer{layer + 1}" if layer else ""
            cut = {"holdout": self.holdout, **role}
            every = replace(facts, members=kinds)
            members = fold_members(every, self.folds, self.repeats, first=number, label=where, **cut)
            yield members
            names, number = [one.name for one in members], number + len(members)
            # Those of a repeat come after each other, in each those of a kind.
            blocks = [names[start : start + self.folds] for start in range(0, len(names), self.folds)]
            columns = [[name for block in blocks[kind :: len(kinds)] for name in block] for kind in range(len(kinds))]
            refits: list[RunMember] = []
            if self.refit:
                for (label, values), folds in zip(kinds, columns):
                    own = "-".join(filter(None, [label, where, "refit"]))
                    length = _length(facts, [finished[name] for name in folds])
                    refits.append(
                        member(facts, number + len(refits), own, {**values, **length}, draw=facts.seed, **role)
                    )
                yield refits
                number += len(refits)
            last = [one.name for one in refits]
            bases += [Base(tuple(folds), last[kind] if last else None) for kind, folds in enumerate(columns)]
            role = {"features": columns, "refits": last, "passthrough": True}
            kinds = [(label, _anew(facts, values)) for label, values in kinds]
        role |= {"passthrough": self.passthrough, "holdout": self.holdout, "draw": facts.seed}
        yield [self.meta_model(facts, number, **role)]

    def meta_model(self, facts: RunFacts, number: int, **role: Any) -> RunMember:
        """Return the meta-model as a member.

        Args:
            facts: What is known of the run.
            number: Its number among the members.
            **role: What it is among them.
        """
        rows = len(self.rows(facts).training)
        penalty = self.penalty(facts, rows)
        if penalty is None:
            return member(facts, number, "meta", _meta_values(facts, facts.meta, rows), **role)
        own = {key: value for key, value in facts.meta.items() if not key.startswith(_OF_TRAINING)}
        values = _meta_values(facts, {**own, **UNTRAINED}, rows)
        return member(facts, number, "meta", values, solved=penalty, **role)

    def penalty(self, facts: RunFacts, rows: int) -> float | None:
        """Return the penalty with which the meta-model is solved for; None where it is trained.

        Args:
            facts: What is known of the run.
            rows: How many rows it learns from.
        """
        meta = facts.meta
        given = [meta.get("optim.weight_decay"), (meta.get("optim") or {}).get("weight_decay")]
        decay = next((value for value in given if value is not None), None)
        trained = self.solver == "gradient" or not facts.solvable or any(key.startswith("loss") for key in meta)
        if trained or not _is_linear(meta) or decay == 0:
            return None
        if decay is None:
            return 1.0
        return float(decay) * rows / (2 if facts.task == "regression" else 1)


def _price(
    done: Sequence[MemberResult], bases: Sequence[Base], known: Mapping[str, MemberPredictions], task: str
) -> tuple[dict[str, Any], list[str]]:
    """Return what training on all rows took, and what it changed in the loss of a base on validation; also in words."""
    names = [base.refit for base in bases if base.refit is not None]
    if not names:
        return {}, []
    steps = {result.member.name: result.result["steps"] for result in done}
    spent, folds = sum(steps[name] for name in names), sum(steps[name] for base in bases for name in base.folds)
    losses = {
        "val_loss": [_loss(known[name], task) for name in names],
        "val_loss_of_folds": [_loss(base_predictions([known[n] for n in base.folds]), task) for base in bases],
    }
    means = {key: sum(some) / len(some) for key, some in losses.items() if None not in some}  # type: ignore[arg-type]
    line = f"training on all rows took {spent / folds:.0%} of the steps of the folds"
    if "val_loss" in means:
        change = f"{means['val_loss']:.4f}, of its folds together {means['val_loss_of_folds']:.4f}"
        line += f": validation loss of a base {change}"
    return {"refit": {"steps": spent, "steps_of_folds": folds, **means}}, [line]


def _loss(predictions: MemberPredictions, task: str) -> float | None:
    """Return the mean loss of validation rows; None where there are none."""
    rows = predictions.of_split("val")
    rows = rows.take(rows.predicted)
    return mean_loss(rows.predictions, rows.targets, task) if len(rows) else None


def _anew(facts: RunFacts, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a network that learns from predictions: no base fits these, so it begins anew."""
    own = {key: value for key, value in values.items() if key.lstrip("~").split(".")[0] != "finetune"}
    return {**own, **facts.anew}


_OF_TRAINING = ("optim", "scheduler", "trainer.steps", "trainer.epochs")
"""Keys that say nothing to a meta-model that is solved for."""


def _is_linear(meta: Mapping[str, Any]) -> bool:
    """Tell whether the values of a meta-model give it a single layer."""
    model = {key: value for key, value in meta.items() if key.split(".")[0].lstrip("~") == "model"}
    own = {**(model.pop("model", None) or {})}
    own |= {key.partition(".")[2]: value for key, value in model.items()}
    return own.pop("_target_", None) in _LINEAR and own == {"hidden": []}


_LINEAR = ("lightkit.models.MLP", "lightkit.models.mlp.MLP")


def _meta_values(facts: RunFacts, meta: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the values of the meta-model: it trains in short steps over few columns, and its last weights count.

    A weight decay that is left open is that of scikit-learn's `LogisticRegression`, which sees the sum of the losses.
    """
    values = {
        **facts.anew,
        "trainer.test": "last",
        "trainer.validate_unit": "step",
        "trainer.validate_every": _INTERVAL,
        "checkpoint.every_epochs": None,
        "checkpoint.every_steps": _INTERVAL,
        **meta,
    }
    optim = values.get("optim")
    if isinstance(optim, Mapping) and "weight_decay" not in optim and "optim.weight_decay" not in values:
        values["optim"] = {**optim, "weight_decay": 1 / rows}
    return values


def _length(facts: RunFacts, folds: Sequence[MemberResult]) -> dict[str, Any]:
    """Return how long a network trains on all rows: the mean of what its folds took to their best validation.

    Its last weights count, as no rows are left to choose others by.
    """
    steps = [result.result["objective"]["step"] or result.result["steps"] for result in folds]
    values: dict[str, Any] = {"trainer.test": "last", _PATIENCE: None, _TARGET: None}
    if facts.epochs is None:
        return values | {"trainer.steps": max(1, round(sum(steps) / len(steps)))}
    lengths = [result.result["steps"] / max(1, result.result["epochs"]) for result in folds]
    epochs = [math.ceil(step / length) for step, length in zip(steps, lengths)]
    return values | {"trainer.epochs": max(1, round(sum(epochs) / len(epochs)))}


def _kept(facts: RunFacts) -> dict[str, Any]:
    """Return what every division of the rows has to obey."""
    return {"strata": facts.strata, "groups": facts.groups, "ordered": facts.ordered}
