"""What a run enters once, however many models it trains: processes, folder, signals, faults."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from torch.optim import Optimizer

import lightkit.trainer.report as summary
from lightkit.assembly import Shared, build_console, build_store
from lightkit.assembly.origin import commits, facts_of
from lightkit.assembly.run_rows import ensemble_of
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.failures import exit_status
from lightkit.common.text import without_secrets
from lightkit.config import with_values
from lightkit.config.doors import load, names
from lightkit.config.policy import without_user_only
from lightkit.config.provenance import is_ours, refuse_foreign_targets
from lightkit.data import Data
from lightkit.data.sources import kept_generators
from lightkit.device import Engine
from lightkit.device.ranks import Ranks
from lightkit.diagnostics.memory import release
from lightkit.ensemble.methods.base import NO_ENSEMBLE, MemberResult, RunMember
from lightkit.finders.lr import keep_found_lr, resolve_lr
from lightkit.loggers import ConsoleLogger, Logger, LogLogger, MembersTable
from lightkit.runner.batches import keep_resolved_batch_size, resolve_batch_size
from lightkit.runner.ensemble.trained import find_trained
from lightkit.runner.faults import MemoryReport, as_user_error, release_frames, translate_errors
from lightkit.runner.machine import wait_for_gpus
from lightkit.runner.merge import KeyChange, merge_configs
from lightkit.runner.messages import farewell, introduce_members
from lightkit.runner.process_group import newest, process_group
from lightkit.runs.catalog import has_members
from lightkit.runs.code import own_modules
from lightkit.runs.folder import RunFolder, changed_code, differences
from lightkit.runs.reading import read_config
from lightkit.trainer import State
from lightkit.trainer.interrupt import Interrupted, SharedSignals, Signals
from lightkit.trainer.learner import Learner

_LOG = logging.getLogger(__name__)
_LEAKS = "data.leak_check"
"""The door of what looks at the rows of a run where it starts: called with its configuration and its data, it yields
findings (`lightkit.doctor.finding.Finding`)."""


class Saved(NamedTuple):
    """The checkpoint that a model goes on from."""

    content: dict[str, Any]
    """What it holds."""
    changes: list[KeyChange]
    """What differs between its configuration and the one at hand."""


@dataclass(frozen=True)
class Session:
    """What a run has once. Everything ends with the exit stack, in the opposite order.

    Until its first model begins nothing is written: what is wrong from the start leaves no trace.
    """

    cfg: DictConfig
    """The configuration to run with: merged with that of the earlier part, with the batch size that was found."""
    place: RunFolder
    """The run's folder, which only rank 0 writes to."""
    ranks: Ranks
    """The processes that train together."""
    overrides: list[str]
    """What was typed for the run, also for earlier parts of it."""
    resumes: bool
    """Whether it goes on with an earlier part."""
    saved: Saved | None
    """The checkpoint in its own folder; None for a new run, and where its members have theirs."""
    notes: tuple[str, ...]
    """Lines about how the configuration was completed."""
    memory: MemoryReport
    """What is known of the run when its memory runs out."""
    signals: Signals
    """Tell when the run is asked to end."""
    stack: ExitStack
    """Ends everything."""
    members: MembersTable
    """Shows how far each of several models is."""
    began: float = field(default_factory=time.monotonic)
    """Second at which it was entered."""
    tried: set[str] = field(default_factory=set)
    """Kinds of models whose parts were tried on the data; see `lightkit.runner.ensemble.engines.kind_of`."""

    @property
    def fresh(self) -> bool:
        """Tell whether this is a new run."""
        return not self.resumes

    def tell(self, line: str) -> None:
        """Show a line to whoever watches, before the loggers have started."""
        (self.members.console.message if self.ranks.main else _LOG.debug)(line)

    def finished(self, member: RunMember) -> MemberResult | None:
        """Return what a member came to in an earlier part of this run; None where it is still to be trained."""
        if self.fresh or not member.name:
            return None
        result: dict[str, Any] = self.ranks.shared(
            lambda: find_trained(self.cfg, self.place, member, self.members.message)
        )
        if not result:
            return None
        self.members.finish(member.name, result, earlier=True)
        return MemberResult(member, self.place.member(member.name).path, result)

    def begin(self, engine: Engine, data: Data, parts: Learner | None = None) -> None:
        """Begin to write to the folder of several models, where the first of them begins or all of them are trained.

        Args:
            engine: That of the first, or of all.
            data: The same.
            parts: The first one, of which the run tells; None where all of them are trained.
        """
        if self.place.is_recorded:
            return
        if not self.place.is_begun:
            lock_folder(self.stack, self.place, fresh=True)
        optimizer = parts.optimizer if parts else None
        code, rows = record_facts(self.place, self.cfg, self.overrides, engine, data, optimizer)
        for line in [*(code if parts else []), *rows] if self.resumes else []:
            self.tell(line)
        self.stack.enter_context(outcome(self, self.place, self.cfg, State(), {}))
        self.stack.enter_context(self._told())
        self.stack.enter_context(self.signals.caught())  # also between members: the next one ends at its first step
        if parts is not None:
            introduce_members(self.cfg, parts, self.members.message, notes=self.notes)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say how to go on, where a signal ends the run."""
        try:
            yield
        except Interrupted as stop:
            self.members.close()
            self.members.message(farewell(stop, self.place.whole, saved=self.cfg.checkpoint.enabled))
            raise

    def finish(self, result: dict[str, Any], done: Sequence[MemberResult]) -> dict[str, Any]:
        """Write the result of several models; a single one has written it.

        Returns:
            The content of `result.json`.
        """
        if any(member.folder != self.place.path for member in done):
            self.place.write_result(result)
        return result


@contextmanager
def session(cfg: DictConfig, folder: Path, *, overrides: Sequence[str] = (), resume: bool = False) -> Iterator[Session]:
    """Enter a run: join its processes, find what it goes on from, and tell the machine's errors as what they are.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder.
        overrides: What was typed on the command line, for the record.
        resume: Go on from the newest checkpoint in the folder, or with the members in it.

    Raises:
        UserError: There is nothing to go on from, another process runs in the folder, or the configuration does not
            suit the processes.
    """
    memory = MemoryReport(cfg)
    with translate_errors(folder, memory.report), ExitStack() as stack:
        wait_for_gpus(cfg, folder, stack)
        ranks, cfg, place = stack.enter_context(process_group(cfg, folder))
        resumes = ranks.shared(lambda: resume)
        saved, notes, typed = None, tuple[str, ...](), list(overrides)
        if resumes:
            lock_folder(stack, place)
            typed = [*dict.fromkeys([*place.typed(), *overrides])]
            cfg, saved = reopen(cfg, place, ranks)
        else:
            tell, kept = build_console(cfg).message, ranks.shared(lambda: commits(cfg))
            cfg = with_values(cfg, kept) if kept else cfg
            cfg, notes = resolve_batch_size(cfg, ranks, tell)
            cfg, more = resolve_lr(cfg, ranks, tell)  # with the batches that are used
            notes += more
        memory.cfg = cfg
        goal: dict[str, Any] = {"monitor": cfg.metrics.monitor, "mode": cfg.metrics.mode}
        log = LogLogger(place.path / run_files.LOG) if ranks.main else Logger()
        file = place.path / run_files.PROGRESS if ranks.main else None
        members = MembersTable(build_console(cfg) if ranks.main else ConsoleLogger("quiet"), log, **goal, file=file)
        stack.callback(members.close)
        yield Session(
            cfg=cfg,
            place=place,
            ranks=ranks,
            overrides=typed,
            resumes=resumes,
            saved=saved,
            notes=tuple(notes),
            memory=memory,
            signals=Signals() if ranks.size == 1 else SharedSignals(ranks.vote),
            stack=stack,
            members=members,
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


def look_for_leaks(run: Session, cfg: DictConfig, shared: Shared) -> Session:
    """Look for leaks once, where a run starts; what is found is told with its first lines, and kept in its folder."""
    starts = run.fresh and run.ranks.main and run.place.path.parent.name != run_files.MEMBERS
    wanted = names(_LEAKS) if starts and cfg.data.get("leak_check", True) else ()
    with kept_generators():
        looks = [load(_LEAKS, name, entries=cfg.get("trust") or ()) for name in wanted]
        bad = (one for look, given in looks for one in look(cfg, shared, **given) if one.is_bad)
        found = sorted(bad, key=lambda one: one.status)  # errors come before warnings
    if not found:
        return run
    run.place.found[run_files.LEAKS] = {"findings": [one.to_json() for one in found]}
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    line = f"doctor  {found[0].measured}{more}; `lightkit doctor OVERRIDES` says what to do"
    return replace(run, notes=(*run.notes, line))


def lock_folder(stack: ExitStack, place: RunFolder, *, fresh: bool = False) -> None:
    """Lock the folder and open its log."""
    stack.enter_context(place.begun(fresh=fresh))
    stack.enter_context(place.log())


def reopen(cfg: DictConfig, place: RunFolder, ranks: Ranks) -> tuple[DictConfig, Saved | None]:
    """Merge the configuration at hand with that of the newest checkpoint, or of a run whose members have theirs."""
    saved = newest(build_store(cfg.checkpoint, place.path, mode=cfg.metrics.mode), ranks)
    # Its members have the checkpoints, if one got so far before it was killed.
    plans = cfg.ensemble._target_ != NO_ENSEMBLE or (place.path / run_files.TOGETHER).is_dir()
    if saved is None and not ranks.shared(lambda: has_members(place.path) or (plans and bool(read_config(place.path)))):
        fix = "start a new run: lightkit train --from RUN"
        raise UserError("there is no checkpoint to go on from", key=str(place.path), fix=fix, family="no-checkpoint")
    text: str = saved["config"] if saved else ranks.shared(lambda: read_config(place.path))
    known = ranks.shared(lambda: not text or is_ours(place.path, text))
    text = text if known else without_user_only(text)
    merged, changes = merge_configs(keep_found_lr(keep_resolved_batch_size(cfg, text), text), text, cfg.resume.override)
    if not known:
        refuse_foreign_targets(merged, place.path)
    return merged, Saved(saved, changes) if saved else None


def record_start(place: RunFolder, cfg: DictConfig, overrides: Sequence[str], learner: Learner) -> list[str]:
    """Write down what is about to run; returns what of it differs from the part of the run before."""
    before, engine, data = place.facts(), learner.engine, learner.data
    length = learner.timetable.total_steps  # of a length in epochs nothing else in the folder tells it
    facts = {"total_steps": length, "weights": before.get("weights") or learner.made.loaded}
    code, rows = record_facts(place, cfg, overrides, engine, data, learner.optimizer, **facts)
    if learner.store:
        learner.store.prepare()
    return [*code, *rows, *differences(before, place.facts())] if before else []


def record_facts(
    place: RunFolder,
    cfg: DictConfig,
    overrides: Sequence[str],
    engine: Engine,
    data: Data,
    optimizer: Optimizer | None,
    **facts: Any,
) -> tuple[list[str], list[str]]:
    """Write down where and on what a run trains; returns lines about code, and about rows, that are others now."""
    before, modules = place.facts().get("modules", {}), own_modules()
    facts |= {"visible": engine.placement.mapping, "data": data.info.fingerprint, **facts_of(data), "modules": modules}
    place.record(cfg, overrides, device=engine.describe(optimizer), **facts)
    return changed_code(before, modules, cfg), [] if cfg.cv.folds else keep_rows(data, place)


def keep_rows(data: Data, place: RunFolder) -> list[str]:
    """Keep the rows of the splits in the folder of a run; returns a line where no part of it has kept them yet.

    Raises:
        UserError: They cannot be written.
    """
    if ensemble_of(place.path) is not None:  # whose members share them
        return []
    known = (place.path / run_files.ROWS).exists()
    if data.kept is not None and (data.kept.drawn or not known):
        place.keep(run_files.ROWS, data.kept.to_bytes)
    left_out = dict(getattr(data.source, "left_out", {}))
    if left_out:
        place.keep(run_files.LEFT_OUT, lambda: json.dumps(left_out, indent=2).encode())
    line = "the rows of its splits were not kept when the run began: they are drawn anew, and kept from now on"
    return [] if known else [line]


@contextmanager
def outcome(run: Session, place: RunFolder, cfg: DictConfig, state: State, system: Mapping[str, Any]) -> Iterator[None]:
    """Write down how a run ended that did not reach its end, and say what the machine's errors mean."""
    try:
        yield
    except BaseException as error:
        shown = as_user_error(error, place.path, run.memory.report) or error
        status = "interrupted" if isinstance(error, (KeyboardInterrupt, Interrupted)) else "failed"
        reason = without_secrets(str(shown)) or type(error).__name__
        with suppress(OSError):
            _LOG.error("%s: %s", status, reason)
            result = make_result(run, cfg, state, status, reason=reason, system=system)
            place.write_result({**result, "exit_status": exit_status(shown)})
        if shown is error:
            raise
        raise shown from error


def make_result(
    run: Session,
    cfg: DictConfig,
    state: State,
    status: str,
    *,
    reason: str | None,
    system: Mapping[str, Any],
    began: float | None = None,
) -> dict[str, Any]:
    """Return the content of `result.json` at the end of a run, whatever it came to; `began` is when, if not with it."""
    return summary.result(
        state,
        status=status,
        monitor=cfg.metrics.monitor,
        mode=cfg.metrics.mode,
        reason=reason,
        name=cfg.name,
        seconds=round(time.monotonic() - (run.began if began is None else began), 3),
        system=dict(system),
    )
