"""Ensembles of runs that have finished: nothing is trained, and the networks may be of any kind.

Weights and metrics come from rows alone that no run trained on, also where the runs were split differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightkit.assembly import Shared, build, build_engine, build_shared, build_splits
from lightkit.assembly.ensemble import is_ensemble
from lightkit.assembly.origin import facts_of as facts_of_data
from lightkit.assembly.origin import run_of
from lightkit.assembly.parts import role_of
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.config import instantiate, to_plain, to_yaml
from lightkit.config.project import located, project_root
from lightkit.ensemble.file import StoredEnsemble, StoredMember, read_ensemble, write_ensemble
from lightkit.ensemble.methods import Facts, Method
from lightkit.ensemble.nested import PARTS, nested
from lightkit.ensemble.oof import SPLITS, TASKS, MemberPredictions
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.ensemble.unseen import unseen_by_all
from lightkit.loggers.files import write_json
from lightkit.runner.ensemble import EnsemblePlan, facts_of
from lightkit.runner.members_combined import count_weights, counted_checkpoint
from lightkit.runner.models import with_checkpoint, with_ensemble
from lightkit.runner.predictions import predict_held_out
from lightkit.runner.session import Session, lock_folder, memory_released, outcome, session
from lightkit.runs.reading import read_facts, read_json, read_result, read_run
from lightkit.trainer import State


@dataclass(frozen=True)
class LibraryRun:
    """A finished run that becomes a member."""

    name: str
    """Its name among the members."""
    folder: Path
    """Its folder, which stays where it is."""
    cfg: DictConfig
    """Its configuration."""

    def result(self) -> MemberResult:
        """Return it as a plan knows a member that is trained."""
        role = to_plain(self.cfg.ensemble.get("member") or {})
        return MemberResult(RunMember(self.name, {"ensemble": {"member": role}}), self.folder, read_result(self.folder))


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
        _check(member)
    scaling = _scaling(runs)
    changed: dict[str, Any] = {
        "ensemble": dict(method),
        "name": name,
        "device.parallel": "none",
        "device.batch_size": None,
    }
    changed |= {"data.normalize": "none"} if scaling else {}
    trusted = [entry for member in runs for entry in member.cfg.get("trust") or ()]
    cfg = _with(runs[0].cfg, {**changed, "trust": [*dict.fromkeys(trusted)]})
    with memory_released(), session(cfg, folder, overrides=overrides) as run:
        found = [_predictions(member, run) for member in runs]
        shared = build_shared(run.cfg, runs[0].folder, pretrained=False, trains=False, ranks=run.ranks)
        run.stack.callback(shared.data.close)
        made: Method = instantiate(run.cfg.ensemble, key="ensemble", expected=Method)
        facts = facts_of(run.cfg, shared)
        with keys_under("ensemble"):
            made.check(replace(facts, members=()))
        unseen = _unseen(runs, found, made, weights)
        if any(len(own) < int(one.predicted.sum()) for own, one in zip(unseen, found)):
            run.tell(f"note: the runs were split differently: {len(unseen[0])} rows are left that none trained on")
        plan = Library(run, shared, made, facts, runs, unseen, scaling, weights)
        lock_folder(run.stack, run.place, fresh=True)
        known = {"visible": shared.engine.placement.mapping, "data": shared.data.info.fingerprint}
        run.place.record(run.cfg, run.overrides, device=shared.engine.describe(), **known, **facts_of_data(shared.data))
        run.stack.enter_context(outcome(run, run.place, run.cfg, State(), {}))
        result = plan.combine([member.result() for member in runs])
        run.place.write_result(result)
        return result


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
        facts: Facts,
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
        del done
        return []

    def _predictions(self, counted: Sequence[MemberResult]) -> list[MemberPredictions]:
        del counted
        return list(self.unseen)

    def _weights(self, predictions: Sequence[MemberPredictions]) -> Tensor:
        if self.given is None:
            return super()._weights(predictions)
        given = torch.tensor(self.given, dtype=torch.float64)
        return given / given.sum()

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
        members, groups, scaling = list[StoredMember](), list[dict[str, Any]](), dict(self.scaling)
        for result in counted:
            name, folder = result.member.name, result.folder
            if not shares[name]:
                continue
            if is_ensemble(folder):
                own = nested(read_ensemble(folder / run_files.ENSEMBLE_WEIGHTS), name, shares[name])
                members, groups, scaling = [*members, *own[0]], [*groups, *own[1]], {**scaling, **own[2]}
                continue
            cfg = self.runs[name].cfg
            state = content.load_model_state(counted_checkpoint(cfg, folder))
            members.append(StoredMember(name, to_yaml(cfg), shares[name], state))
        info = self.shared.data.info
        more = {"groups": groups, "scaling": scaling}
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

    def _place(self, member: RunMember) -> str:
        """Tell where the folder of a member is, from that of the project."""
        folder, root = self.runs[member.name].folder.resolve(), (project_root() or Path()).resolve()
        return str(folder.relative_to(root) if folder.is_relative_to(root) else folder)


def _with(cfg: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """Return a configuration with other values by key; a node takes the place of the node that was there."""
    changed: Any = OmegaConf.create(OmegaConf.to_container(cfg))
    for key, value in values.items():
        OmegaConf.update(changed, key, value, merge=False, force_add=True)
    OmegaConf.set_readonly(changed, True)
    found: DictConfig = changed
    return found


def _check(run: LibraryRun) -> None:
    """Refuse a run that has not finished, or whose network is worth nothing by itself.

    Raises:
        UserError: It is such a run.
    """
    result = read_result(run.folder)
    if result.get("status") != "finished":
        raise UserError(
            "this run has not finished",
            key=str(run.folder),
            received=result.get("status") or "no result.json that can be read",
            fix=f"lightkit resume {run.folder}, or leave it out",
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


def _scaling(runs: Sequence[LibraryRun]) -> dict[str, Any]:
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


def _predictions(member: LibraryRun, run: Session) -> MemberPredictions:
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
    seen = _rows_of_base(member.cfg, found.data)
    return found.take(~torch.isin(found.rows, seen)) if len(seen) else found


def _is_newest(member: LibraryRun, path: Path) -> bool:
    """Tell whether the weights that count are not younger than what they predicted."""
    if is_ensemble(member.folder):  # both are written together
        return True
    return path.stat().st_mtime_ns >= counted_checkpoint(member.cfg, member.folder).stat().st_mtime_ns


def _predict(member: LibraryRun) -> MemberPredictions:
    cfg, folder = _with(member.cfg, {"device.parallel": "none"}), member.folder
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


def _rows_of_base(cfg: DictConfig, fingerprint: str) -> Tensor:
    """Return the rows of these data that the runs learnt from whose weights a run began with."""
    path = cfg.finetune.get("weights", {}).get("path")
    base = run_of(located(path)) if path else None
    if base is None or read_facts(base).get("data") != fingerprint:
        return torch.zeros(0, dtype=torch.int64)
    own = read_run(base).cfg
    return torch.cat([_trained_rows(own, base), _rows_of_base(own, fingerprint)])


def _trained_rows(cfg: DictConfig, folder: Path) -> Tensor:
    """Return the training rows of a run; of a member of an ensemble those of all members."""
    data = build_splits(cfg, build_engine(_with(cfg, {"device.parallel": "none"})), folder)
    data.close()
    return data.rows["train"]


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
    selects = weights is None and getattr(method, "weights", "uniform") != "uniform"
    left = unseen[0].of_split("train", "val") if selects else unseen[0]
    if len(left):
        return unseen
    told = []
    for run in runs:
        seed, count = run.cfg.data.split.seed, len(_trained_rows(run.cfg, run.folder))
        told.append(f"{run.name} trained on {count} rows (data.split.seed={seed})")
    if len(unseen[0]):
        what = "no row is left to weigh the runs by, as test rows are for the report"
        fix = "runs with a validation split (data.split.val), or --method voting, which weighs all alike"
    else:
        what = "there is no row that none of these runs trained on"
        fix = "runs with the same data.split, data.split.seed included"
    raise UserError(what, key="lightkit ensemble", received="; ".join(told), fix=fix, family="ensemble")
