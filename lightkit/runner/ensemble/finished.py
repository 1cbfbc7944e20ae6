"""Finished runs as the members of an ensemble, whose networks may be of any kind and stay as they are.

Weights and metrics come from rows alone that no run trained on, also where the runs were split differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightkit.assembly import build, build_engine, build_splits
from lightkit.assembly.ensemble import is_ensemble
from lightkit.assembly.origin import run_of
from lightkit.assembly.parts import role_of
from lightkit.assembly.run_rows import read_rows
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import to_plain, with_values
from lightkit.config.project import located
from lightkit.ensemble.file import PARTS, read_ensemble
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.ensemble.oof import TASKS, MemberPredictions
from lightkit.runner.ensemble.predictions import predict_held_out
from lightkit.runner.evaluation import checkpoint_path
from lightkit.runner.models import with_checkpoint, with_ensemble
from lightkit.runner.session import Session, memory_released
from lightkit.runs.reading import read_facts, read_result, read_run


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
        what, fix = "this run has not finished", f"lightkit resume {run.folder}{on}, or leave it out"
        received = result.get("status") or "no result.json that can be read"
        raise UserError(what, key=str(run.folder), received=received, fix=fix, family="ensemble")
    role = role_of(run.cfg)
    if role.adds_to or role.features:
        what, fix = "this member of an ensemble counts together with others only", "the whole ensemble: "
        raise UserError(what, key=str(run.folder), fix=f"{fix}{run.folder.parent.parent}", family="ensemble")
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
            what = f"missing inputs are filled in otherwise than in {runs[0].name}"
            fix = "runs with the same data.dataset and data.split"
            raise UserError(what, key=str(run.folder), fix=fix, family="ensemble")
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
            what, received = "runs of this kind cannot be combined", info.task
            raise UserError(what, key=str(folder), received=received, choices=TASKS, family="ensemble")
        if trained_on not in (None, info.fingerprint):
            what, expected = "the data are no longer those that this run was trained on", f"fingerprint {trained_on}"
            raise UserError(what, key=str(folder), expected=expected, received=info.fingerprint, family="ensemble")
        if is_ensemble(folder):
            parts = with_ensemble(parts, folder, cfg)
        else:
            parts = with_checkpoint(parts, "last" if cfg.trainer.test == "last" else "best", folder, cfg)
        return predict_held_out(parts, source=str(folder))
    finally:
        parts.data.close()


_BEGINNINGS = ("finetune.weights.path", "finetune.weights.adapter", "resume.file")
"""Keys that name the weights that a run begins with."""


class Seen(NamedTuple):
    """What is known of the rows that weights have learnt from."""

    rows: Tensor
    """Those of the same data, int64."""
    unknown: tuple[str, ...]
    """Files of weights of which nobody knows what they have learnt from."""


def rows_of_base(cfg: DictConfig, fingerprint: str) -> Seen:
    """Return which rows of some data the runs learnt from whose weights a run began with.

    Args:
        cfg: The configuration of the run.
        fingerprint: That of the data.
    """
    rows, unknown = [torch.zeros(0, dtype=torch.int64)], list[str]()
    for path in filter(None, (OmegaConf.select(cfg, key) for key in _BEGINNINGS)):
        base = run_of(located(path))
        if base is None:
            unknown.append(str(path))
        elif read_facts(base).get("data") == fingerprint:
            own = read_run(base).cfg
            before = rows_of_base(own, fingerprint)
            rows += [trained_rows(own, base), before.rows]
            unknown += before.unknown
    return Seen(torch.cat(rows).unique(), tuple(dict.fromkeys(unknown)))


def trained_rows(cfg: DictConfig, folder: Path) -> Tensor:
    """Return the training rows of a run; of a member of an ensemble those of all members."""
    kept = read_rows(folder)
    if kept is not None and kept.fingerprint == read_facts(folder).get("data"):
        return kept.rows()["train"]
    data = build_splits(cfg, build_engine(with_values(cfg, {"device.parallel": "none"})), folder)
    data.close()
    return data.rows["train"]


def counted_checkpoint(cfg: DictConfig, folder: Path, *, last: bool | None = None) -> Path:
    """Return the checkpoint with the weights that count, of a run that has ended.

    Args:
        cfg: Its configuration.
        folder: Its folder.
        last: Whether the last weights count; None goes by the configuration.

    Raises:
        UserError: It has none.
    """
    store = CheckpointStore(folder / run_files.CHECKPOINTS, mode=cfg.metrics.mode)
    is_last = cfg.trainer.test == "last" if last is None else last
    return checkpoint_path(store, "last" if is_last else "best", folder)
