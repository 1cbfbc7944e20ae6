"""The training of members at once: what they leave is what they leave when they train one after the other."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Learner, build_console
from lightkit.assembly.parts import build_store
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.config import to_plain
from lightkit.data import Loader
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.stacked import Computation, StackedLoader, StackedModel, StackedTask
from lightkit.ensemble.vectorized import VectorTrainer, WatchedStack
from lightkit.loggers import TensorBoardLogger
from lightkit.metrics import Figures, SplitMetrics
from lightkit.metrics.stacked import StackedMetrics
from lightkit.runner.ensemble.member_files import MemberFiles
from lightkit.runner.ensemble.predictions import Outputs
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.machine import Machine
from lightkit.runner.models import export_run
from lightkit.runner.session import Session
from lightkit.trainer.audit.watch import NoWatch, Watcher
from lightkit.trainer.evaluate import evaluate
from lightkit.trainer.interrupt import AskedToEnd, Interrupted
from lightkit.trainer.services import Services

SECONDS_BETWEEN_SAVES = 20.0
"""Seconds of training that a kill may cost: a file with the state of all members is larger than those of one."""


class Trained(NamedTuple):
    """A member that has ended, before its result is written."""

    member: RunMember
    """Which one."""
    folder: Path
    """Its run folder."""
    learner: Learner
    """Its model, with the weights that count, and its data."""
    outputs: dict[str, Outputs]
    """By split, for those that were asked for."""


Keep = Callable[[Session, Trained], MemberPredictions | None]


class GroupTraining:
    """Trains a group of members at once, and writes their folders.

    Args:
        run: The run.
        cfg: The configuration of the first member: that of all, but for what is each one's own.
        members: The members.
        stack: The same, built to train at once.
        folder: Where the state of all is kept while they train.
        finished: Members that an earlier part of the run has trained, by name.
    """

    def __init__(
        self,
        run: Session,
        cfg: DictConfig,
        members: Sequence[RunMember],
        stack: Stack,
        *,
        folder: Path,
        finished: Mapping[str, MemberResult],
    ) -> None:
        self.run, self.cfg, self.members, self.stack = run, cfg, members, stack
        self.folder, self.finished = folder, finished
        self.store = CheckpointStore(folder, keep_last=1, keep_best=0)
        self.saves = build_store(cfg, run.place.path) is not None
        self._written, self._began = -1, time.monotonic()

    def train(self, splits: Sequence[str], keep: Keep) -> list[MemberResult]:
        """Train the members and write their folders; those whose loss is no longer finite are left out.

        Args:
            splits: Splits whose outputs `keep` needs.
            keep: See `lightkit.runner.ensemble.at_once.train_at_once`.
        """
        run, cfg, stack, first = self.run, self.cfg, self.stack, self.stack.members[0].learner
        console = run.members.logger(*(own.name for own in self.members))
        began = time.monotonic()
        run.begin(first.engine, first.data, first)
        with run.signals.caught():
            files = self._open()
            machine = Machine(cfg, run.place.path, first)
            meters = files.meters(stack, self.folder)
            trainer = VectorTrainer(
                stack,
                Services(
                    console,
                    run.signals,
                    machine.clock,
                    save=lambda value: self._save(),
                    meters=meters,
                    rescues=run.members.message if self.saves else None,
                ),
                monitor=cfg.metrics.monitor,
                mode=cfg.metrics.mode,
                watch=self._watch(),
                judged=lambda name, value: run.members.update(name, value=value),
            )
            try:
                with machine:
                    trainer.fit()
                facts = {"system": machine.summary(), "seconds": time.monotonic() - began}
                self._save()
                return self._close(files, facts, splits, keep)
            except BaseException as error:
                if isinstance(error, Interrupted) or trainer.rescued:
                    self._save(now=True)
                raise

    def _watch(self) -> NoWatch:
        """Return what looks now and then whether training does what it says, as `trainer.watch` says."""
        options, stack = self.cfg.trainer.watch, self.stack
        if options.every is None:
            return NoWatch()
        tell = self.run.members.message
        return Watcher(options.every, action=options.action, tell=tell, see=lambda learner: WatchedStack(stack))

    def _open(self) -> MemberFiles:
        """Go on from the state that was saved, or begin the folders; returns what writes them."""
        files = MemberFiles(self.run, self.members, self.cfg, self.stack.learner.timetable.total_steps)
        saved = self.store.load_newest() if self.saves and self.folder.exists() else None
        if saved is not None:
            self.stack.load_state_dict(saved[1])
            self._written = self.stack.learner.state.step
        files.begin([member for member in self.members if member.name not in self.finished])
        self.folder.mkdir(parents=True, exist_ok=True)
        names = json.dumps([member.name for member in self.members])
        (self.folder / run_files.TOGETHER_MEMBERS).write_text(names, encoding="utf-8")
        self._began = time.monotonic()
        return files

    def _save(self, *, now: bool = False) -> None:
        """Write the state of all members, where the last time is long ago, or a signal asked the run to end."""
        step = self.stack.learner.state.step
        due = now or time.monotonic() - self._began >= SECONDS_BETWEEN_SAVES
        if not self.saves or not due or step == self._written:
            return
        self.store.save(self.stack.state_dict(), step=step)
        self._written, self._began = step, time.monotonic()

    def _close(
        self, files: MemberFiles, facts: dict[str, Any], splits: Sequence[str], keep: Keep
    ) -> list[MemberResult]:
        """Test the members that have ended, and write what they came to; `facts` are those of all."""
        run, results = self.run, list[MemberResult]()
        for part in self.stack.members:
            if part.lost is not None:
                run.members.message(f"member {part.name} is trained again, alone: {part.lost}")
        pairs = [(own, part) for own, part in zip(self.members, self.stack.members) if part.lost is None]
        parts = [part for _, part in pairs]
        outputs = evaluate_ended(parts, splits, cfg=self.cfg, saves=self.saves, run=run) if parts else {}
        for place, (own, part) in enumerate(pairs):
            if own.name in self.finished:
                results.append(self.finished[own.name])
                continue
            given = {split: columns[place] for split, columns in outputs.items()}
            folder = files.folder(own.name)
            files.save(own, part)
            predictions = keep(run, Trained(own, folder, part.learner, given))
            self._extras(own, part, folder, given)
            result = files.finish(own, part, **facts)
            weights = part.learner.model.state_dict() if self.saves else None
            results.append(MemberResult(own, folder, result, predictions, weights))
            run.members.finish(own.name, result)
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # that of another group may be in it
            self.folder.parent.rmdir()
        return results

    def _extras(self, own: RunMember, part: StackMember, folder: Path, outputs: dict[str, Outputs]) -> None:
        """Draw the figures of a member's test and export its weights, where that is asked for."""
        run, info = self.run, part.learner.data.info
        options = self.cfg.metrics.figures
        if options and self.cfg.trainer.test != "none" and "test" in outputs:
            figures = Figures(info.task, to_plain(options), info.class_names, info.num_classes)
            figures.update(outputs["test"].outputs, outputs["test"].targets)
            tensorboard = self.cfg.logger.tensorboard.enabled
            logger = TensorBoardLogger(folder) if tensorboard else build_console(self.cfg)
            figures.write(logger, folder / run_files.FIGURES, step=part.state.step)
            logger.close()
        if self.cfg.checkpoint.export != "none" and self.saves:
            cfg = member_config(run.cfg, own)
            store = build_store(cfg, folder)
            assert store is not None, "it saves"
            export_run(cfg, folder, replace(part.learner, store=store))


