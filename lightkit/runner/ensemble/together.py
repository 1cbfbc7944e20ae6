"""Members of a run that train at once, and leave what they leave when they train one after the other."""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from lightkit.assembly import Learner, Shared, build_console, build_learner, build_own, build_twin
from lightkit.assembly.parts import build_store, role_of
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.config import to_plain
from lightkit.ensemble.alike import difference, gain, refusal
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.vectorized import VectorTrainer
from lightkit.loggers import TensorBoardLogger
from lightkit.metrics import Figures
from lightkit.runner.ensemble.member_files import MemberFiles, is_own, leaves
from lightkit.runner.ensemble.predictions import Outputs
from lightkit.runner.ensemble.together_evaluation import evaluate_together
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.machine import Machine
from lightkit.runner.models import export_run
from lightkit.runner.session import Session
from lightkit.runs.catalog import has_checkpoints
from lightkit.trainer.interrupt import Interrupted
from lightkit.trainer.services import Services

SECONDS_BETWEEN_SAVES = 20.0
"""Seconds of training that a kill may cost: a file with the state of all members is larger than those of one."""
_MEMBERS = "members.json"

TrainOne = Callable[[Session, RunMember, Shared], MemberResult]


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


def train_together(
    run: Session,
    members: Sequence[RunMember],
    shared: Shared,
    train: TrainOne,
    *,
    finished: Mapping[str, MemberResult] = MappingProxyType({}),
    engine: str = "auto",
    splits: Sequence[str] = (),
    keep: Keep = lambda run, trained: None,
) -> list[MemberResult]:
    """Train members at once where that can be done and pays, the others one after the other.

    Args:
        run: The run.
        members: All that can be trained now, with those that an earlier part of the run has finished.
        shared: What they share.
        train: Trains one member alone.
        finished: Those that an earlier part of the run has trained, by name.
        engine: `vectorized` does not ask whether it pays; `auto` does.
        splits: Splits whose outputs `keep` needs.
        keep: Called for each member that was trained with others, before its result is written; may return what it
            predicts.

    Returns:
        Their results, in the same order.

    Raises:
        UserError: Something the user gave is wrong.
        Interrupted: A signal asked the run to end; it has saved.
    """
    found: dict[str, MemberResult] = dict(finished)
    groups = alike(run, members, finished)
    while groups:
        together = MemberGroup(run, groups.pop(0), shared, engine, finished)
        if together.prepare():
            found |= {result.member.name: result for result in together.train(splits, keep)}
        groups += [together.others] if len(together.others) > 1 else []
    return [found.get(member.name) or train(run, member, shared) for member in members]


def alike(run: Session, members: Sequence[RunMember], finished: Mapping[str, MemberResult]) -> list[list[RunMember]]:
    """Return groups of two and more members that differ in seeds and rows alone and are still to be trained.

    A group that was training when the run was killed stays together, with those of it that have been written since.
    """
    groups: dict[str, list[RunMember]] = {}
    for member in members:
        common = {key: value for key, value in leaves(member.values).items() if not is_own(key)}
        key = [common, [*leaves(member.values)]]
        groups.setdefault(json.dumps(key, default=str), []).append(member)
    open_ones = [_named(file) for file in sorted((run.place.path / run_files.TOGETHER).glob(f"*/{_MEMBERS}"))]
    found = list[list[RunMember]]()
    for group in groups.values():
        begun = {name for names in open_ones for name in names}
        found += [[member for member in group if member.name in names] for names in open_ones]
        found.append(
            [
                member
                for member in group
                if member.name not in begun
                and member.name not in finished
                and not has_checkpoints(run.place.member(member.name).path)
            ]
        )
    return [group for group in found if len(group) > 1 and not all(member.name in finished for member in group)]


