"""A run from its configuration to its result: enter → build → restore → fit → evaluate → record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

import lightkit.runner.evaluation as evaluation
import lightkit.runner.folds as folds
from lightkit.assembly import Learner, Shared, build, build_learner, build_own, build_shared
from lightkit.assembly.ensemble import own_splits
from lightkit.common.errors import UserError
from lightkit.config import with_values
from lightkit.device.ranks import is_main
from lightkit.ensemble.methods.base import MemberResult, RunMember, RunPlan
from lightkit.runner.calibrate import calibration_of
from lightkit.runner.ensemble import predictions
from lightkit.runner.ensemble.engines import kind_of, train_members
from lightkit.runner.ensemble.finished import FinishedRun, check_run, scaling_of
from lightkit.runner.ensemble.members import FinishedRuns
from lightkit.runner.ensemble.report import SplitMeter
from lightkit.runner.ensemble.run import build_plan
from lightkit.runner.faults import MemoryReport, translate_errors
from lightkit.runner.fit import Fit, Observer, fit
from lightkit.runner.intervals import over_repeats
from lightkit.runner.member import member_run
from lightkit.runner.models import export_run, holds_ensemble, with_checkpoint, with_ensemble
from lightkit.runner.session import Session, look_for_leaks, memory_released, session
from lightkit.runner.subgroups import group_labels, measure_groups
from lightkit.runs.catalog import folds_of
from lightkit.runs.on_end import followed

_LOG = logging.getLogger(__name__)


class Runner:
    """One run in one folder.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder; created when the run starts to write.
        overrides: What was typed on the command line, for the record.
        plan: Which models the run trains; by default what `ensemble` asks for.
        observer: Looks on while it trains; by default nobody does.
        on_end: Call the command `on_end` of the configuration when the run has ended, however that was; False where
            whoever drives the run calls it.

    Example:
        ```python
        from lightkit import Runner, compose

        result = Runner(compose(["data=wine", "trainer.epochs=5"]).cfg, Path("outputs/runs/demo")).run()
        ```
    """

    def __init__(
        self,
        cfg: DictConfig,
        folder: Path,
        *,
        overrides: Sequence[str] = (),
        plan: RunPlan | None = None,
        observer: Observer | None = None,
        on_end: bool = True,
    ) -> None:
        self.cfg, self.folder, self.overrides = cfg, Path(folder), list(overrides)
        self.plan, self.observer, self.on_end = plan, observer or Observer(), on_end

    def run(self, *, resume: bool = False) -> dict[str, Any]:
        """Train, test and write the result.

        Args:
            resume: Go on from the newest checkpoint in the folder. What it learnt from (rates, losses, data, seeds)
                stays as it was then, except for what `resume.override` names.

        Returns:
            The content of `result.json`.

        Raises:
            UserError: Something the user gave is wrong; nothing was written if it was wrong from the start.
            Interrupted: A signal asked the run to end; it has saved.
        """
        command = self.cfg.on_end if self.on_end and is_main() else []
        # The memory is released once no frame of the run holds it any more, and the command comes after that.
        with followed(list(command), self.folder), memory_released():
            return self._run(resume)

    def _run(self, resume: bool) -> dict[str, Any]:
        with session(self.cfg, self.folder, overrides=self.overrides, resume=resume) as run:
            options: dict[str, Any] = {"pretrained": run.fresh, "rows": self.observer.rows}
            cfg = folds.first_fold(run.cfg)
            shared = build_shared(cfg, run.place.path, ranks=run.ranks, report=run.tell, **options)
            run.stack.callback(shared.data.close)
            run = look_for_leaks(run, cfg, shared)
            plan = self.plan or (folds.FoldPlan(run, shared) if run.cfg.cv.folds else build_plan(run, shared))
            done = _trained(run, shared, plan, self.train_member)
            if any(result.member.name for result in done):
                run.begin(shared.engine, shared.data)  # where an earlier part has trained all of them
            result = run.finish(plan.combine(done), done)
            if run.ranks.main:
                predictions.forget_validations(done)
            return result

    def train_member(self, session: Session, member: RunMember, shared: Shared, fit: Fit = fit) -> MemberResult:
        """Train one model of a run, by `fit`; see `lightkit.runner.ensemble.engines.train_members`."""
        with member_run(session, member) as run:
            if member.name:
                shared = build_own(run.cfg, shared, run.path)
                run.stack.callback(shared.data.close)
            kind, new = kind_of(member), run.fresh
            learner = build_learner(run.cfg, shared, run.path, pretrained=new, tried=new and kind in session.tried)
            session.tried.add(kind)
            learner, weights = run.begin(self.observer.watch(learner)), None
            if fit(run, learner, self.observer):
                loaded = evaluation.final_test(run, learner)
                evaluation.draw_results(run, learner)
                if predictions.is_member(run.path):
                    weights = predictions.keep_predictions(run, learner, loaded=loaded)
                export_run(run.cfg, run.path, learner)
                result = run.finish(learner)
            else:
                result = run.pause(learner)
            # That of rank 0 in all processes, none of which goes on before its files are written.
            return MemberResult(member, run.path, session.ranks.shared(lambda: result), weights=weights)

    def evaluate(
        self, split: str = "test", checkpoint: str = "best", *, members: Sequence[str] = ()
    ) -> dict[str, float]:
        """Return the metrics of a trained run on a split.

        Args:
            split: `train`, `val` or `test`.
            checkpoint: `best`, `last` or the path of a checkpoint file; an ensemble has only its best.
            members: Names of the members of an ensemble to take; none takes all.

        Returns:
            Metrics by name, such as `test/accuracy`.

        Raises:
            UserError: There is no such split, checkpoint or member, or its weights do not fit the model.
        """
        return self.evaluate_splits([split], checkpoint, members=members)[split]

    def evaluate_splits(
        self, splits: Sequence[str], checkpoint: str = "best", *, members: Sequence[str] = ()
    ) -> dict[str, dict[str, float]]:
        """Return the metrics of a trained run on several splits, for which it is built once.

        Args:
            splits: Any of `train`, `val`, `test` and the further sets of `data.more`.
            checkpoint: See `evaluate`.
            members: See `evaluate`.

        Returns:
            The metrics of each split by name.

        Raises:
            UserError: There is no such split, checkpoint or member, or its weights do not fit the model.
        """
        if self._is_of_folds(splits, checkpoint, members):
            return {split: folds.measure_folds(self.cfg, self.folder) for split in splits}
        with self.trained(checkpoint, members) as learner:
            measured = dict[str, dict[str, float]]()
            for split in splits:
                measured[split] = evaluation.evaluate_split(learner, split)
                shaped, place = learner.metrics[split].figures_data, evaluation.evaluation_folder(self.folder, split)
                evaluation.write_results(shaped, place)
            return measured

    def predict(
        self, split: str = "test", checkpoint: str = "best", *, members: Sequence[str] = (), views: int = 0
    ) -> list[dict[str, Any]]:
        """Return the outputs of a trained run for every sample of a split, in the order of the data.

        Args:
            split: `train`, `val` or `test`.
            checkpoint: See `evaluate`.
            members: See `evaluate`.
            views: Augmented views of each sample whose predictions are averaged; 0 takes the sample as it is.

        Returns:
            One row a sample: its row in the data set, its file or name where it has one, target, prediction, and the
            probability of each class; of an ensemble also how sure it is, see `lightkit.ensemble.calibration`.

        Raises:
            UserError: There is no such split, checkpoint or member, its weights do not fit the model, or there are no
                such views.
        """
        if self._is_of_folds([split], checkpoint, members, views):
            return folds.predict_folds(self.cfg, self.folder)
        with self.trained(checkpoint, members) as learner:
            loader = evaluation.rows_of(learner.data, split)
            after = calibration_of(self.folder, checkpoint, members)
            collected, columns = evaluation.over_views(learner, split, views, after)
            rows = evaluation.with_names(collected.rows(loader.rows), loader.source)
            return [{**row, **{name: values[i] for name, values in columns.items()}} for i, row in enumerate(rows)]

    def measure(
        self, split: str, checkpoint: str, *, members: Sequence[str] = (), views: int = 0, by: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Measure the mean over augmented views of each row of a split, and groups of rows, where asked for.

        Args:
            split: See `evaluate`. Of a cross-validation all rows are taken, as the folds have predicted them.
            checkpoint: See `evaluate`.
            members: See `evaluate`.
            views: Augmented views of each row; 0 takes the rows as they are.
            by: What tells groups, each by itself: `target`, or see `lightkit.data.row_facts.row_column`.

        Returns:
            `tta`: number of views and metrics. `by`: the groups by each of `by`, see `measure_groups`.

        Raises:
            UserError: There is no such split, checkpoint, member or column, or what is predicted has no mean.
        """
        cfg = self.cfg
        with ExitStack() as stack:
            if self._is_of_folds([split], checkpoint, members, views):
                shared = build_shared(folds.first_fold(cfg), self.folder, trains=False)
                stack.callback(shared.data.close)
                repeats = folds.fold_predictions(folds.trained_folds(cfg, self.folder), cfg.cv.folds)
                source, places, meter = shared.data.source, repeats[0].rows, folds.plain_meter(cfg, shared)
            else:
                learner = stack.enter_context(self.trained(checkpoint, members))
                evaluation.check_mean(learner.data.info, f"--split {split}")
                shared, loader = Shared(learner.engine, learner.data), evaluation.rows_of(learner.data, split)
                tensors = evaluation.over_views(learner, split, views)[0].tensors()
                # By numbers that are there once: a row of a member of bagging is there several times.
                outputs = predictions.Outputs(torch.arange(len(loader.rows)), *tensors)
                repeats = [predictions.as_predictions({"test": outputs}, shared.data.info, source=str(self.folder))]
                source, places, meter = loader.source, loader.rows, SplitMeter(cfg, shared, split, rows=loader.rows)
            found: dict[str, Any] = {"tta": {"views": views, "metrics": over_repeats(meter, repeats)}} if views else {}
            for column in by:
                labels = group_labels(column, shared.data, source, places, repeats[0].targets)
                found.setdefault("by", {})[column] = measure_groups(cfg, meter, repeats, labels)
        return found

    def _is_of_folds(self, splits: Sequence[str], checkpoint: str, members: Sequence[str], views: int = 0) -> bool:
        """Tell whether the run is a cross-validation, of which the predictions of the folds are kept.

        Raises:
            UserError: It has no such split, and other weights, or views, are asked for.
        """
        if not folds_of(self.folder):
            return False
        names = ",".join(members)
        for key, given, asked in (("--checkpoint", checkpoint, "best"), ("--members", names, ""), ("--tta", views, 0)):
            if given != asked:
                what, fix = "what the folds predicted is kept for the weights that count", "name the run of a fold"
                raise UserError(what, key=key, received=given, fix=fix, family="ensemble")
        for split in splits:
            if split != "test":
                what = "in a cross-validation each row is a test row of one fold"
                raise UserError(what, key="--split", received=split, choices=["test"], family="split")
        return True

    @contextmanager
    def trained(self, checkpoint: str = "best", members: Sequence[str] = ()) -> Iterator[Learner]:
        """Build a run that was trained, to look at its model inside.

        Args:
            checkpoint: See `evaluate`.
            members: See `evaluate`.

        Yields:
            The model with its data; of an ensemble all members as one.

        Raises:
            UserError: There is no such checkpoint or member, or its weights do not fit the model.
        """
        memory = MemoryReport(self.cfg)
        with memory_released(), translate_errors(memory=memory.report):
            together = holds_ensemble(self.folder, checkpoint, members)
            memory.parts = learner = build(self.cfg, self.folder, pretrained=False, trains=False)
            learner = replace(learner, data=own_splits(learner.data, self.folder))
            for note in learner.data.notes:  # for `predict` too, whose output may be what is printed
                _LOG.warning("%s", note)
            with closing(learner.data):
                if together:
                    yield with_ensemble(learner, self.folder, self.cfg, members)
                else:
                    yield with_checkpoint(learner, checkpoint, self.folder, self.cfg)


