"""The members of an ensemble as its plan sees them: what they predict and reach, and the weights that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Shared
from lightkit.assembly.ensemble import is_ensemble
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.common.text import counted
from lightkit.config import to_yaml, with_values
from lightkit.config.project import project_root
from lightkit.ensemble.file import StoredMember, nested, read_ensemble
from lightkit.ensemble.methods import Method, RunFacts
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.rows import unseen_by_all
from lightkit.runner.ensemble.finished import (
    FinishedRun,
    counted_checkpoint,
    held_out_predictions,
    scaling_of,
    trained_rows,
)
from lightkit.runner.ensemble.report import SplitMeter, values_of
from lightkit.runner.session import Session
from lightkit.runs.reading import read_config, read_ensemble_plan, read_run


class Members:
    """The members of an ensemble that its own run trains.

    Args:
        run: The run.
        shared: What they share.
    """

    finished: Sequence[MemberResult] = ()
    """Runs that had finished before, and come before what is trained."""

    def __init__(self, run: Session, shared: Shared) -> None:
        self.run, self.shared, self._test = run, shared, run.cfg.trainer.test

    def checked(self, method: Method, facts: RunFacts) -> RunFacts:
        """Return what the method has to know of the run.

        Raises:
            UserError: The method does not go with the data or the rest of the configuration.
        """
        return checked(method, facts, self.shared)

    def begin(self) -> None:
        """Write what members that are trained now learn from."""

    def predictions(self, result: MemberResult) -> MemberPredictions:
        """Return what a member predicts of rows that it did not learn from."""
        return result.predictions or MemberPredictions.read(result.folder / run_files.PREDICTIONS_HELD_OUT)

    def values(self, result: MemberResult, own: MemberPredictions, apart: Tensor) -> dict[str, float]:
        """Return loss and metrics of a member.

        Args:
            result: The member.
            own: What it predicts.
            apart: Training rows that are called `holdout`.
        """
        known = values_of(result, last=self._is_last(result), more=self.shared.data.more)
        return {**known, **self.measured(own.of_split("train"), apart)}

    def _is_last(self, result: MemberResult) -> bool:
        """Tell whether the last weights of a member count, and not the best."""
        return bool(result.member.values.get("trainer.test", self._test) == "last")

    def measured(self, predictions: MemberPredictions, apart: Tensor) -> dict[str, float]:
        """Return loss and metrics of predictions, by the names of the rows; see `MemberPredictions.by_rows`."""
        found = dict[str, float]()
        for name, rows in predictions.by_rows(apart).items() if len(predictions) else ():
            found |= SplitMeter(self.run.cfg, self.shared, name)(rows.take(rows.predicted))
        return found

    def stored(
        self, results: Sequence[MemberResult], weights: Mapping[str, float]
    ) -> tuple[list[StoredMember], dict[str, Any]]:
        """Return the networks of some members as the file of the ensemble has them, and what else it says of them."""
        members = []
        for result in results:
            state, name, last = result.weights, result.member.name, self._is_last(result)
            state = state or content.load_model_state(counted_checkpoint(self.run.cfg, result.folder, last=last))
            members.append(StoredMember(name, read_config(result.folder), weights.get(name, 0.0), state))
        return members, {}

    def beginnings(self, facts: RunFacts) -> dict[str, DictConfig]:
        """Return the configuration of each kind of member, which says what weights it began with."""
        return {name: with_values(self.run.cfg, own) for name, own in facts.members} or {"each member": self.run.cfg}

    def place(self, member: RunMember) -> str:
        """Tell where the folder of a member is, from that of the ensemble."""
        return f"{run_files.MEMBERS}/{member.name}"

    def recorded(self) -> dict[str, Any]:
        """Return what `ensemble.json` says of where the members come from."""
        return {}


class FinishedRuns(Members):
    """Runs that have finished as the members of an ensemble.

    Args:
        run: The run that the ensemble is.
        shared: The data and the device.
        runs: The members.
        weights: How much each counts; empty leaves that to the method.

    Raises:
        UserError: The runs do not go together, or cannot be predicted with.
    """

    def __init__(
        self, run: Session, shared: Shared, runs: Sequence[FinishedRun], weights: Sequence[float] = ()
    ) -> None:
        super().__init__(run, shared)
        self.runs, self.weights = {member.name: member for member in runs}, weights
        self.finished = [member.result() for member in runs]
        self.unseen = dict(zip(self.runs, [held_out_predictions(member, run) for member in runs]))

    def checked(self, method: Method, facts: RunFacts) -> RunFacts:
        """See `Members.checked`.

        Raises:
            UserError: The runs do not go with the method, or no row is left that none of them trained on.
        """
        with keys_under("ensemble"):
            if method.votes:  # of the checks of others none is needed: nothing is dealt out into folds
                method.check(replace(facts, members=()))
            found = [*self.unseen.values()]
            unseen = self._unseen(found, method)
            if any(len(own) < int(one.predicted.sum()) for own, one in zip(unseen, found)):
                left = counted(len(unseen[0]), "row")
                self.run.tell(f"note: the runs were split differently: {left} left that none trained on")
            rows = unseen[0].of_split("train", "val").rows
            groups = self.shared.data.together(rows) if method.divides else facts.groups
            facts = replace(facts, rows=rows, groups=groups, finished=[*self.runs], given=self.weights)
            self.unseen = dict(zip(self.runs, method.over_finished(unseen, facts, self.shared.data.info)))
        return facts

    def _unseen(self, found: Sequence[MemberPredictions], method: Method) -> list[MemberPredictions]:
        """Keep the rows that no run trained on.

        Raises:
            UserError: None is left, or none to weigh the members by; or the runs are of other data or classes.
        """
        unseen = unseen_by_all(found)
        selects = not self.weights and (method.selects or not method.votes)
        if len(unseen[0].of_split("train", "val") if selects else unseen[0]):
            return unseen
        told = []
        for run in self.runs.values():
            seed, count = run.cfg.data.split.seed, len(trained_rows(run.cfg, run.folder))
            told.append(f"{run.name} trained on {counted(count, 'row')} (data.split.seed={seed})")
        what = "there is no row that none of these runs trained on"
        fix = "runs with the same data.split, data.split.seed included"
        if len(unseen[0]):
            use = "to weigh the runs by" if method.votes else "for a meta-model to learn from"
            what = f"no row is left {use}, as test rows are for the report"
            fix = "runs with a validation split (data.split.val), or --method voting, which weighs all alike"
        raise UserError(what, key="lightkit ensemble", received="; ".join(told), fix=fix, family="ensemble")

    def begin(self) -> None:
        """See `Members.begin`: what the runs predict, in the division in which a meta-model learns from it."""
        for name, own in self.unseen.items():
            folder = self.run.place.member(name).path
            folder.mkdir(parents=True, exist_ok=True)
            own.write(folder / run_files.PREDICTIONS_HELD_OUT)

    def predictions(self, result: MemberResult) -> MemberPredictions:
        """See `Members.predictions`."""
        name = result.member.name
        return self.unseen[name] if name in self.runs else super().predictions(result)

    def values(self, result: MemberResult, own: MemberPredictions, apart: Tensor) -> dict[str, float]:
        """See `Members.values`; on the rows that the ensemble is measured on: its own may have been others."""
        return self.measured(own, apart)

    def stored(
        self, results: Sequence[MemberResult], weights: Mapping[str, float]
    ) -> tuple[list[StoredMember], dict[str, Any]]:
        """See `Members.stored`; also the networks of ensembles."""
        members, groups, scaling = list[StoredMember](), list[dict[str, Any]](), scaling_of([*self.runs.values()])
        for result in results:
            name, folder, weight = result.member.name, result.folder, weights.get(result.member.name, 0.0)
            if name not in self.runs:
                members += super().stored([result], weights)[0]
            elif is_ensemble(folder):
                own = nested(read_ensemble(folder / run_files.ENSEMBLE_WEIGHTS), name, weight)
                members, groups, scaling = [*members, *own[0]], [*groups, *own[1]], {**scaling, **own[2]}
            else:
                cfg = self.runs[name].cfg
                state = content.load_model_state(counted_checkpoint(cfg, folder))
                members.append(StoredMember(name, to_yaml(cfg), weight, state))
        return members, {"groups": groups, "scaling": scaling}

    def beginnings(self, facts: RunFacts) -> dict[str, DictConfig]:
        """See `Members.beginnings`; rows that the weights it began with have seen are left out already."""
        return {name: member.cfg for name, member in self.runs.items()}

    def place(self, member: RunMember) -> str:
        """See `Members.place`; of a finished run from that of the project."""
        if member.name not in self.runs:
            return super().place(member)
        folder, root = self.runs[member.name].folder.resolve(), (project_root() or Path()).resolve()
        return str(folder.relative_to(root) if folder.is_relative_to(root) else folder)

    def recorded(self) -> dict[str, Any]:
        """See `Members.recorded`: the number of rows that no member trained on."""
        first = next(iter(self.unseen.values()))
        return {"rows": {split: len(first.of_split(split)) for split in SPLITS}}


def reopened(run: Session, shared: Shared, method: Method) -> FinishedRuns:
    """Return the runs of a stack of finished runs that was begun, as its folder says.

    Args:
        run: The run that the ensemble is.
        shared: The data and the device.
        method: The method of the ensemble.

    Raises:
        UserError: Its record is damaged, nothing in it is trained, one of the runs is gone, or another number of them
            is wanted.
    """
    damage: list[str] = []
    record = read_ensemble_plan(run.place.path, damage)
    members = record.get("members", [])
    if damage or not members or not all({"name", "folder"} <= row.keys() for row in members[:-1]):
        reason = "; ".join(damage) or f"{run_files.ENSEMBLE}: which runs it is made of is missing"
        what, fix = f"the record of the ensemble is damaged: {reason}", "`lightkit ensemble` makes a new one"
        raise UserError(what, key=str(run.place.path), fix=fix, family="ensemble")
    if method.votes:
        what, fix = "nothing is trained in an ensemble of finished runs", "`lightkit ensemble` makes a new one"
        raise UserError(what, key=str(run.place.path), fix=fix, family="ensemble")
    root, runs = project_root() or Path(), list[FinishedRun]()
    for row in members[:-1]:  # the last one is the meta-model
        folder = root / str(row["folder"])
        runs.append(FinishedRun(str(row["name"]), folder, read_run(folder).cfg))
    if run.cfg.ensemble.size != len(runs):
        what, fix = "the finished runs were chosen when the ensemble began", "`lightkit ensemble` with more runs"
        expected, received = str(len(runs)), run.cfg.ensemble.size
        raise UserError(what, key="ensemble.size", expected=expected, received=received, fix=fix, family="ensemble")
    return FinishedRuns(run, shared, runs)


def checked(method: Method, facts: RunFacts, shared: Shared) -> RunFacts:
    """Return what a method has to know of a run that trains its members.

    Raises:
        UserError: The method does not go with the data or the rest of the configuration.
    """
    if method.divides:
        facts = replace(facts, groups=shared.data.together())
    with keys_under("ensemble"):
        method.check(facts)
    return facts


def count_weights(members: Sequence[StoredMember]) -> int:
    """Count the numbers in all networks, but for running statistics."""
    weights = (tensor for member in members for name, tensor in member.state.items() if "running_" not in name)
    return sum(tensor.numel() for tensor in weights if tensor.is_floating_point())
