"""What a run enters once, however many models it trains: processes, folder, log, signals, loggers, faults."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

import lightkit.trainer.summary as summary
from lightkit.assembly import build_console, build_logger, build_store
from lightkit.assembly.origin import facts_of
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config.marks import is_marked
from lightkit.config.received import check_received, without_grants
from lightkit.device.ranks import Ranks
from lightkit.diagnostics.memory import release
from lightkit.loggers import Logger, Loggers
from lightkit.runner.faults import as_user_error, translate_errors
from lightkit.runner.memory.batches import keep_resolved_batch_size, resolve_batch_size
from lightkit.runner.memory.oom import MemoryReport, release_frames
from lightkit.runner.merge import KeyChange, merge_configs
from lightkit.runner.messages import conclude, farewell, introduce
from lightkit.runner.process_group import newest, process_group
from lightkit.runner.restore import restore, start_logging
from lightkit.runs.folder import RunFolder, differences
from lightkit.trainer import State
from lightkit.trainer.interrupt import Interrupted, SharedSignals, Signals
from lightkit.trainer.learner import Learner

_LOG = logging.getLogger(__name__)


class Saved(NamedTuple):
    """The checkpoint that a run goes on from."""

    content: dict[str, Any]
    """What it holds."""
    changes: list[KeyChange]
    """What differs between its configuration and the one at hand."""


@dataclass(frozen=True)
class Session:
    """What a run has once. `begin` locks the folder and starts to write; everything ends with the exit stack.

    Until a run begins nothing is written: what is wrong from the start leaves no trace.
    """

    cfg: DictConfig
    """The configuration to run with: merged with that of the checkpoint, with the batch size that was found."""
    place: RunFolder
    """The run's folder, which only rank 0 writes to."""
    ranks: Ranks
    """The processes that train together."""
    overrides: list[str]
    """What was typed for the run, also for earlier parts of it."""
    saved: Saved | None
    """What it goes on from; None for a new run."""
    notes: tuple[str, ...]
    """Lines about how the configuration was completed."""
    memory: MemoryReport
    """What is known of the run when its memory runs out."""
    logger: Logger
    """Takes numbers and messages; silent in all processes but one."""
    signals: Signals
    """Tell when the run is asked to end."""
    stack: ExitStack
    """Ends everything, in the opposite order."""
    system: dict[str, Any] = field(default_factory=dict)
    """What was seen of the machine, for the result."""
    began: float = field(default_factory=time.monotonic)
    """Second at which it was entered."""

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.place.path

    @property
    def fresh(self) -> bool:
        """Whether this is a new run."""
        return self.saved is None

    def tell(self, line: str) -> None:
        """Show a line to whoever watches, before the loggers have started."""
        (build_console(self.cfg).message if self.ranks.main else _LOG.debug)(line)

    def begin(self, learner: Learner) -> Learner:
        """Load the checkpoint, if there is one, and begin to write: lock, record, log, signals, loggers, checkpoints.

        Args:
            learner: Freshly built.

        Returns:
            The learner as it stands in the checkpoint.

        Raises:
            UserError: The checkpoint does not fit, or the folder cannot be written.
        """
        notes = list[str]()
        if self.saved is None:
            _lock(self.stack, self.place, fresh=True)
        else:
            learner, notes = restore(self.saved.content, learner, self.saved.changes)
        self.memory.parts = learner
        notes += self._record(learner)
        self.stack.enter_context(self._outcome(learner.state))
        self.stack.enter_context(self.signals.caught())
        self.stack.enter_context(self._logging(learner.state))
        self.stack.enter_context(_written(learner.store))
        step = learner.state.step
        introduce(self.cfg, self.path, learner, self.logger, step=step, notes=[*self.notes, *(notes if step else [])])
        return learner

    def finish(self, learner: Learner) -> dict[str, Any]:
        """Write hyperparameters, the closing table and the result file.

        That comes last: a run that is killed before counts as unfinished, one that has it is never gone on with.

        Returns:
            The content of `result.json`.
        """
        state = learner.state
        if learner.store:
            learner.store.flush()
        conclude(self.cfg, self.path, state, self.logger, overrides=self.overrides, system=self.system)
        self.logger.flush()
        return self._write_result("finished", state, reason=state.stop_reason)

    def _record(self, learner: Learner) -> list[str]:
        """Write down what is about to run; returns what of it differs from the part of the run before."""
        before, engine, data = self.place.facts(), learner.engine, learner.data
        facts = {"visible": engine.mapping, "data": data.info.fingerprint, **facts_of(data)}
        self.place.record(self.cfg, self.overrides, device=engine.describe(learner.optimizer), **facts)
        if learner.store:
            learner.store.prepare()
        return differences(before, self.place.facts()) if before else []

    @contextmanager
    def _outcome(self, state: State) -> Iterator[None]:
        """Write down how a run ended that did not reach its end, and say what the machine's errors mean."""
        try:
            yield
        except BaseException as error:
            shown = as_user_error(error, self.path, self.memory.report) or error
            status = "interrupted" if isinstance(error, (KeyboardInterrupt, Interrupted)) else "failed"
            reason = str(shown) or type(error).__name__
            with suppress(OSError):
                _LOG.error("%s: %s", status, reason)
                self._write_result(status, state, reason=reason)
            if shown is error:
                raise
            raise shown from error

    @contextmanager
    def _logging(self, state: State) -> Iterator[None]:
        """Start the loggers where the counters stand; close them at the end."""
        start_logging(self.logger, self.place, state)
        try:
            yield
        except BaseException as error:
            with suppress(OSError):  # a full disk fails here once more, and says less
                if isinstance(error, Interrupted):
                    self.logger.message(farewell(error, self.path, saved=self.cfg.checkpoint.enabled))
                self.logger.close()
            raise
        self.logger.close()

    def _write_result(self, status: str, state: State, *, reason: str | None) -> dict[str, Any]:
        result = summary.result(
            state,
            status=status,
            monitor=self.cfg.metrics.monitor,
            mode=self.cfg.metrics.mode,
            reason=reason,
            name=self.cfg.name,
            seconds=round(time.monotonic() - self.began, 3),
            system=self.system,
        )
        self.place.write_result(result)
        return result


