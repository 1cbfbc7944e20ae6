"""The run of an ensemble: its plan from the configuration, and what its members come to together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightkit.assembly import Shared, build_learner, build_logger
from lightkit.assembly.dry_run import unnoticed
from lightkit.assembly.ensemble import is_of_finished_runs
from lightkit.assembly.member import Features, own_rows
from lightkit.assembly.network import build_network
from lightkit.assembly.parts import role_of
from lightkit.common import run_files
from lightkit.common.argument_checks import IN_ORDER
from lightkit.common.collecting import uncollected
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.config import defaults_of, instantiate, public, to_plain, with_values
from lightkit.config.member_values import member_label, member_values
from lightkit.config.saved import from_yaml
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.data import Data
from lightkit.data.tensors import TensorData
from lightkit.ensemble.combining import as_logits
from lightkit.ensemble.file import StoredEnsemble, write_ensemble
from lightkit.ensemble.methods import Combination, Method, NoEnsemble, RunFacts
from lightkit.ensemble.methods.base import MemberResult, OneModel, RunMember, RunPlan
from lightkit.ensemble.oof import SPLITS
from lightkit.ensemble.stacking import Inputs, contradiction_lines, contradictions, stack_features
from lightkit.ensemble.tasks import SOLVABLE
from lightkit.ensemble.validations import read_validations
from lightkit.loggers import Logger
from lightkit.loggers.files import write_json
from lightkit.metrics import Figures, write_figures
from lightkit.runner.ensemble.figures import ENSEMBLE, CurvePoint, draw, over_size, over_validations
from lightkit.runner.ensemble.finished import rows_of_base
from lightkit.runner.ensemble.members import FinishedRuns, Members, checked, count_weights, reopened
from lightkit.runner.ensemble.report import Outcome, SplitMeter, comparison, make_report, summary_lines
from lightkit.runner.evaluation import evaluate_split
from lightkit.runner.messages import about_limits, introduction
from lightkit.runner.models import with_ensemble
from lightkit.runner.session import Session
from lightkit.runs.reading import read_config


def build_plan(run: Session, shared: Shared, finished: FinishedRuns | None = None) -> RunPlan:
    """Build the plan that the configuration asks for: one model, or the members of an ensemble.

    Args:
        run: The run.
        shared: What all its models share.
        finished: Runs that are its members; None looks whether the folder holds an ensemble of such runs.

    Raises:
        UserError: The method does not go with the data or the rest of the configuration.
    """
    method: Method = instantiate(run.cfg.ensemble, key="ensemble", expected=Method)
    if isinstance(method, NoEnsemble):
        return OneModel()
    if finished is None and is_of_finished_runs(run.place.path):
        finished = reopened(run, shared, method)
    members = finished or Members(run, shared)
    facts, monitor = members.checked(method, facts_of(run.cfg, shared)), run.cfg.metrics.monitor
    if not method.votes and monitor.partition("/")[0] in shared.data.more:
        what, fix = "a meta-model learns from predictions, not on the sets of data.more", "metrics.monitor=val/loss"
        raise UserError(what, key="metrics.monitor", received=monitor, fix=fix, family="ensemble")
    run.members.opening = introduction(run.cfg, run.place.path, shared.data, type(method).__name__)
    run.members.opening += method.notes(facts)
    if method.layers > 1:
        check_vectors(run.cfg, shared, method, facts)
    return EnsemblePlan(run, shared, method, facts, members)


def checked_method(cfg: DictConfig, shared: Shared) -> tuple[Method, RunFacts | None]:
    """Build the method of an ensemble and what it has to know of the run; None for that where there is one model.

    Raises:
        UserError: The method does not go with the data or the rest of the configuration.
    """
    method: Method = instantiate(cfg.ensemble, key="ensemble", expected=Method)
    return method, None if isinstance(method, NoEnsemble) else checked(method, facts_of(cfg, shared), shared)


def facts_of(cfg: DictConfig, shared: Shared) -> RunFacts:
    """Return what the method of an ensemble has to know of a run."""
    data, source = shared.data, shared.data.source
    rows = data.rows["train"]
    bounds = None
    if isinstance(source, TensorData) and source.x.is_floating_point():
        low, high = source.x[rows].aminmax()
        bounds = float(low), float(high)
    return RunFacts(
        task=data.info.task,
        seed=cfg.seed,
        epochs=None if cfg.trainer.steps is not None else cfg.trainer.epochs,
        rows=rows,
        strata=getattr(source, "strata", None),
        groups=data.groups,
        ordered=cfg.data.split.by in IN_ORDER,
        validated=data.val is not None,
        last=cfg.trainer.test == "last",
        inputs=bounds,
        members=[
            (member_label(entry, i)[3:], member_values(entry))
            for i, entry in enumerate(cfg.ensemble.get("members") or [])
        ],
        meta=member_values(to_plain(cfg.ensemble.get("meta") or {})),
        solvable=_is_solvable(to_plain(cfg.loss)),
        anew={"~finetune": None, "finetune": defaults_of(FinetuneConfig)},
    )


def _is_solvable(loss: Mapping[str, Any]) -> bool:
    """Tell whether a loss is one under which a linear network is solved for (`lightkit.ensemble.tasks`)."""
    plain = {"_target_", "weight", "pos_weight"}
    more = {key: value for key, value in loss.items() if key not in plain and value not in (None, 0.0)}
    return loss["_target_"] in SOLVABLE and more in ({}, {"reduction": "mean"})


class EnsemblePlan:
    """Trains the members that a method names, and makes one model of them.

    Args:
        run: The run.
        shared: What all members share.
        method: Names the members and combines them.
        facts: What the method knows of the run.
        members: Tells of members what they predict and reach, and gives their networks.
    """

    def __init__(self, run: Session, shared: Shared, method: Method, facts: RunFacts, members: Members) -> None:
        self.run, self.shared, self.method, self.facts, self.members = run, shared, method, facts, members
        self.found: dict[str, Any] = {}
        """What else is told of the ensemble, in `ensemble.json` and `result.json`."""
        self.lines: list[str] = []
        """What else is told of it below the table."""

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`."""
        done = [*self.members.finished, *done]
        plain: dict[str, Any] = {"metrics.figures": []}  # of many members they would take longer than their training
        at_once = self.method.engine == "torchensemble"  # which trains also those in one go that need each other
        named = self.method.next(self.facts, done) if not at_once else [] if done else self.method.every(self.facts)
        coming = [replace(found, values={**plain, **found.values}) for found in named]
        if coming:
            self.members.begin()
        self.run.members.expect(member.name for member in coming)
        self.run.ranks.shared(lambda: self._record(done, coming, {}) if self.run.place.is_recorded else None)
        return coming

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """See `RunPlan.combine`."""
        return self.run.ranks.shared(lambda: self._combined([*self.members.finished, *done]))

    @uncollected()
    def _combined(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """Combine the members, measure the ensemble, write its files, show what it came to, and return its result."""
        run, apart = self.run, self.method.held_apart(self.facts)
        made = self.method.combine(done, self.members.predictions, self.facts)
        self.found, self.lines = dict(made.facts), [*made.lines]
        made.predictions.write(run.place.path / run_files.PREDICTIONS_HELD_OUT)
        splits = ("train", "val") if run.cfg.trainer.test == "none" else SPLITS
        values = self.members.measured(made.predictions.of_split(*splits), apart)
        parameters = self._store(done, made)
        values |= self._on_further_sets()
        self._record(done, [], made.weights)
        pairs, method, goal = zip(made.members, made.own), self.method, run.cfg.metrics
        single = {one.member.name: self.members.values(one, own, apart) for one, own in pairs}
        outcome = Outcome(type(method).__name__, method.rule, made, values, single, goal.monitor, goal.mode)
        patient, seconds = ENSEMBLE in goal.figures, round(time.monotonic() - run.began, 3)
        report = make_report(outcome, seconds=seconds, parameters=parameters, seed=run.cfg.seed, patient=patient)
        self._doubt(made, apart)
        self._show(outcome, report)
        return self._result(values, report)

    def _on_further_sets(self) -> dict[str, float]:
        """Return loss and metrics of the ensemble on the sets of `data.more`; not where processes share their rows."""
        cfg, path, more = self.run.cfg, self.run.place.path, self.shared.data.more
        if not more or self.run.ranks.size > 1:
            return {}
        parts = with_ensemble(build_learner(cfg, self.shared, path, pretrained=False, trains=False), path, cfg)
        return {name: value for split in more for name, value in evaluate_split(parts, split).items()}

    def _doubt(self, made: Combination, apart: Tensor) -> None:
        """Find out what speaks against the values of the ensemble: contradicting losses, and rows seen before."""
        data, rows = self.shared.data, made.predictions
        unknown, seen, found = dict[str, Any](), dict[str, int](), contradictions(made.views, data.groups, apart)
        self.lines += contradiction_lines(found)
        for name, cfg in self.members.beginnings(self.facts).items():
            base = rows_of_base(cfg, data.info.fingerprint)
            held = int((rows.predicted & torch.isin(rows.rows, base.rows)).sum())
            if base.unknown:
                unknown[name] = [*base.unknown]
                self.lines.append(
                    f"unknown rows  {name} began with the weights of {', '.join(base.unknown)}: which rows these have "
                    "learnt from is not known, so rows that count as unseen may be among them"
                )
            if held:
                seen[name] = held
                self.lines.append(
                    f"seen before   {name} began with weights that have learnt from {held} of the "
                    f"{int(rows.predicted.sum())} rows that count as unseen: values on these are better than on new "
                    "rows"
                )
        self.found |= {"contradictions": found, "unknown_rows": unknown, "seen_rows": seen}

    def _store(self, done: Sequence[MemberResult], made: Combination) -> int:
        """Write the networks that count, and those that feed them, into one file; return how many weights they have."""
        rule, info, counted = self.method.rule, self.shared.data.info, made.members
        inputs = {} if self.method.votes else stack_inputs(done, self.shared.data)
        if self.members.finished or not self.method.votes:
            wanted, waiting = set[str](), [name for name, share in made.weights.items() if share > 0]
            while waiting:
                name = waiting.pop()
                wanted.add(name)
                own = inputs.get(name)
                waiting += [one for base in own.columns for one in base if one not in wanted] if own else []
            counted = [result for result in done if result.member.name in wanted]
        weights = dict.fromkeys(made.weights, self.method.factor) if rule == "last" else made.weights
        members, more = self.members.stored(counted, weights)
        names = [result.member.name for result in counted]
        used = {name: asdict(own) for name, own in inputs.items() if name in names}
        if used or not (self.members.finished or self.method.votes):
            more = {**more, "inputs": used}
        stored = StoredEnsemble(members, "sum" if rule == "last" else rule, info.task, tuple(info.class_names), more)
        write_ensemble(self.run.place.path / run_files.ENSEMBLE_WEIGHTS, stored)
        return count_weights(members)

    def _record(self, done: Sequence[MemberResult], coming: Sequence[RunMember], weights: Mapping[str, float]) -> None:
        """Write `ensemble.json`."""
        finished = {result.member.name: result for result in done}
        members = [result.member for result in done] + [m for m in coming if m.name not in finished]
        rows = [_row(one, finished.get(one.name), weights, self.members.place(one)) for one in members]
        settings = {
            key: value for key, value in to_plain(self.run.cfg.ensemble).items() if key not in ("_target_", "member")
        }
        if self.facts.given:
            settings["weights"] = list(self.facts.given)
        plan = {"method": type(self.method).__name__, "settings": settings, "members": rows, **self.found}
        write_json(self.run.place.path / run_files.ENSEMBLE, {**plan, **self.members.recorded()})

    def _show(self, outcome: Outcome, report: Mapping[str, Any]) -> None:
        """Show what mean member, best member and ensemble reach; write values, settings and figures."""
        cfg, members, folder = self.run.cfg, self.run.members, self.run.place.path
        members.close()
        logger = build_logger(cfg, folder, console=Logger(), strict=False)  # the table on the console says it all
        logger.start(0)
        step, epoch = (
            max(int(found.result.get(key) or 0) for found in outcome.made.members) for key in ("steps", "epochs")
        )
        curve = self._over_epochs(outcome)
        self._draw(outcome, logger, curve, step=step)
        for point in curve:
            logger.scalars(point.values, step=point.step, epoch=int(point.epoch))
        logger.scalars(outcome.values, step=step, epoch=epoch)
        logger.hparams(public(cfg), self.run.overrides)
        logger.end("finished")
        table = comparison(report, outcome.values, outcome.monitor)
        lines = [*summary_lines(report), *self.lines, *about_limits(cfg, self.shared.data)]
        title = f"{outcome.method} of {outcome.networks}"
        for shown in (members.console, logger):
            shown.table(title, *table)
            for line in [*lines, f"folder  {folder}"]:
                shown.message(line)
        logger.close()

    def _over_epochs(self, outcome: Outcome) -> list[CurvePoint]:
        """Measure the ensemble at each validation of members that have learnt by themselves."""
        val, folder = self.shared.data.evaluation("val"), self.run.place.path / run_files.MEMBERS
        counted = [member for member in outcome.made.members if outcome.made.weights.get(member.member.name)]
        if (
            not self.method.votes
            or not outcome.independent
            or val is None
            or any(member.folder.parent != folder for member in counted)
        ):
            return []
        kept = {own.member.name: read_validations(own.folder / run_files.VALIDATIONS) for own in counted}
        missing = [name for name, records in kept.items() if not records]
        if missing:
            told = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
            self.lines.append(f"over epochs  only the members: no predictions of their validations are left of {told}")
            return []
        return over_validations(outcome, kept, val.rows, SplitMeter(self.run.cfg, self.shared, "val"))

    def _draw(self, outcome: Outcome, logger: Logger, curve: Sequence[CurvePoint], *, step: int) -> None:
        """Draw the figures that `metrics.figures` names, and log the curve over the size."""
        cfg, info, folder = self.run.cfg, self.shared.data.info, self.run.place.path / run_files.FIGURES
        test = outcome.made.predictions.of_split("test")
        figures = Figures(info.task, cfg.metrics.figures, info.class_names, info.num_classes)
        if len(test):
            figures.update(as_logits(test.predictions, test.task), test.targets)
        figures.write(logger, folder, step=step)
        if ENSEMBLE not in cfg.metrics.figures or not outcome.metric:
            return
        split, _, only = outcome.metric.partition("/")
        sizes = over_size(outcome, SplitMeter(cfg, self.shared, split, only=only), seed=cfg.seed)
        if sizes is not None:
            for size, value in zip(sizes.sizes, sizes.mean):
                logger.scalars({f"{outcome.metric}_over_size": value}, step=size, epoch=0)
        write_figures(draw(outcome, sizes, curve), logger, folder, step=step)

    def _result(self, values: Mapping[str, float], report: Mapping[str, Any]) -> dict[str, Any]:
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
            **report,
            **self.found,
        }