def _named(file: Path) -> list[str]:
    try:
        return [str(name) for name in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []


class MemberGroup:
    """One group of alike members: from their configurations to their results.

    Args:
        run: The run.
        group: The members.
        shared: What all members of the run share.
        engine: See `train_together`.
        finished: See `train_together`.
    """

    def __init__(
        self,
        run: Session,
        group: Sequence[RunMember],
        shared: Shared,
        engine: str,
        finished: Mapping[str, MemberResult],
    ) -> None:
        self.run, self.group, self.shared, self.engine, self.finished = run, list(group), shared, engine, finished
        self.cfg = member_config(run.cfg, self.group[0])  # but for seeds and rows that of all
        self.others: list[RunMember] = []
        """Members that have another number of rows than the first, as the last folds have, and train by themselves."""
        self.folder = run.place.path / run_files.TOGETHER / self.group[0].name
        self.store = CheckpointStore(self.folder, keep_last=1, keep_best=0)
        self.saves = build_store(self.cfg, run.place.path) is not None
        self._written, self._began = -1, time.monotonic()

    def prepare(self) -> bool:
        """Build the members; tell whether they will train at once, and why."""
        run, begun = self.run, (self.folder / _MEMBERS).exists()
        reason = self._role() or self._watched()
        if not reason:
            first = self._first()
            reason = refusal([first])
        if not reason:
            self.learners = self._equally_long([first, *self._twins(first)])
            reason = refusal(self.learners) if len(self.group) > 1 else "they have different numbers of rows"
        if not reason:
            self.stack = Stack([StackMember(own.name, learner) for own, learner in zip(self.group, self.learners)])
            reason = difference(self.stack)
        why = "ensemble.engine=vectorized"
        if not reason and self.engine == "auto" and not begun:
            faster, how = gain(self.stack, self.learners)
            why = how
            reason = "" if faster is not None and faster > 1.0 else f"that is faster: {how}"
        count = f"{len(self.group)} members"
        run.tell(f"{count} train at once ({why})" if not reason else f"{count} train one after the other: {reason}")
        return not reason

    def _role(self) -> str:
        """Return what the members learn otherwise than models alone; empty where nothing."""
        role = role_of(self.cfg)
        reasons = {
            "they begin with the weights of another member": role.weights_of,
            "they learn what other members leave": role.adds_to is not None,
            "they learn from what other members predict": role.features,
            "they are several networks each": role.joint,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def _watched(self) -> str:
        """Return what of the configuration is about one model in training; empty where nothing is."""
        cfg = self.cfg
        shown = cfg.logger.tensorboard
        if cfg.profile:
            return "profile=true watches one model"
        return "logger.tensorboard shows the inputs or the graph of a model" if shown.images or shown.graph else ""

    def _first(self) -> Learner:
        """Build the first member as if it trained alone."""
        run, member = self.run, self.group[0]
        run.memory.cfg = cfg = self.cfg
        folder = run.place.member(member.name).path
        own = build_own(cfg, self.shared, folder)
        run.stack.callback(own.data.close)
        learner = build_learner(cfg, own, folder)
        run.memory.parts = learner
        return learner

    def _twins(self, first: Learner) -> list[Learner]:
        """Build the others: of them only model, seeds and rows."""
        cfg, twins = copy.deepcopy(self.cfg), list[Learner]()
        OmegaConf.set_readonly(cfg, False)
        for own in self.group[1:]:
            for key, value in ((key, value) for key, value in leaves(own.values).items() if is_own(key)):
                OmegaConf.update(cfg, key, value)
            twins.append(build_twin(cfg, self.shared, first, self.run.place.member(own.name).path))
        return twins

    def _equally_long(self, learners: list[Learner]) -> list[Learner]:
        """Keep the members with as many rows as the first has."""
        length = learners[0].data.train.epoch_samples
        fits = [learner.data.train.epoch_samples == length for learner in learners]
        self.others = [member for member, fit in zip(self.group, fits) if not fit]
        self.group = [member for member, fit in zip(self.group, fits) if fit]
        return [learner for learner, fit in zip(learners, fits) if fit]

    def train(self, splits: Sequence[str], keep: Keep) -> list[MemberResult]:
        """Train the members and write their folders; those whose loss is no longer finite are left out."""
        run, stack, first = self.run, self.stack, self.learners[0]
        console = run.members.logger(*(own.name for own in self.group))
        began = time.monotonic()
        with ExitStack() as around:
            run.begin(first.engine, first.data, first)
            around.enter_context(run.signals.caught())
            files = self._open()
            machine = Machine(self.cfg, run.place.path, first)
            meters = files.meters(stack, self.folder)
            services = Services(console, run.signals, machine.clock, save=lambda value: self._save(), meters=meters)
            goal: dict[str, Any] = {"monitor": self.cfg.metrics.monitor, "mode": self.cfg.metrics.mode}
            goal["judged"] = lambda name, value: run.members.update(name, value=value)
            try:
                with machine:
                    VectorTrainer(stack, services, **goal).fit()
                facts = {"system": machine.summary(), "seconds": time.monotonic() - began}
                self._save(at_end=True)
                return self._close(files, facts, splits, keep)
            except Interrupted:
                self._save(now=True)
                raise

    def _open(self) -> MemberFiles:
        """Go on from the state that was saved, or begin the folders; returns what writes them."""
        files = MemberFiles(self.run, self.group, self.cfg)
        saved = self.store.load_newest() if self.saves and self.folder.exists() else None
        if saved is not None:
            self.stack.load_state_dict(saved[1])
            self._written = self.stack.learner.state.step
        unfinished = [member for member in self.group if member.name not in self.finished]
        files.begin(unfinished)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _MEMBERS).write_text(json.dumps([member.name for member in self.group]), encoding="utf-8")
        self._began = time.monotonic()
        return files

    def _save(self, *, now: bool = False, at_end: bool = False) -> None:
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
        pairs = [(own, part) for own, part in zip(self.group, self.stack.members) if part.lost is None]
        for own, part in zip(self.group, self.stack.members):
            if part.lost is not None:
                run.members.message(f"member {own.name} is trained again, alone: {part.lost}")
        done = self.finished
        if pairs:
            outputs = self._counted([part for _, part in pairs], splits)
            for place, (own, part) in enumerate(pairs):
                if own.name in done:
                    results.append(done[own.name])
                    continue
                given = {split: columns[place] for split, columns in outputs.items()}
                folder = files.folder(own.name)
                files.save(own, part)
                predictions = keep(run, Trained(own, folder, part.learner, given))
                self._extras(own, part, folder, given)
                result, weights = files.finish(own, part, **facts), part.learner.model.state_dict()
                results.append(MemberResult(own, folder, result, predictions, weights if self.saves else None))
                run.members.finish(own.name, results[-1].result)
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # that of another group may be in it
            self.folder.parent.rmdir()
        return results

    def _counted(self, parts: Sequence[StackMember], splits: Sequence[str]) -> dict[str, list[Outputs]]:
        """Load the weights that count into the models, test them, and return their outputs by split."""
        cfg, test = self.cfg, self.cfg.trainer.test
        bests = self.saves and cfg.checkpoint.keep_best > 0 and test != "last"
        for part in parts:
            saved = part.best if bests and part.best is not None else part.last
            assert saved is not None, "ended"
            content.load_model(part.learner.model, content.model_state(saved))
        figures = bool(cfg.metrics.figures) and test != "none"
        outputs: dict[str, list[Outputs]] = {}
        tested = test != "none" and parts[0].learner.data.test is not None
        for split in dict.fromkeys([*splits, *(["test"] if tested else [])]):
            found, values = evaluate_together(parts, split, collect=split in splits or figures, run=self.run)
            if found:
                outputs[split] = found
            for part, own in zip(parts, values):
                if split == "test" and tested:
                    part.state.last.update(own)
                    part.history.scalars(own, step=part.state.step, epoch=part.state.epoch)
        return outputs

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
