"""One model of a run: its configuration, folder, log and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import build_logger
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import public
from lightkit.ensemble.methods.base import RunMember
from lightkit.loggers import Logger, Loggers
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.messages import conclude, farewell, introduce, pausing
from lightkit.runner.restore import restore, start_logging, take_over
from lightkit.runner.session import Saved, Session, lock_folder, make_result, outcome, record_start, reopen
from lightkit.runs.catalog import has_checkpoints
from lightkit.runs.folder import RunFolder
from lightkit.trainer import State
from lightkit.trainer.interrupt import Interrupted
from lightkit.trainer.learner import Learner


@dataclass(frozen=True)
class MemberRun:
    """What one model of a run has to itself. `begin` locks its folder and starts to write."""

    session: Session
    """What it shares with the other models of the run."""
    cfg: DictConfig
    """Its configuration."""
    place: RunFolder
    """Its folder: that of the run, or one below `members/`."""
    saved: Saved | None
    """What it goes on from; None for a new one."""
    logger: Logger
    """Takes numbers and messages; silent in all processes but one."""
    stack: ExitStack
    """Ends everything, in the opposite order."""
    system: dict[str, Any] = field(default_factory=dict)
    """What was seen of the machine, for the result."""
    on_test: list[Callable[[dict[str, float]], None]] = field(default_factory=list)
    """Called with the values of the final test."""
    began: float = field(default_factory=time.monotonic)
    """Second at which it was entered."""

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.place.path

    @property
    def fresh(self) -> bool:
        """Tell whether it starts from nothing."""
        return self.saved is None

    def begin(self, learner: Learner) -> Learner:
        """Load the checkpoint, if there is one, and begin to write: lock, record, log, signals, loggers, checkpoints.

        Args:
            learner: Freshly built.

        Returns:
            The learner as it stands in the checkpoint.

        Raises:
            UserError: The checkpoint does not fit, or the folder cannot be written.
        """
        session, notes = self.session, list[str]()
        if self.place is not session.place:
            session.begin(learner.engine, learner.data, learner)
        if self.saved is not None:
            learner, notes = restore(self.saved.content, learner, self.saved.changes)
        elif self.cfg.resume.file is not None and session.fresh:
            learner, notes = take_over(self.cfg, learner)
        if not self.place.is_begun:
            lock_folder(self.stack, self.place, fresh=True)
        session.memory.parts = learner
        notes += record_start(self.place, self.cfg, session.overrides, learner)
        self.stack.enter_context(outcome(session, self.place, self.cfg, learner.state, self.system))
        self.stack.enter_context(session.signals.caught())
        self.stack.enter_context(self._logging(learner.state))
        self.stack.enter_context(_written(learner.store))
        step, timetable = learner.state.step, learner.timetable
        lines = [*session.notes, *(notes if step else [])]
        if timetable.stop_at is not None and not timetable.pauses:
            lines.append(f"trainer.stop_at={timetable.stop_at} lies beyond the end: the run does not pause")
        if step and self.place is not session.place:
            session.members.message(f"{self.path.name}  resumed at step {step}")
        introduce(self.cfg, self.path, learner, self.logger, step=step, notes=lines)
        return learner

    def finish(self, learner: Learner) -> dict[str, Any]:
        """Write the closing table and the result file.

        That comes last: a run that is killed before counts as unfinished, one that has it is never gone on with.

        Returns:
            The content of `result.json`.
        """
        state = learner.state
        if learner.store:
            learner.store.flush()
        conclude(self.cfg, self.path, learner.data, state, self.logger, system=self.system)
        self.logger.flush()
        facts: dict[str, Any] = {"reason": state.stop_reason, "system": self.system}
        is_member = self.place is not self.session.place
        began = self.began if is_member else None
        result = make_result(self.session, self.cfg, state, "finished", **facts, began=began)
        self.place.write_result(result)
        if is_member:
            self.session.members.finish(self.path.name, result)
        return result

    def pause(self, learner: Learner) -> dict[str, Any]:
        """Say where the run has paused, and write that to the result file: nothing was tested, as it goes on.

        Returns:
            The content of `result.json`.
        """
        state = learner.state
        if learner.store:
            learner.store.flush()
        reason = f"trainer.stop_at={learner.timetable.stop_at}"
        self.logger.message(pausing(self.cfg, self.path, state, reason))
        self.logger.suspend("paused")
        self.logger.flush()
        result = make_result(self.session, self.cfg, state, "paused", reason=reason, system=self.system)
        self.place.write_result(result)
        return result

    @contextmanager
    def _logging(self, state: State) -> Iterator[None]:
        """Start the loggers where the counters stand, with the hyperparameters; close them at the end."""
        start_logging(self.logger, self.place, state)
        try:
            self.logger.hparams(public(self.cfg), self.session.overrides)
            yield
        except BaseException as error:
            with suppress(OSError):  # a full disk fails here once more, and says less
                if isinstance(error, Interrupted):
                    self.logger.message(farewell(error, self.session.place.path, saved=self.cfg.checkpoint.enabled))
                if isinstance(error, Exception) and not isinstance(error, Interrupted):
                    self.logger.end("failed")
                else:  # it goes on, and in the HParams tab its status stays unknown
                    self.logger.suspend("interrupted")
                self.logger.close()
            raise
        self.logger.close()


@contextmanager
def member_run(session: Session, member: RunMember) -> Iterator[MemberRun]:
    """Enter one model of a run. It has a folder, a log and checkpoints of its own, unless it is the only one.

    Args:
        session: The run.
        member: Which model.

    Raises:
        UserError: Its values do not suit the run, or its checkpoint cannot be read.
    """
    cfg, place, saved = session.cfg, session.place, session.saved
    with ExitStack() as stack:
        if member.name:
            cfg, place = member_config(cfg, member), place.member(member.name)
            if session.resumes and session.ranks.shared(lambda: has_checkpoints(place.path)):
                lock_folder(stack, place)
                cfg, saved = reopen(cfg, place, session.ranks)
        elif session.resumes and saved is None:
            what = "this run trains several models, which its plan names"
            fix = "Runner(..., plan=PLAN).run(resume=True)"
            raise UserError(what, key=str(place.path), fix=fix, family="no-checkpoint")
        session.memory.cfg, session.memory.parts = cfg, None
        shown = session.members.logger(member.name) if member.name else None
        strict = session.resumes or not session.place.is_begun  # a later member must not end what others have trained
        made = session.ranks.main
        logger = build_logger(cfg, place.path, console=shown, strict=strict) if made else Loggers([])
        yield MemberRun(session, cfg, place, saved, logger, stack)


@contextmanager
def _written(store: CheckpointStore | None) -> Iterator[None]:
    """Write checkpoints inside; afterwards all of them are on the disk, or the run did not end well."""
    inside: AbstractContextManager[Any] = store or nullcontext()
    with inside:
        try:
            yield
        except Interrupted:
            if store is not None:
                store.flush()  # the promise that it is saved must not be given where it can't be kept
            raise