def evaluate_ended(
    parts: Sequence[StackMember], splits: Sequence[str], *, cfg: DictConfig, saves: bool, run: Session
) -> dict[str, list[Outputs]]:
    """Load the weights that count into the models of members that have ended, and test them.

    Args:
        parts: The members; the values of their tests are logged.
        splits: Splits whose outputs are needed.
        cfg: The configuration of all.
        saves: Whether there are checkpoints, and so best weights.
        run: The run.

    Returns:
        The outputs of each by split.
    """
    test = cfg.trainer.test
    bests = saves and cfg.checkpoint.keep_best > 0 and test != "last"
    for part in parts:
        saved = part.best if bests and part.best is not None else part.last
        assert saved is not None, "ended"
        content.load_model(part.learner.model, content.model_state(saved))
    tested = test != "none" and parts[0].learner.data.test is not None
    figures = bool(cfg.metrics.figures) and test != "none"
    outputs: dict[str, list[Outputs]] = {}
    for split in dict.fromkeys([*splits, *(["test"] if tested else [])]):
        found, values = evaluate_at_once(parts, split, collect=split in splits or figures, run=run)
        if found:
            outputs[split] = found
        if split == "test" and tested:
            for part, own in zip(parts, values):
                part.state.last.update(own)
                part.history.scalars(own, step=part.state.step, epoch=part.state.epoch)
    return outputs


def evaluate_at_once(
    parts: Sequence[StackMember], split: str, *, collect: bool, run: Session
) -> tuple[list[Outputs], list[dict[str, float]]]:
    """Evaluate the models of members on a split, each on its own rows.

    Returns:
        The outputs of each where they are collected, and the values of its metrics where the split has some.
    """
    first = parts[0].learner
    loaders = [part.learner.data.evaluation(split) for part in parts]
    known = [loader for loader in loaders if loader is not None]
    if len(known) < len(parts):
        return [], []
    if len({loader.num_samples for loader in known}) > 1:
        pieces = [evaluate_at_once([part], split, collect=collect, run=run) for part in parts]
        return [found for own, _ in pieces for found in own], [values for _, own in pieces for values in own]
    shared = all(loader.rows.equal(known[0].rows) for loader in known)
    model = StackedModel([part.learner.model for part in parts])
    computation = Computation(model, first.network, first.task, first.criterion)
    like = first.metrics.get(split)
    meters: list[Any] = [StackedMetrics(like, len(parts))] if isinstance(like, SplitMetrics) else []
    taken = Taken()
    first.engine.seed_validation(0)
    try:
        evaluate(
            model,
            known[0] if shared else StackedLoader(known),
            [*meters, *([taken] if collect else [])],
            task=StackedTask(computation, shared=shared),
            criterion=first.criterion,
            context=first.engine,
            each=lambda _batch: run.signals.raise_at(parts[0].state.step),
            interrupt=run.signals,
        )
    except AskedToEnd:
        run.signals.raise_at(parts[0].state.step)
        raise
    values = meters[0].compute() if meters else []
    return taken.of(known) if collect else [], values


class Taken:
    """Collects the outputs of many models."""

    def __init__(self) -> None:
        self._preds: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, preds: Tensor | None, target: Tensor | None, *_more: Any) -> None:
        """Take in a batch, `(M, B, ...)`."""
        if preds is not None and target is not None:
            self._preds.append(preds.detach().float().cpu())
            self._targets.append(target.detach().cpu())

    def of(self, loaders: Sequence[Loader]) -> list[Outputs]:
        """Return what each model gave for the rows of its loader."""
        if not self._preds:
            return []
        preds, targets = torch.cat(self._preds, 1), torch.cat(self._targets, 1)
        return [Outputs(loader.rows, *pair) for loader, *pair in zip(loaders, preds, targets)]
