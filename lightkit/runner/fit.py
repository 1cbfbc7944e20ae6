"""The training of one model of a run, with everything in it that the configuration decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import Learner
from lightkit.assembly.origin import notes_on_base
from lightkit.assembly.phases import build_plan_of, build_tuning, matches_of, notes_on_plan
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.modules import is_shard
from lightkit.common.reading import OBJECTS
from lightkit.config import to_plain, to_yaml
from lightkit.diagnostics.spans import NoSpans
from lightkit.finetune.plan import FinetunePlan
from lightkit.finetune.tables import format_names
from lightkit.finetune.tuning import NoTuning, Tuning
from lightkit.loggers import Logger
from lightkit.loggers.files import write_json
from lightkit.loggers.wording import plain_table
from lightkit.processes.files import write_whole
from lightkit.runner.ensemble.predictions import validation_meters
from lightkit.runner.evaluation import result_writer
from lightkit.runner.machine import Machine, per_sample
from lightkit.runner.member import MemberRun
from lightkit.runner.messages import Overlays
from lightkit.runner.restore import start_logging, stateful
from lightkit.runs.reading import read_json
from lightkit.trainer import State, Trainer
from lightkit.trainer.audit.watch import NoWatch, Watcher
from lightkit.trainer.callbacks import RunInfo
from lightkit.trainer.guard import KEPT, Guard, Kept, RollbackGuard, SkipGuard
from lightkit.trainer.services import Services


def fit(run: MemberRun, learner: Learner, observer: Observer) -> bool:
    """Train a model from where its state stands to the end, or to where it is to pause.

    Args:
        run: The model's run, which has begun.
        learner: The model and what trains it.
        observer: Looks on.

    Returns:
        Whether it has come to its end.

    Raises:
        UserError: Training cannot go on; its exit code says why.
        Interrupted: A signal asked the run to end; the state was saved.
    """
    record = FinetuneRecord(run.cfg, run.path, learner, state=learner.state, logger=run.logger)
    record.introduce()
    save = make_saver(run, learner, observer)
    machine = Machine(run.cfg, run.path, learner, per_sample(run.cfg, learner))
    run.session.memory.memory, shown = machine.memory, run.cfg.logger.tensorboard.images
    try:
        with machine, profiled(run.cfg, run.path, learner, logger=run.logger) as spans:
            trainer = Trainer(
                learner,
                Services(
                    run.logger,
                    run.session.signals,
                    machine.clock,
                    spans,
                    save,
                    rescues=rescue_teller(run),
                    results=result_writer(run),
                    meters=[*validation_meters(run, learner), Overlays(learner, run.logger, shown)],
                    run=RunInfo(run.cfg.name, run.path, run.cfg, run.place.facts().get("git")),
                    scope=run.stack,
                ),
                monitor=run.cfg.metrics.monitor,
                mode=run.cfg.metrics.mode,
                guard=make_guard(run, learner),
                tuning=record.tuning,
                watch=make_watch(run, record.tuning),
            )
            run.on_test.append(trainer.tested)
            trainer.fit()
            return not trainer.paused
    finally:
        run.system.update(machine.summary())
        with suppress(OSError):
            record.write()


def rescue_teller(run: MemberRun) -> Callable[[str], None] | None:
    """Return what says that the last whole step is saved, where checkpoints are: of a member the table of all, too."""
    if not run.cfg.checkpoint.enabled:
        return None

    def tell(line: str) -> None:
        run.logger.message(line)
        if run.place is not run.session.place:
            run.session.members.message(f"{run.path.name}  {line}")

    return tell


def make_saver(run: MemberRun, learner: Learner, observer: Observer) -> Callable[[float | None], Path | None]:
    """Return what writes a checkpoint, ranked by the value it is given."""
    store, logger = learner.store, run.logger
    text = to_yaml(run.cfg) if store else ""  # which takes longer than a small save

    def save(value: float | None) -> Path | None:
        with observer.saving(learner):
            saved = content.gather(**stateful(learner), config_text=text)  # in every process: metrics are everywhere
            if store is None:
                return None
            logger.flush()  # what the checkpoint counts as logged must not die with this process, nor in a power cut
            state = learner.state
            return store.save(saved, step=state.step, value=value, epoch=state.epoch, first=logger.sync)

    return save if run.cfg.checkpoint.enabled else lambda value: None


def make_guard(run: MemberRun, learner: Learner) -> Guard:
    """Return what decides about losses that are not finite, as `trainer.nonfinite` says."""
    options, device, ranks = run.cfg.trainer.nonfinite, learner.engine.device, learner.engine.ranks
    agree = ranks.agree if ranks.size > 1 else None
    if options.action == "stop":
        return Guard(device, agree=agree)
    if options.action == "skip":
        return SkipGuard(device, limit=options.limit, tell=run.logger.message, agree=agree)
    kept = learner.callbacks.get(KEPT)

    def purge() -> None:
        """Forget what was logged and saved after the step that the run has gone back to."""
        start_logging(run.logger, run.place, learner.state)
        if learner.store:
            learner.store.abandon()

    return RollbackGuard(
        device,
        agree=agree,
        limit=options.limit,
        every=options.every,
        factor=options.factor,
        gather=lambda: content.gather(**stateful(learner, kept=False)),
        apply=lambda saved: content.apply(saved, **stateful(learner, kept=False)),
        purge=purge,
        kept=kept if isinstance(kept, Kept) else None,
        tell=run.logger.message,
    )


def make_watch(run: MemberRun, tuning: NoTuning) -> NoWatch:
    """Return what looks now and then whether training does what it says, as `trainer.watch` says."""
    options = run.cfg.trainer.watch
    if options.every is None:
        return NoWatch()
    return Watcher(
        options.every, action=options.action, tell=run.logger.message, phase_start=lambda: tuning.phase_start
    )


class Observer:
    """The plain case: nobody looks on."""

    rows: Mapping[str, int] = MappingProxyType({})
    """Rows to keep of each split, so that the run is short; empty keeps all."""

    def watch(self, learner: Learner) -> Learner:
        """Return the learner with what is needed to look on: callbacks, a task that tells.

        Args:
            learner: As it was built; no checkpoint is loaded yet.
        """
        return learner

    def saving(self, learner: Learner) -> AbstractContextManager[None]:
        """Look on while a checkpoint is written inside."""
        return nullcontext()


Fit = Callable[[MemberRun, Learner, Observer], bool]
"""What trains a model; see `fit`."""


DETAILS = ("memory", "stacks", "shapes")


@contextmanager
def profiled(cfg: DictConfig, folder: Path, learner: Learner, *, logger: Logger) -> Iterator[NoSpans]:
    """Profile the run while inside, where the configuration asks for it; report afterwards where the time went.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        learner: What is trained; its state tells how many steps there are to do.
        logger: Takes the tables.

    Yields:
        What profiles the loop; nothing, unless `profile` is set and there are steps to do.
    """
    state = learner.state
    left = learner.timetable.total_steps - state.step
    # The key is not in the file of a run that began before there was such a thing.
    if not cfg.get("profile") or left <= 0 or state.stop_reason is not None:
        yield NoSpans()
        return
    from lightkit.diagnostics.profiling import Details, Recorder, Window

    options = to_plain(cfg.logger.get("profile")) or {}
    names = {"skip_steps": "skip", "warmup_steps": "warmup", "steps": "steps"}
    wanted = Window(**{field: options[name] for name, field in names.items() if name in options})
    details = Details(**{name: options[name] for name in DETAILS if name in options})
    window = wanted.fitted(left)
    if window.steps:
        first = state.step + window.skip + window.warmup + 1
        why = f": the run has only {window.skip + window.warmup + window.steps} left" if window != wanted else ""
        warmup = f", after {window.warmup} to warm up" if window.warmup else ""
        logger.message(f"profile steps {first} to {first + window.steps - 1} will be recorded{warmup}{why}")
    else:
        logger.message("profile time is counted, and nothing recorded (logger.profile.steps=0)")
    place, ranks = folder / run_files.PROFILE, learner.engine.ranks
    recorder = Recorder(window, learner.engine.device, place, tell=logger.message, details=details, rank=ranks.rank)
    try:
        yield recorder
    except BaseException:
        with suppress(OSError):  # a full disk fails here once more, and says less
            _conclude(recorder, place, logger, step=state.step, main=ranks.main)
        raise
    _conclude(recorder, place, logger, step=state.step, main=ranks.main)


def _conclude(recorder: Any, place: Path, logger: Logger, *, step: int, main: bool) -> None:
    """Write what is left; show the tables, and keep them in a file and in TensorBoard."""
    recorder.close()
    if not main:
        return
    from lightkit.diagnostics.profiling import STRETCHES, operators_table, stretches_table

    tables = [stretches_table(recorder.recorded, recorder.seconds, recorder.whole, order=STRETCHES)]
    if recorder.recorded is not None:
        tables.append(operators_table(recorder.recorded))
    hints = list[str]()
    if recorder.trace is not None:
        hints.append(f"profile {recorder.trace}: open it in https://ui.perfetto.dev,")
        hints.append(f"        or `pip install torch-tb-profiler` and `tensorboard --logdir {place}`")
    text = "\n\n".join([*(plain_table(*table) for table in tables), "\n".join(hints)]).rstrip() + "\n"
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_whole(place / run_files.PROFILE_SUMMARY, text, forced=True)
    except OSError as error:
        logger.message(f"profile {place / run_files.PROFILE_SUMMARY} cannot be written: {error.strerror}")
    for table in tables:
        logger.table(*table)
    logger.text("profile", f"```text\n{text}```", step=step)
    for line in hints:
        logger.message(line)


_MAX_ROWS = 12  # `lightkit plan` shows all of them


class FinetuneRecord:
    """Phases of a run and what is known of them.

    Args:
        cfg: The configuration.
        folder: The run's folder, which gets `finetune.json`.
        parts: The parts of the run, as they are in its first step.
        state: The counters.
        logger: Takes lines and the table.
    """

    def __init__(self, cfg: DictConfig, folder: Path, parts: Learner, *, state: State, logger: Logger) -> None:
        self.tuning, self._path, self._parts, self._logger = NoTuning(), folder / run_files.FINETUNE, parts, logger
        self._cfg, self._resumed = cfg, state.step > 0
        self._plan, self._rows_before = FinetunePlan(()), list[dict[str, Any]]()
        if parts.made.prepared is None:
            return
        self._plan, self._matches = build_plan_of(parts), matches_of(cfg, parts)
        ranks, sharded = parts.engine.ranks, any(map(is_shard, parts.model.parameters()))
        with suppress(OSError, ValueError, TypeError, LookupError):  # an older lightkit, or a power cut
            if self._resumed:  # what an earlier part of the run found of phases that had ended by then
                rows = read_json(self._path, {"audit": OBJECTS})["audit"]
                self._rows_before = [row for row in rows if row["to_step"] <= state.step]
        self.tuning = build_tuning(
            parts,
            self._plan,
            # One does for all, as all see the same, unless each holds a part of the model.
            audit=cfg.finetune.get("audit", "fail") if ranks.main or sharded else "none",
            report=logger.message,
            skipped=lambda: state.skipped + parts.engine.skipped(),
            on_phase_end=self._try_write,
            ranks=ranks if sharded else None,
        )

    def introduce(self) -> None:
        """Report what was loaded, and what trains when."""
        report, lines = self._parts.made.report, list[str]()
        if report is not None:
            lines += [f"weights {report.source}: {report.summary()}", *report.text().splitlines()]
            lines += notes_on_base(self._cfg, self._parts.data)
        for line in lines if self._resumed else [*lines, *notes_on_plan(self._cfg, self._parts)]:
            self._logger.message(line)
        prepared = self._parts.made.prepared
        if prepared is None:
            return
        held = sorted(prepared.norms_held_by_model)
        if held:
            self._logger.message(f"the network itself holds norm layers in eval mode: {format_names(held)}")
        columns, rows = self._plan.table()
        if len(rows) <= _MAX_ROWS:
            self._logger.table("plan of the fine-tuning", columns, rows)
        if prepared.head is not None:
            self._logger.message(f"output layer: {prepared.described_head}")
        for line in self._plan.lines():
            self._logger.message(line)
        self.write()

    def write(self) -> None:
        """Write the plan, and what the audit found so far, into the run's folder."""
        prepared = self._parts.made.prepared
        if prepared is not None and self._parts.engine.ranks.main:
            content = {
                "plan": self._plan.to_json(),
                "head": prepared.head and prepared.head.to_json(),
                "layers": dict(self._parts.made.depths or {}),
                "patterns": [match.to_json() for match in self._matches],
                "audit": self.audit_rows(),
            }
            write_json(self._path, content)

    def audit_rows(self) -> list[dict[str, Any]]:
        """Return what the audit saw of the phases that have ended, also in earlier parts of a resumed run."""
        auditor = self.tuning.auditor if isinstance(self.tuning, Tuning) else None
        return [*self._rows_before, *(auditor.table() if auditor else [])]

    def _try_write(self) -> None:
        """Write down what was found, for the run may be killed; a disk that is full is reported elsewhere."""
        with suppress(OSError):
            self.write()