def stack_inputs(done: Sequence[MemberResult], data: Data) -> dict[str, Inputs]:
    """Return what the members of a stack take in that do not take the inputs of the data, by name."""
    found = {}
    for result in done:
        if result.member.values["ensemble"]["member"].get("features"):
            cfg = OmegaConf.create(from_yaml(read_config(result.folder)))
            role = role_of(cfg)
            source = own_rows(cfg, data, result.folder).source
            assert isinstance(source, Features)
            columns = [[last] for last in role.refits] or role.features
            scaling = source.shift.tolist(), source.scale.tolist()
            found[result.member.name] = Inputs(columns, role.passthrough, *scaling)
    return found


def check_vectors(cfg: DictConfig, shared: Shared, method: Method, facts: RunFacts) -> None:
    """Try each kind of member on a vector, which is what members of a further layer get.

    Raises:
        UserError: One takes no vectors.
    """
    info, source = shared.data.info, shared.data.source
    inputs = source.x[:2].flatten(1) if isinstance(source, TensorData) else None
    features = stack_features([torch.zeros(2, info.num_classes)] * len(method.kinds(facts)), info.task, inputs)
    size: Any = {"input_shape": (features.shape[1],), "vocab_size": None, "context_length": None}
    with unnoticed(shared.engine.device), torch.no_grad():
        for number, (label, values) in enumerate(facts.members or [("", {})]):
            own = with_values(cfg, values)
            try:
                made = build_network(own, replace(info, **size), shared.engine, pretrained=False)
                made.model.eval()(features)
            except Exception as error:
                raise UserError(
                    "a further layer gives its members vectors, which this kind of member does not take: "
                    f"{error.what if isinstance(error, UserError) else in_short(error)}",
                    key="ensemble.layers",
                    expected="1, or kinds of members that take vectors, such as model=mlp",
                    received=f"{method.layers}, with member {label or number}",
                    family="ensemble",
                ) from error


def _row(member: RunMember, result: MemberResult | None, weights: Mapping[str, float], folder: str) -> dict[str, Any]:
    """Describe a member in the record of the plan."""
    role = member.values["ensemble"]["member"]
    bases = [name for names in role.get("features") or () for name in names]
    needs = [*(role.get("adds_to") or ()), *bases, *(role.get("refits") or ())]
    needs += [*filter(None, [role.get("weights_of")]), *(role.get("computed_from") or ())]
    facts = result.result if result else {}
    return {
        "name": member.name,
        "folder": folder,
        "status": facts.get("status", "waiting"),
        "depends_on": needs,
        "rows": role.get("rows", "all"),
        "epochs": facts.get("epochs"),
        "objective": facts.get("objective"),
        "weight": weights.get(member.name),
    }