@contextmanager
def session(cfg: DictConfig, folder: Path, *, overrides: Sequence[str] = (), resume: bool = False) -> Iterator[Session]:
    """Enter a run: join its processes, find what it goes on from, and tell the machine's errors as what they are.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder.
        overrides: What was typed on the command line, for the record.
        resume: Go on from the newest checkpoint in the folder.

    Raises:
        UserError: There is nothing to go on from, another process runs in the folder, or the configuration does not
            suit the processes.
    """
    memory = MemoryReport(cfg)
    with translate_errors(folder, memory.report), ExitStack() as stack:
        ranks, cfg, place = stack.enter_context(process_group(cfg, folder))
        saved, notes, typed = None, tuple[str, ...](), list(overrides)
        if ranks.shared(lambda: resume):
            _lock(stack, place)
            typed = [*dict.fromkeys([*place.typed(), *overrides])]
            cfg, saved = _reopened(cfg, place, ranks)
        else:
            cfg, notes = resolve_batch_size(cfg, ranks, build_console(cfg).message)
        memory.cfg = cfg
        yield Session(
            cfg=cfg,
            place=place,
            ranks=ranks,
            overrides=typed,
            saved=saved,
            notes=tuple(notes),
            memory=memory,
            logger=build_logger(cfg, place.path) if ranks.main else Loggers([]),
            signals=Signals() if ranks.size == 1 else SharedSignals(ranks.vote),
            stack=stack,
        )


@contextmanager
def memory_released() -> Iterator[None]:
    """Give the memory of the run inside back: another run of this process, or a member of an ensemble, may need it."""
    try:
        yield
    except UserError as error:
        release_frames(error)
        raise
    finally:
        release()


def _lock(stack: ExitStack, place: RunFolder, *, fresh: bool = False) -> None:
    """Lock the folder and open its log."""
    stack.enter_context(place.begun(fresh=fresh))
    stack.enter_context(place.log())


def _reopened(cfg: DictConfig, place: RunFolder, ranks: Ranks) -> tuple[DictConfig, Saved]:
    """Read the newest checkpoint, and merge its configuration with the one at hand."""
    found = newest(build_store(cfg, place.path), ranks)
    if found is None:
        fix = "start a new run: lightkit train --from RUN"
        raise UserError("there is no checkpoint to go on from", key=str(place.path), fix=fix)
    text = found["config"]
    known = ranks.shared(lambda: not text or is_marked(place.path, text))
    text = text if known else without_grants(text)
    merged, changes = merge_configs(keep_resolved_batch_size(cfg, text), text, cfg.resume.override)
    if not known:
        check_received(merged, place.path)
    return merged, Saved(found, changes)


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
