"""The run of an ensemble: its plan from the configuration, and what its members come to together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Shared, build_logger
from lightkit.assembly.ensemble import is_of_finished_runs
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.errors import keys_under
from lightkit.config import instantiate, public, to_plain
from lightkit.config.member_values import member_label, member_values, with_values
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.data.tensors import TensorData
from lightkit.ensemble.combining import as_logits
from lightkit.ensemble.file import StoredEnsemble, StoredMember, write_ensemble
from lightkit.ensemble.greedy import weighing_rows
from lightkit.ensemble.linear import SOLVABLE
from lightkit.ensemble.methods import Method, NoEnsemble, RunFacts, Stacking
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.plan import MemberResult, OneModel, RunMember, RunPlan
from lightkit.ensemble.validations import read_validations
from lightkit.loggers import Logger
from lightkit.loggers.files import write_json
from lightkit.metrics import Figures, write_figures
from lightkit.runner.ensemble.combined import SplitMeter, combined, count_weights, counted_checkpoint
from lightkit.runner.ensemble.doubts import contradictions, lines, rows_of_base, seen_line, unknown_line
from lightkit.runner.ensemble.figures import ENSEMBLE, draw, over_size
from lightkit.runner.ensemble.report import Outcome, comparison, make_report, told, values_of
from lightkit.runner.ensemble.validations import CurvePoint, over_validations
from lightkit.runner.messages import introduction
from lightkit.runner.session import Session
from lightkit.runs.reading import read_config


def build_plan(run: Session, shared: Shared) -> RunPlan:
    """Build the plan that the configuration asks for: one model, or the members of an ensemble.

    Args:
        run: The run.
        shared: What all its models share.

    Raises:
        UserError: The method does not go with the data or the rest of the configuration.
    """
    if is_of_finished_runs(run.place.path):
        from lightkit.runner.ensemble.library import reopened  # builds on this module

        return reopened(run, shared)
    method, facts = checked_method(run.cfg, shared)
    if facts is None:
        return OneModel()
    if isinstance(method, Stacking):
        from lightkit.runner.ensemble.stacking import StackingPlan  # builds on this module

        return StackingPlan(run, shared, method, facts)
    return EnsemblePlan(run, shared, method, facts)


def checked_method(cfg: DictConfig, shared: Shared) -> tuple[Method, RunFacts | None]:
    """Build the method of an ensemble and what it has to know of the run; None for that where there is one model.

    Raises:
        UserError: The method does not go with the data or the rest of the configuration.
    """
    method: Method = instantiate(cfg.ensemble, key="ensemble", expected=Method)
    if isinstance(method, NoEnsemble):
        return method, None
    facts = facts_of(cfg, shared)
    if method.divides:
        facts = replace(facts, groups=shared.data.together())
    with keys_under("ensemble"):
        method.check(facts)
    return method, facts


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
        ordered=cfg.data.split.by == "ordered",
        validated=data.val is not None,
        last=cfg.trainer.test == "last",
        inputs=bounds,
        members=[
            (member_label(entry, i)[3:], member_values(entry))
            for i, entry in enumerate(cfg.ensemble.get("members") or [])
        ],
        meta=member_values(to_plain(cfg.ensemble.get("meta") or {})),
        solvable=_is_solvable(to_plain(cfg.loss)),
        anew={"~finetune": None, "finetune": asdict(FinetuneConfig())},
    )


def _is_solvable(loss: Mapping[str, Any]) -> bool:
    """Tell whether a loss is one under which a linear network is solved for (`lightkit.ensemble.linear`)."""
    plain = {"_target_", "weight", "pos_weight"}
    more = {key: value for key, value in loss.items() if key not in plain and value not in (None, 0.0)}
    return loss["_target_"] in SOLVABLE and more in ({}, {"reduction": "mean"})


class EnsemblePlan:
    """Trains the members that a method names, and makes one model of them.

    Args:
        run: The run.
        shared: What all members share.
        method: Names the members and weighs them.
        facts: What the method knows of the run.
    """

    votes = True
    """Whether the weights of the result are those of a vote of the members."""

    def __init__(self, run: Session, shared: Shared, method: Method, facts: RunFacts) -> None:
        self.run, self.shared, self.method, self.facts = run, shared, method, facts
        run.members.opening = introduction(run.cfg, run.place.path, shared.data, type(method).__name__)
        self.found: dict[str, Any] = {}
        """What else is told of the ensemble, in `ensemble.json` and `result.json`."""
        self.lines: list[str] = []
        """What else is told of it below the table."""

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`."""
        plain: dict[str, Any] = {"metrics.figures": []}  # of many members they would take longer than their training
        at_once = self.method.engine == "torchensemble"  # which trains also those in one go that need each other
        named = self.method.next(self.facts, done) if not at_once else [] if done else self.method.every(self.facts)
        members = [replace(found, values={**plain, **found.values}) for found in named]
        self.run.members.expect(member.name for member in members)
        self.run.ranks.shared(lambda: self._record(done, members, {}) if self.run.place.is_recorded else None)
        return members

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """See `RunPlan.combine`."""
        result: dict[str, Any] = self.run.ranks.shared(lambda: self._combined(done))
        return result

    def _combined(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """Weigh the members, and write what they predict together."""
        counted = self.method.counted(done)
        own = self._predictions(counted)
        weights = self._weights(own)
        shares = {result.member.name: float(weight) for result, weight in zip(counted, weights)}
        return self._written(done, counted, own, combined(own, weights, self.method.rule), shares)

    def _written(
        self,
        done: Sequence[MemberResult],
        counted: Sequence[MemberResult],
        own: Sequence[MemberPredictions],
        together: MemberPredictions,
        shares: Mapping[str, float],
    ) -> dict[str, Any]:
        """Measure an ensemble, write its files, show what it came to, and return its result.

        Args:
            done: All members.
            counted: Those whose networks it is compared with.
            own: What these predict.
            together: What the ensemble predicts.
            shares: How much each network counts, by name.
        """
        run = self.run
        together.write(run.place.path / run_files.PREDICTIONS_HELD_OUT)
        splits = ("train", "val") if run.cfg.trainer.test == "none" else ("train", "val", "test")
        values = {name: value for split in splits for name, value in self._measured(together, split).items()}
        parameters = self._store(done, shares)
        self._record(done, [], shares)
        outcome = Outcome(
            method=type(self.method).__name__,
            rule=self.method.rule,
            members=counted,
            own=own,
            together=together,
            weights=shares,
            values=values,
            member_values=self._values(counted, own),
            selected_on=self._selected_on(own, shares),
            monitor=run.cfg.metrics.monitor,
            mode=run.cfg.metrics.mode,
        )
        patient, seconds = ENSEMBLE in run.cfg.metrics.figures, round(time.monotonic() - run.began, 3)
        report = make_report(outcome, seconds=seconds, parameters=parameters, seed=run.cfg.seed, patient=patient)
        self._doubt(outcome)
        self._show(outcome, report)
        return self._result(values, report)

    def _doubt(self, outcome: Outcome) -> None:
        """Find out what speaks against the values of the ensemble."""
        data, rows = self.shared.data, outcome.together
        found = contradictions(self._views(outcome), data.groups)
        self.found |= {"contradictions": found, "unknown_rows": {}, "seen_rows": {}}
        self.lines += lines(found)
        for name, cfg in self._beginnings().items():
            seen = rows_of_base(cfg, data.info.fingerprint)
            held = rows.take(rows.predicted & torch.isin(rows.rows, seen.rows))
            if seen.unknown:
                self.found["unknown_rows"][name] = [*seen.unknown]
                self.lines.append(unknown_line(name, seen.unknown))
            if len(held):
                self.found["seen_rows"][name] = len(held)
                self.lines.append(seen_line(name, len(held), int(rows.predicted.sum())))

    def _beginnings(self) -> dict[str, DictConfig]:
        """Return the configuration of each kind of member, which says what weights it began with."""
        kinds = self.facts.members
        return {name: with_values(self.run.cfg, values) for name, values in kinds} or {"each member": self.run.cfg}

    def _views(self, outcome: Outcome) -> list[list[dict[str, MemberPredictions]]]:
        """Return models with what they predict, by the name of the rows, for a comparison of their losses."""
        last = outcome.rule == "last"  # each of these is a sum, of which the last is the ensemble
        return [[self._by_rows(own) for own in (outcome.own[-1:] if last else outcome.own)]]

    def _by_rows(self, predictions: MemberPredictions) -> dict[str, MemberPredictions]:
        """Return predictions by the names of the rows that values go by."""
        parts = {"oof" if split == "train" else split: predictions.of_split(split) for split in SPLITS}
        return {name: part for name, part in parts.items() if part.predicted.any()}

    def _predictions(self, counted: Sequence[MemberResult]) -> list[MemberPredictions]:
        """Return what each member predicts of rows that it did not learn from."""
        return [
            result.predictions or MemberPredictions.read(result.folder / run_files.PREDICTIONS_HELD_OUT)
            for result in counted
        ]

    def _weights(self, predictions: Sequence[MemberPredictions]) -> Tensor:
        """Return how much each member counts, `(M,)`."""
        return self.method.weigh(predictions, self.facts)

    def _selected_on(self, own: Sequence[MemberPredictions], shares: Mapping[str, float]) -> list[str]:
        """Return the names of the rows that the weights were selected on."""
        del shares
        if len(own) < 2 or getattr(self.method, "weights", "uniform") == "uniform":
            return []
        return [*self._by_rows(weighing_rows(own)[0])]

    def _values(
        self, counted: Sequence[MemberResult], predictions: Sequence[MemberPredictions]
    ) -> dict[str, dict[str, float]]:
        """Return loss and metrics of each member by its name."""
        return {
            result.member.name: {**values_of(result, last=self._takes_last(result)), **self._measured(own, "train")}
            for result, own in zip(counted, predictions)
        }

    def _takes_last(self, result: MemberResult) -> bool:
        """Tell whether the last weights of a member count, and not its best."""
        return bool(result.member.values.get("trainer.test", self.run.cfg.trainer.test) == "last")

    def _measured(self, predictions: MemberPredictions, split: str) -> dict[str, float]:
        """Return loss and metrics of predictions on a split; those of training rows are called `oof/...`."""
        found = dict[str, float]()
        for name, rows in self._by_rows(predictions.of_split(split)).items():
            found |= SplitMeter(self.run.cfg, self.shared, name)(rows.take(rows.predicted))
        return found

    def _store(self, done: Sequence[MemberResult], shares: Mapping[str, float]) -> int:
        """Write all networks that count into one file; return how many weights they have."""
        members = []
        for result in self.method.counted(done):
            weight = self.method.factor if self.method.rule == "last" else shares[result.member.name]
            state = result.weights or content.load_model_state(
                counted_checkpoint(self.run.cfg, result.folder, last=self._takes_last(result))
            )
            members.append(StoredMember(result.member.name, read_config(result.folder), weight, state))
        rule = "sum" if self.method.rule == "last" else self.method.rule
        info = self.shared.data.info
        stored = StoredEnsemble(members, rule, info.task, tuple(info.class_names))
        write_ensemble(self.run.place.path / run_files.ENSEMBLE_WEIGHTS, stored)
        return count_weights(members)

    def _record(self, done: Sequence[MemberResult], coming: Sequence[RunMember], weights: Mapping[str, float]) -> None:
        """Write `ensemble.json`."""
        finished = {result.member.name: result for result in done}
        members = [result.member for result in done] + [m for m in coming if m.name not in finished]
        rows = [_row(member, finished.get(member.name), weights, self._place(member)) for member in members]
        settings = {
            key: value for key, value in to_plain(self.run.cfg.ensemble).items() if key not in ("_target_", "member")
        }
        plan = {"method": type(self.method).__name__, "settings": settings, "members": rows, **self.found}
        write_json(self.run.place.path / run_files.ENSEMBLE, plan)

    def _place(self, member: RunMember) -> str:
        """Tell where the folder of a member is, from that of the ensemble."""
        return f"{run_files.MEMBERS}/{member.name}"

    def _show(self, outcome: Outcome, report: Mapping[str, Any]) -> None:
        """Show what mean member, best member and ensemble reach; write values, settings and figures."""
        cfg, members, folder = self.run.cfg, self.run.members, self.run.place.path
        members.close()
        logger = build_logger(cfg, folder, console=Logger(), strict=False)  # the table on the console says it all
        logger.start(0)
        step, epoch = (max(int(found.result.get(key) or 0) for found in outcome.members) for key in ("steps", "epochs"))
        curve = self._over_epochs(outcome)
        self._draw(outcome, logger, curve, step=step)
        for point in curve:
            logger.scalars(point.values, step=point.step, epoch=int(point.epoch))
        logger.scalars(outcome.values, step=step, epoch=epoch)
        logger.hparams(public(cfg), self.run.overrides)
        logger.end("finished")
        table = comparison(report, outcome.values, outcome.monitor)
        lines = [*told(report), *self._more_lines()]
        title = f"{outcome.method} of {outcome.networks}"
        for shown in (members.console, logger):
            shown.table(title, *table)
            for line in [*lines, f"folder  {folder}"]:
                shown.message(line)
        logger.close()

    def _more_lines(self) -> list[str]:
        """Return what else there is to be told."""
        return self.lines

    def _over_epochs(self, outcome: Outcome) -> list[CurvePoint]:
        """Measure the ensemble at each validation of members that have learnt by themselves."""
        val, folder = self.shared.data.evaluation("val"), self.run.place.path / run_files.MEMBERS
        counted = [member for member in outcome.members if outcome.weights.get(member.member.name)]
        if (
            not self.votes
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
        test = outcome.together.of_split("test")
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
