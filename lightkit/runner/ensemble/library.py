"""Ensembles of runs that have finished, whose networks may be of any kind and stay as they are.

Weights and metrics come from rows alone that no run trained on, also where the runs were split differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Shared, build_shared
from lightkit.assembly.ensemble import is_ensemble
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.common.text import counted
from lightkit.config import instantiate, to_yaml
from lightkit.config.project import project_root
from lightkit.ensemble.file import StoredEnsemble, StoredMember, nested, read_ensemble, write_ensemble
from lightkit.ensemble.methods import Method, RunFacts, Stacking
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.ensemble.unseen import unseen_by_all
from lightkit.loggers.files import write_json
from lightkit.runner.ensemble.combined import count_weights, counted_checkpoint
from lightkit.runner.ensemble.doubts import trained_rows
from lightkit.runner.ensemble.engines import train_members
from lightkit.runner.ensemble.library_run import (
    LibraryRun,
    check_run,
    held_out_predictions,
    scaling_of,
    with_values,
)
from lightkit.runner.ensemble.run import EnsemblePlan, facts_of
from lightkit.runner.run import Runner
from lightkit.runner.session import Session, memory_released, session
from lightkit.runs.reading import read_ensemble_plan, read_json, read_run


def combine_runs(
    runs: Sequence[LibraryRun],
    folder: Path,
    *,
    method: Mapping[str, Any],
    name: str,
    weights: Sequence[float] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Make an ensemble of finished runs, as a run folder like that of an ensemble that was trained.

    Args:
        runs: The runs. The first one says on what device and by which metrics.
        folder: The new folder.
        method: The node `ensemble` of its configuration: a method and its settings.
        name: Name of the new run.
        weights: How much each run counts; None leaves that to the method.
        overrides: What was typed, for the record.

    Returns:
        The content of `result.json`.

    Raises:
        UserError: The runs do not go together, have no checkpoint, or no row is left that none of them trained on.
    """
    for member in runs:
        check_run(member)
    scaling = scaling_of(runs)
    changed: dict[str, Any] = {
        "ensemble": dict(method),
        "name": name,
        "device.parallel": "none",
        "device.batch_size": None,
    }
    changed |= {"data.normalize": "none"} if scaling else {}
    trusted = [entry for member in runs for entry in member.cfg.get("trust") or ()]
    cfg = with_values(runs[0].cfg, {**changed, "trust": [*dict.fromkeys(trusted)]})
    with memory_released(), session(cfg, folder, overrides=overrides) as run:
        shared = build_shared(run.cfg, runs[0].folder, pretrained=False, trains=False, ranks=run.ranks)
        run.stack.callback(shared.data.close)
        plan = _plan(run, shared, runs, scaling, weights)
        run.begin(shared.engine, shared.data)
        train, done = Runner(run.cfg, folder).train_member, list[MemberResult]()
        while members := plan.next(done):
            done += train_members(run, members, shared, train)
        result = plan.combine(done)
        run.place.write_result(result)
        return result


