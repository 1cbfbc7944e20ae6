"""The run of an ensemble: its plan from the configuration, and what its members come to together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Shared, build_logger
from lightkit.assembly.parts import build_loss, build_metrics
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import keys_under
from lightkit.config import instantiate, to_plain
from lightkit.config.member_values import member_label, member_values
from lightkit.data.tensors import TensorData
from lightkit.ensemble.combining import as_logits, hard, soft
from lightkit.ensemble.file import StoredEnsemble, StoredMember, write_ensemble
from lightkit.ensemble.methods import Facts, Method, NoEnsemble, Stacking
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked
from lightkit.ensemble.plan import MemberResult, OneModel, RunMember, RunPlan
from lightkit.loggers import Logger
from lightkit.loggers.files import write_json
from lightkit.runner.session import Session
from lightkit.runs.reading import read_config
from lightkit.trainer.tasks import fit_shape


def build_plan(run: Session, shared: Shared) -> RunPlan:
    """Build the plan that the configuration asks for: one model, or the members of an ensemble.

    Args:
        run: The run.
        shared: What all its models share.

    Raises:
        UserError: The method does not go with the data or the rest of the configuration.
    """
    method: Method = instantiate(run.cfg.ensemble, key="ensemble", expected=Method)
    if isinstance(method, NoEnsemble):
        return OneModel()
    facts = facts_of(run.cfg, shared)
    with keys_under("ensemble"):
        method.check(facts)
    if isinstance(method, Stacking):
        from lightkit.runner.stacking import StackingPlan  # builds on this module

        return StackingPlan(run, shared, method, facts)
    return EnsemblePlan(run, shared, method, facts)


def facts_of(cfg: DictConfig, shared: Shared) -> Facts:
    """Return what the method of an ensemble has to know of a run."""
    data, source = shared.data, shared.data.source
    rows = data.rows["train"]
    bounds = None
    if isinstance(source, TensorData) and source.x.is_floating_point():
        low, high = source.x[rows].aminmax()
        bounds = float(low), float(high)
    return Facts(
        task=data.info.task,
        seed=cfg.seed,
        epochs=None if cfg.trainer.steps is not None else cfg.trainer.epochs,
        rows=rows,
        strata=getattr(source, "strata", None),
        groups=getattr(source, "groups", None),
        ordered=cfg.data.split.by == "ordered",
        inputs=bounds,
        members=[
            (member_label(entry, i)[3:], member_values(entry))
            for i, entry in enumerate(cfg.ensemble.get("members") or [])
        ],
        meta=member_values(to_plain(cfg.ensemble.get("meta") or {})),
    )


class EnsemblePlan:
    """Trains the members that a method names, and makes one model of them.

    Args:
        run: The run.
        shared: What all members share.
        method: Names the members and weighs them.
        facts: What the method knows of the run.
    """

    def __init__(self, run: Session, shared: Shared, method: Method, facts: Facts) -> None:
        self.run, self.shared, self.method, self.facts = run, shared, method, facts
        self.found: dict[str, Any] = {}
        """What else is told of the ensemble, in `ensemble.json` and `result.json`."""

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`."""
        members = self.method.next(self.facts, done)
        if self.run.ranks.main and self.run.place.is_recorded:
            self._record(done, members, {})
        return members

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """See `RunPlan.combine`."""
        result: dict[str, Any] = self.run.ranks.shared(lambda: self._combined(done))
        return result

    def _combined(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """Weigh the members, measure what they predict together, and write all that."""
        folder, counted = self.run.place.path, self.method.counted(done)
        own = [MemberPredictions.read(result.folder / run_files.PREDICTIONS_HELD_OUT) for result in counted]
        weights = self.method.weigh(own, self.facts)
        together = combined(own, weights, self.method.rule)
        together.write(folder / run_files.PREDICTIONS_HELD_OUT)
        values = {
            name: value for split in ("train", "val", "test") for name, value in self._measured(together, split).items()
        }
        shares = {result.member.name: float(weight) for result, weight in zip(counted, weights)}
        self._store(counted, shares)
        self._record(done, [], shares)
        members = {result.member.name: values_of(result.result) for result in counted}
        self._show(members, values)
        return self._result(members, values)

    def _measured(self, predictions: MemberPredictions, split: str) -> dict[str, float]:
        """Return loss and metrics of predictions on a split; those of training rows are called `oof/...`."""
        rows = predictions.of_split(split)
        rows = rows.take(rows.predicted)
        if not len(rows):
            return {}
        kind, name = ("val", "oof") if split == "train" else (split, split)
        metrics = build_metrics(self.run.cfg, self.shared.data.info, self.shared.engine)[kind]
        criterion = build_loss(self.run.cfg, self.shared.data.info, self.shared.engine)
        device = self.shared.engine.device
        target = rows.targets.to(device)
        output = fit_shape(as_logits(rows.predictions, rows.task).to(device), target)
        metrics.update(output, target, criterion(output, target), len(rows))
        return {f"{name}/{key.partition('/')[2]}": value for key, value in metrics.compute().items()}

    def _store(self, counted: Sequence[MemberResult], shares: Mapping[str, float]) -> None:
        """Write all networks into one file."""
        members = []
        for result in counted:
            weight = self.method.factor if self.method.rule == "last" else shares[result.member.name]
            state = content.load_model_state(counted_checkpoint(self.run.cfg, result.folder))
            members.append(StoredMember(result.member.name, read_config(result.folder), weight, state))
        rule = "sum" if self.method.rule == "last" else self.method.rule
        info = self.shared.data.info
        stored = StoredEnsemble(members, rule, info.task, tuple(info.class_names))
        write_ensemble(self.run.place.path / run_files.ENSEMBLE_WEIGHTS, stored)

    def _record(self, done: Sequence[MemberResult], coming: Sequence[RunMember], weights: Mapping[str, float]) -> None:
        """Write `ensemble.json`."""
        finished = {result.member.name: result for result in done}
        members = [result.member for result in done] + [m for m in coming if m.name not in finished]
        rows = [_row(member, finished.get(member.name), weights) for member in members]
        settings = {
            key: value for key, value in to_plain(self.run.cfg.ensemble).items() if key not in ("_target_", "member")
        }
        plan = {"method": type(self.method).__name__, "settings": settings, "members": rows, **self.found}
        write_json(self.run.place.path / run_files.ENSEMBLE, plan)

    def _show(self, members: Mapping[str, Mapping[str, float]], values: Mapping[str, float]) -> None:
        """Show what mean member, best member and ensemble reach."""
        logger = build_logger(self.run.cfg, self.run.place.path)
        logger.start(0)
        logger.scalars(values, step=len(members), epoch=0)
        columns, rows = comparison(
            members, values, mode=self.run.cfg.metrics.mode, monitor=self.run.cfg.metrics.monitor
        )
        logger.table(f"{type(self.method).__name__} of {len(members)}", columns, rows)
        self._show_more(logger)
        logger.message(f"folder  {self.run.place.path}")
        logger.close()

    def _show_more(self, logger: Logger) -> None:
        """Show what else there is to be told."""

    def _result(self, members: Mapping[str, Mapping[str, float]], values: Mapping[str, float]) -> dict[str, Any]:
        """Return the content of `result.json`."""
        metrics = self.run.cfg.metrics
        return {
            "status": "finished",
            "reason": None,
            "name": self.run.cfg.name,
            "seconds": round(time.monotonic() - self.run.began, 3),
            "objective": {"name": metrics.monitor, "mode": metrics.mode, "value": values.get(metrics.monitor)},
            "test": {name: value for name, value in values.items() if name.startswith("test/")},
            "metrics": dict(values),
            "members": {name: dict(own) for name, own in members.items()},
            **self.found,
        }


def combined(members: Sequence[MemberPredictions], weights: Tensor, rule: str) -> MemberPredictions:
    """Make one of the predictions of several members.

    Args:
        members: Their predictions.
        weights: How much each counts, `(M,)`.
        rule: See `lightkit.ensemble.methods.Method.rule`.
    """
    from dataclasses import replace

    together = aligned(members)
    first, predictions = together[0], stacked(together)
    if rule == "last":
        return together[-1]
    votes = rule == "hard" and first.task != "regression"
    found = hard(predictions, weights, task=first.task) if votes else soft(predictions, weights)
    counts = torch.stack([member.counts for member in together]).sum(0)
    counts = torch.where(found.isnan().any(1), torch.zeros_like(counts), counts)
    return replace(first, counts=counts, predictions=found)


def values_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that a member ended with: those of the weights that count."""
    return {**result["metrics"], **result["best"], **result["test"]}


def comparison(
    members: Mapping[str, Mapping[str, float]], values: Mapping[str, float], *, monitor: str, mode: str
) -> tuple[list[str], list[list[str]]]:
    """Make column names and rows of a table: each metric of the mean member, the best one and the ensemble.

    Args:
        members: Values by member and name.
        values: Those of the ensemble.
        monitor: Name of the value that decides which member is the best.
        mode: Whether `min` or `max` of it is better.
    """
    known = {name: own[monitor] for name, own in members.items() if monitor in own}
    best = (min if mode == "min" else max)(known, key=lambda name: known[name]) if known else next(iter(members))
    rows = []
    for name, value in values.items():
        own = [found[name] for found in members.values() if name in found]
        mean = f"{sum(own) / len(own):.4f}" if own else ""
        rows.append([name, mean, f"{members[best][name]:.4f}" if name in members[best] else "", f"{value:.4f}"])
    return ["metric", "mean member", f"best member ({best})", "ensemble"], rows


def _row(member: RunMember, result: MemberResult | None, weights: Mapping[str, float]) -> dict[str, Any]:
    """Describe a member in the record of the plan."""
    role = member.values["ensemble"]["member"]
    bases = [name for names in role.get("features", ()) for name in names]
    needs = [*role.get("adds_to", ()), *bases, *role.get("refits", ()), *filter(None, [role.get("weights_of")])]
    facts = result.result if result else {}
    return {
        "name": member.name,
        "status": facts.get("status", "waiting"),
        "depends_on": needs,
        "rows": role.get("rows", "all"),
        "epochs": facts.get("epochs"),
        "objective": facts.get("objective"),
        "weight": weights.get(member.name),
    }


def counted_checkpoint(cfg: DictConfig, folder: Path) -> Path:
    """Return the checkpoint with the weights that count, of a member that has ended."""
    store = CheckpointStore(folder / run_files.CHECKPOINTS, mode=cfg.metrics.mode)
    path = (store.best() if cfg.trainer.test != "last" else None) or store.newest()
    assert path is not None, "checkpoints of members are always on"
    return path
