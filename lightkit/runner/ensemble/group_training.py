"""The training of members at once: what they leave is what they leave when they train one after the other."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lightkit.assembly import Learner, Shared, build_console, build_learner, build_own, build_store, build_twin
from lightkit.assembly.network import model_maker
from lightkit.assembly.parts import role_of
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.collecting import uncollected
from lightkit.common.text import counted
from lightkit.config import to_plain
from lightkit.config.merging import copy_node
from lightkit.ensemble.alike import difference, gain, refusal, unlikeness
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.vectorized import VectorTrainer, WatchedStack
from lightkit.loggers.tensorboard import TensorBoardLogger
from lightkit.metrics import Figures
from lightkit.runner.ensemble.member_files import OWN, MemberFiles, leaves, may_differ
from lightkit.runner.ensemble.predictions import HELD_OUT, Outputs, evaluate_ended, is_member, keep_outputs
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.machine import Machine
from lightkit.runner.models import export_run
from lightkit.runner.session import Session
from lightkit.trainer.audit.watch import NoWatch, Watcher
from lightkit.trainer.interrupt import Interrupted
from lightkit.trainer.services import Services

SECONDS_BETWEEN_SAVES = 20.0
"""Seconds of training that a kill may cost: a file with the state of all members is larger than those of one."""


class GroupTraining:
    """Trains a group of alike members at once, where that can be done and pays, and writes their folders.

    Args:
        run: The run.
        members: The members.
        shared: What all members of the run share.
        engine: `vectorized` does not ask whether it pays; `auto` does.
        finished: Members that an earlier part of the run has trained, by name.
    """

    def __init__(
        self,
        run: Session,
        members: Sequence[RunMember],
        shared: Shared,
        *,
        engine: str,
        finished: Mapping[str, MemberResult],
    ) -> None:
        self.run, self.members, self.shared, self.engine, self.finished = run, list(members), shared, engine, finished
        self.cfg = member_config(run.cfg, self.members[0])  # but for seeds and rows that of all
        self.others: list[RunMember] = []
        """Members that have another number of rows than the first, as the last folds have, and train by themselves."""
        self.folder = run.place.path / run_files.TOGETHER / self.members[0].name
        """Where the state of all is kept while they train."""
        self.store = CheckpointStore(self.folder, keep_last=1, keep_best=0)
        self.saves = build_store(self.cfg.checkpoint, run.place.path, mode=self.cfg.metrics.mode) is not None
        self._written, self._began = -1, time.monotonic()

    @uncollected()
    def prepare(self) -> bool:
        """Build the members; tell whether they will train at once, and why."""
        reason, why = self._refusal(), "ensemble.engine=vectorized"
        if not reason and self.engine == "auto" and not (self.folder / run_files.TOGETHER_MEMBERS).exists():
            faster, why = gain(self.stack, self.learners)
            reason = "" if faster is not None and faster > 1.0 else f"that is faster: {why}"
        done = f"train one after the other: {reason}" if reason else f"train at once ({why})"
        self.run.tell(f"{counted(len(self.members), 'member')} {done}")
        return not reason

    def _refusal(self) -> str:
        """Build the members, and stack them; return why they cannot train at once, empty where they can."""
        if reason := self._of_settings():
            return reason
        first = self._first()
        if reason := refusal(first):
            return reason
        learners, length = [first, *self._twins(first)], first.data.train.epoch_samples
        fits = [learner.data.train.epoch_samples == length for learner in learners]
        self.learners = [*compress(learners, fits)]
        self.others = [member for member, fit in zip(self.members, fits) if not fit]
        self.members = [*compress(self.members, fits)]
        if len(self.members) == 1:
            return "they have different numbers of rows"
        if reason := unlikeness(self.learners):
            return reason
        self.stack = Stack([StackMember(own.name, learner) for own, learner in zip(self.members, self.learners)])
        return difference(self.stack)

    def _of_settings(self) -> str:
        """Return what the members learn otherwise than models alone, or is to be shown of one model; empty where none.

        Known before anything is built.
        """
        role, logger = role_of(self.cfg), self.cfg.logger
        reasons = {
            "they begin with the weights of another member": role.weights_of,
            "their weights are computed from those of other members": role.computed_from,
            "they learn what other members leave": role.adds_to is not None,
            "they learn from what other members predict": role.features,
            "they are several networks each": role.joint,
            "profile=true watches one model": self.cfg.profile,
            f"logger.more.{next(iter(logger.get('more') or ()), '')} follows one model": logger.get("more"),
            "logger.tensorboard shows the inputs or the graph of a model": logger.tensorboard.images
            or logger.tensorboard.graph,
            "logger.trace is about the steps of one model": logger.get("trace"),
            "logger.tensorboard.histograms is about the weights of one model": logger.tensorboard.get("histograms"),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def _first(self) -> Learner:
        """Build the first member as if it trained alone."""
        run, cfg, folder = self.run, self.cfg, self.run.place.member(self.members[0].name).path
        run.memory.cfg = cfg
        own = build_own(cfg, self.shared, folder)
        run.stack.callback(own.data.close)
        learner = build_learner(cfg, own, folder)
        run.memory.parts = learner
        return learner

    def _twins(self, first: Learner) -> Iterator[Learner]:
        """Build the others: of them only model, seeds and rows."""
        cfg, make = copy_node(self.cfg), model_maker(self.cfg, first.data.info)
        OmegaConf.set_readonly(cfg, False)
        for own in self.members[1:]:
            values = {key: value for key, value in leaves(own.values).items() if may_differ(key)}
            for key, value in values.items():
                OmegaConf.update(cfg, key, value)
            steps, folder = not values.keys() <= {*OWN}, self.run.place.member(own.name).path
            yield build_twin(cfg, self.shared, first, folder, steps=steps, make=None if steps else make)

    def train(self) -> list[MemberResult]:
        """Train the members and write their folders; those whose loss is no longer finite are left out.

        Of members of an ensemble it is kept what they predict of rows that they did not learn from.
        """
        run, cfg, stack, first = self.run, self.cfg, self.stack, self.stack.members[0].learner
        console = run.members.logger(*(own.name for own in self.members))
        began = time.monotonic()
        run.begin(first.engine, first.data, first)
        with run.signals.caught():
            files = self._open()
            machine = Machine(cfg, run.place.path, first)
            trainer = VectorTrainer(
                stack,
                Services(
                    console,
                    run.signals,
                    machine.clock,
                    save=lambda value: self._save(),
                    meters=files.meters(stack, self.folder),
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
                return self._close(files, facts)
            except BaseException as error:
                if isinstance(error, Interrupted) or trainer.rescued:
                    self._save(now=True)
                raise

    def _watch(self) -> NoWatch:
        """Return what looks now and then whether training does what it says, as `trainer.watch` says."""
        options, stack, tell = self.cfg.trainer.watch, self.stack, self.run.members.message
        if options.every is None:
            return NoWatch()
        return Watcher(options.every, action=options.action, tell=tell, see=lambda learner: WatchedStack(stack))

    def _open(self) -> MemberFiles:
        """Go on from the state that was saved, or begin the folders; returns what writes them."""
        learner = self.stack.learner
        facts = {"total_steps": learner.timetable.total_steps, "weights": learner.made.loaded}
        files = MemberFiles(self.run, self.members, self.cfg, facts)
        saved = self.store.load_newest() if self.saves and self.folder.exists() else None
        if saved is not None:
            self.stack.load_state_dict(saved[1])
            self._written = self.stack.learner.state.step
        data = {own.name: learner.data for own, learner in zip(self.members, self.learners)}
        files.begin([member for member in self.members if member.name not in self.finished], data)
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

    @uncollected()
    def _close(self, files: MemberFiles, facts: dict[str, Any]) -> list[MemberResult]:
        """Test the members that have ended, and write what the new ones came to; `facts` are those of all."""
        run, cfg, results = self.run, self.cfg, list[MemberResult]()
        for part in self.stack.members:
            if part.lost is not None:
                run.members.message(f"member {part.name} is trained again, alone: {part.lost}")
        pairs = [(own, part) for own, part in zip(self.members, self.stack.members) if part.lost is None]
        parts = [part for _, part in pairs]
        splits = HELD_OUT.values() if is_member(files.folders[self.members[0].name]) else ()
        states, outputs = evaluate_ended(parts, [*splits], cfg=cfg, saves=self.saves, run=run) if parts else ([], {})
        new = [own.name not in self.finished for own, _ in pairs]
        pairs, outputs = [*compress(pairs, new)], {split: [*compress(own, new)] for split, own in outputs.items()}
        weights = [*compress(states if self.saves else [None] * len(states), new)]
        for own, part in pairs:
            files.save(own, part)
        places = [(part.learner.data.info, files.folders[own.name]) for own, part in pairs]
        kept = keep_outputs(outputs, places) if splits else [None] * len(pairs)
        extras = bool(cfg.metrics.figures) or cfg.checkpoint.export != "none"
        for place, ((own, part), predictions, events) in enumerate(zip(pairs, kept, files.events(pairs))):
            folder = files.folders[own.name]
            if extras:
                self._extras(own, part, folder, {split: columns[place] for split, columns in outputs.items()})
            result = files.finish(own, part, events, **facts)
            results.append(MemberResult(own, folder, result, predictions, weights[place]))
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
            store = build_store(cfg.checkpoint, folder, mode=cfg.metrics.mode)
            assert store is not None, "it saves"
            export_run(cfg, folder, replace(part.learner, store=store))