def combine_runs(
    runs: Sequence[FinishedRun],
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
    changed: dict[str, Any] = {"ensemble": dict(method), "name": name, "device.parallel": "none"}
    changed |= {"trainer.find_batch_size": None} | ({"data.normalize": "none"} if scaling_of(runs) else {})
    trusted = [entry for member in runs for entry in member.cfg.get("trust") or ()]
    cfg = with_values(runs[0].cfg, {**changed, "trust": [*dict.fromkeys(trusted)]})
    with memory_released(), session(cfg, folder, overrides=overrides) as run:
        shared = build_shared(run.cfg, runs[0].folder, pretrained=False, trains=False, ranks=run.ranks)
        run.stack.callback(shared.data.close)
        plan = build_plan(run, shared, FinishedRuns(run, shared, runs, weights or ()))
        run.begin(shared.engine, shared.data)
        done = _trained(run, shared, plan, Runner(run.cfg, folder).train_member)
        result = plan.combine(done)
        run.place.write_result(result)
        return result


def _trained(run: Session, shared: Shared, plan: RunPlan, train: Callable[..., MemberResult]) -> list[MemberResult]:
    """Train all models that a plan names."""
    done = list[MemberResult]()
    while members := plan.next(done):
        done += train_members(run, members, shared, train)
    return done
