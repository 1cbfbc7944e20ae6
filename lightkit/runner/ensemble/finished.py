"""Finished runs as the members of an ensemble, whose networks may be of any kind and stay as they are.

Weights and metrics come from rows alone that no run trained on, also where the runs were split differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Shared, build
from lightkit.assembly.ensemble import is_ensemble
from lightkit.assembly.parts import role_of
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.common.text import counted
from lightkit.config import to_plain, to_yaml
from lightkit.config.member_values import with_values
from lightkit.config.project import project_root
from lightkit.ensemble.file import PARTS, StoredMember, nested, read_ensemble
from lightkit.ensemble.methods import Method, RunFacts
from lightkit.ensemble.oof import SPLITS, TASKS, MemberPredictions
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.ensemble.rows import unseen_by_all
from lightkit.runner.ensemble.doubts import rows_of_base, trained_rows
from lightkit.runner.ensemble.members import Members, counted_checkpoint
from lightkit.runner.ensemble.predictions import predict_held_out
from lightkit.runner.models import with_checkpoint, with_ensemble
from lightkit.runner.session import Session, memory_released
from lightkit.runs.reading import read_ensemble_plan, read_facts, read_result, read_run


@dataclass(frozen=True)
class FinishedRun:
    """A finished run that becomes a member."""

    name: str
    """Its name among the members."""
    folder: Path
    """Its folder, which stays where it is."""
    cfg: DictConfig
    """Its configuration."""

    def result(self) -> MemberResult:
        """Return it as a plan knows a member that is trained."""
        said = to_plain(self.cfg.ensemble.get("member") or {})
        role = {key: value for key, value in said.items() if value is not None}
        return MemberResult(RunMember(self.name, {"ensemble": {"member": role}}), self.folder, read_result(self.folder))


def check_run(run: FinishedRun) -> None:
    """Refuse a run that has not finished, or whose network is worth nothing by itself.

    Raises:
        UserError: It is such a run.
    """
    result = read_result(run.folder)
    if result.get("status") != "finished":
        on = " trainer.stop_at=null" if result.get("status") == "paused" else ""
        raise UserError(
            "this run has not finished",
            key=str(run.folder),
            received=result.get("status") or "no result.json that can be read",
            fix=f"lightkit resume {run.folder}{on}, or leave it out",
            family="ensemble",
        )
    role = role_of(run.cfg)
    if role.adds_to or role.features:
        raise UserError(
            "this member of an ensemble counts together with others only",
            key=str(run.folder),
            fix=f"the whole ensemble: {run.folder.parent.parent}",
            family="ensemble",
        )
    more = read_ensemble(run.folder / run_files.ENSEMBLE_WEIGHTS).more if is_ensemble(run.folder) else None
    if more and not {*more} <= {*PARTS}:
        raise UserError("an ensemble of this method cannot be a member", key=str(run.folder), family="ensemble")


def scaling_of(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return how each run scales its inputs, by name, where they do not all do so alike; nothing where they do.

    Raises:
        UserError: They fill in missing inputs differently.
    """
    facts = [read_facts(run.folder) for run in runs]
    for run, known in zip(runs, facts):
        if known.get("filling") != facts[0].get("filling"):
            raise UserError(
                f"missing inputs are filled in otherwise than in {runs[0].name}",
                key=str(run.folder),
                fix="runs with the same data.dataset and data.split",
                family="ensemble",
            )
    scaling = {run.name: known["scaling"] for run, known in zip(runs, facts) if known.get("scaling")}
    alike = all(known.get("scaling") == facts[0].get("scaling") for known in facts)
    return {} if alike else scaling


def held_out_predictions(member: FinishedRun, run: Session) -> MemberPredictions:
    """Read what a run predicts of rows that it did not learn from, or find it out and keep it in its folder.

    Raises:
        UserError: It cannot be predicted with, or its data are others by now.
    """
    path = member.folder / run_files.PREDICTIONS_HELD_OUT
    found = MemberPredictions.read(path) if path.is_file() and _is_newest(member, path) else None
    if found is None:
        run.tell(f"{member.name}: its predictions are not kept yet, and are made now")
        with memory_released():
            found = _predict(member)
        try:
            found.write(path)
        except UserError as error:
            run.tell(f"note: {error.what}: they are made anew the next time")
    seen = rows_of_base(member.cfg, found.data).rows
    return found.take(~torch.isin(found.rows, seen)) if len(seen) else found


def _is_newest(member: FinishedRun, path: Path) -> bool:
    """Tell whether the weights that count are not younger than what they predicted."""
    if is_ensemble(member.folder):  # both are written together
        return True
    return path.stat().st_mtime_ns >= counted_checkpoint(member.cfg, member.folder).stat().st_mtime_ns


def _predict(member: FinishedRun) -> MemberPredictions:
    cfg, folder = with_values(member.cfg, {"device.parallel": "none"}), member.folder
    parts = build(cfg, folder, pretrained=False, trains=False)
    try:
        info, trained_on = parts.data.info, read_facts(folder).get("data")
        if info.task not in TASKS:
            raise UserError(
                "runs of this kind cannot be combined", key=str(folder), received=info.task, choices=TASKS,
                family="ensemble",
            )  # fmt: skip
        if trained_on not in (None, info.fingerprint):
            raise UserError(
                "the data are no longer those that this run was trained on",
                key=str(folder),
                expected=f"fingerprint {trained_on}",
                received=info.fingerprint,
                family="ensemble",
            )
        if is_ensemble(folder):
            parts = with_ensemble(parts, folder, cfg)
        else:
            parts = with_checkpoint(parts, "last" if cfg.trainer.test == "last" else "best", folder, cfg)
        return predict_held_out(parts, source=str(folder))
    finally:
        parts.data.close()


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