def reopened(run: Session, shared: Shared) -> Library:
    """Return the plan of a stack of finished runs that was begun, as its folder says.

    Args:
        run: The run that the ensemble is.
        shared: The data and the device.

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
    if record.get("method") != Stacking.__name__:
        what, fix = "nothing is trained in an ensemble of finished runs", "`lightkit ensemble` makes a new one"
        raise UserError(what, key=str(run.place.path), fix=fix, family="ensemble")
    root, runs = project_root() or Path(), list[LibraryRun]()
    for row in members[:-1]:  # the last one is the meta-model
        folder = root / str(row["folder"])
        runs.append(LibraryRun(str(row["name"]), folder, read_run(folder).cfg))
    if run.cfg.ensemble.size != len(runs):
        what, fix = "the finished runs were chosen when the ensemble began", "`lightkit ensemble` with more runs"
        expected, received = str(len(runs)), run.cfg.ensemble.size
        raise UserError(what, key="ensemble.size", expected=expected, received=received, fix=fix, family="ensemble")
    return _plan(run, shared, runs, scaling_of(runs), None)


def _plan(
    run: Session,
    shared: Shared,
    runs: Sequence[LibraryRun],
    scaling: Mapping[str, Any],
    weights: Sequence[float] | None,
) -> Library:
    """Build the plan that the method of a configuration asks for.

    Raises:
        UserError: The runs do not go together or with the method, or no row is left that none of them trained on.
    """
    found = [held_out_predictions(member, run) for member in runs]
    method: Method = instantiate(run.cfg.ensemble, key="ensemble", expected=Method)
    facts = facts_of(run.cfg, shared)
    kind: type[Library] = Library
    with keys_under("ensemble"):
        if isinstance(method, Stacking):  # of whose checks none is needed: nothing is dealt out into folds
            from lightkit.runner.ensemble.library_stacking import StackedLibrary  # builds on this module

            kind = StackedLibrary
        else:
            method.check(replace(facts, members=()))
        unseen = _unseen(runs, found, method, weights)
        if any(len(own) < int(one.predicted.sum()) for own, one in zip(unseen, found)):
            run.tell(
                f"note: the runs were split differently: {counted(len(unseen[0]), 'row')} left that none trained on"
            )
        return kind(run, shared, method, facts, runs, unseen, scaling, weights)


class Library(EnsemblePlan):
    """Makes one model of runs that have finished.

    Args:
        run: The run that the ensemble is.
        shared: The data and the device.
        method: Weighs the members.
        facts: What the method knows of the run.
        runs: The members.
        predictions: What each predicts of the rows that none of them trained on.
        scaling: How each scales its inputs, by name, where they differ in that.
        weights: How much each counts; None leaves that to the method.
    """

    def __init__(
        self,
        run: Session,
        shared: Shared,
        method: Method,
        facts: RunFacts,
        runs: Sequence[LibraryRun],
        predictions: Sequence[MemberPredictions],
        scaling: Mapping[str, Any],
        weights: Sequence[float] | None,
    ) -> None:
        super().__init__(run, shared, method, facts)
        self.runs, self.unseen = {member.name: member for member in runs}, predictions
        self.scaling, self.given = scaling, weights

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`: nothing is trained."""
        self._record([*self._finished(), *done], [], {})
        return []

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """See `RunPlan.combine`: the finished runs come before what was trained."""
        return super().combine([*self._finished(), *done])

    def _finished(self) -> list[MemberResult]:
        return [member.result() for member in self.runs.values()]

    def _predictions(self, counted: Sequence[MemberResult]) -> list[MemberPredictions]:
        del counted
        return list(self.unseen)

    def _weights(self, predictions: Sequence[MemberPredictions]) -> Tensor:
        if self.given is None:
            return super()._weights(predictions)
        given = torch.tensor(self.given, dtype=torch.float64)
        return given / given.sum()

    def _selected_on(self, own: Sequence[MemberPredictions], shares: Mapping[str, float]) -> list[str]:
        return [] if self.given is not None else super()._selected_on(own, shares)

    def _values(
        self, counted: Sequence[MemberResult], predictions: Sequence[MemberPredictions]
    ) -> dict[str, dict[str, float]]:
        """Measure each member on the rows that the ensemble is measured on: its own may have been others."""
        return {
            result.member.name: {name: value for split in SPLITS for name, value in self._measured(own, split).items()}
            for result, own in zip(counted, predictions)
        }

    def _store(self, counted: Sequence[MemberResult], shares: Mapping[str, float]) -> int:
        """Write all networks into one file, also those of ensembles; return how many weights they have."""
        return self._write(*self._networks([result for result in counted if shares[result.member.name]], shares))

    def _networks(
        self, counted: Sequence[MemberResult], shares: Mapping[str, float]
    ) -> tuple[list[StoredMember], dict[str, Any]]:
        """Return the networks of members, also those of ensembles, and what else the file says of them."""
        members, groups, scaling = list[StoredMember](), list[dict[str, Any]](), dict(self.scaling)
        for result in counted:
            name, folder = result.member.name, result.folder
            if is_ensemble(folder):
                own = nested(read_ensemble(folder / run_files.ENSEMBLE_WEIGHTS), name, shares[name])
                members, groups, scaling = [*members, *own[0]], [*groups, *own[1]], {**scaling, **own[2]}
                continue
            cfg = self.runs[name].cfg
            state = content.load_model_state(counted_checkpoint(cfg, folder))
            members.append(StoredMember(name, to_yaml(cfg), shares[name], state))
        return members, {"groups": groups, "scaling": scaling}

    def _write(self, members: Sequence[StoredMember], more: dict[str, Any]) -> int:
        """Write the file of the ensemble; return how many weights it has."""
        info = self.shared.data.info
        stored = StoredEnsemble(members, self.method.rule, info.task, tuple(info.class_names), more)
        write_ensemble(self.run.place.path / run_files.ENSEMBLE_WEIGHTS, stored)
        return count_weights(members)

    def _record(self, done: Sequence[MemberResult], coming: Sequence[RunMember], weights: Mapping[str, float]) -> None:
        """Write `ensemble.json`, with the number of rows that no member trained on."""
        super()._record(done, coming, weights)
        path = self.run.place.path / run_files.ENSEMBLE
        plan = read_json(path)
        if self.given is not None:
            plan["settings"]["weights"] = list(self.given)
        write_json(path, {**plan, "rows": {split: len(self.unseen[0].of_split(split)) for split in SPLITS}})

    def _beginnings(self) -> dict[str, DictConfig]:
        """Return the configuration of each run; rows that the weights it began with have seen are left out already."""
        return {name: member.cfg for name, member in self.runs.items()}

    def _place(self, member: RunMember) -> str:
        """Tell where the folder of a member is, from that of the project."""
        folder, root = self.runs[member.name].folder.resolve(), (project_root() or Path()).resolve()
        return str(folder.relative_to(root) if folder.is_relative_to(root) else folder)


def _unseen(
    runs: Sequence[LibraryRun],
    found: Sequence[MemberPredictions],
    method: Method,
    weights: Sequence[float] | None,
) -> list[MemberPredictions]:
    """Keep the rows that no run trained on.

    Raises:
        UserError: None is left, or none to weigh the members by; or the runs are of other data or classes.
    """
    unseen = unseen_by_all(found)
    selects = weights is None and (isinstance(method, Stacking) or getattr(method, "weights", "uniform") != "uniform")
    left = unseen[0].of_split("train", "val") if selects else unseen[0]
    if len(left):
        return unseen
    told = []
    for run in runs:
        seed, count = run.cfg.data.split.seed, len(trained_rows(run.cfg, run.folder))
        told.append(f"{run.name} trained on {counted(count, 'row')} (data.split.seed={seed})")
    if len(unseen[0]):
        what = "no row is left to weigh the runs by, as test rows are for the report"
        if isinstance(method, Stacking):
            what = "no row is left for a meta-model to learn from, as test rows are for the report"
        fix = "runs with a validation split (data.split.val), or --method voting, which weighs all alike"
    else:
        what = "there is no row that none of these runs trained on"
        fix = "runs with the same data.split, data.split.seed included"
    raise UserError(what, key="lightkit ensemble", received="; ".join(told), fix=fix, family="ensemble")
