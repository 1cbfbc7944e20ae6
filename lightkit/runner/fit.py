"""The training of one model of a run, with everything in it that the configuration decides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from lightkit.checkpoint import content
from lightkit.config import to_yaml
from lightkit.finetune.tuning import NoTuning
from lightkit.runner.ensemble.validations import validation_meters
from lightkit.runner.finetune_record import FinetuneRecord
from lightkit.runner.machine import Machine
from lightkit.runner.member import MemberRun
from lightkit.runner.observer import Observer
from lightkit.runner.profiled import profiled
from lightkit.runner.restore import start_logging, stateful
from lightkit.runner.results import result_writer
from lightkit.trainer import Trainer
from lightkit.trainer.guard import KEPT, Guard, Kept, RollbackGuard, SkipGuard
from lightkit.trainer.learner import Learner
from lightkit.trainer.services import Services
from lightkit.trainer.watch import NoWatch, Watcher

Fit = Callable[[MemberRun, Learner, Observer], bool]
"""What trains a model; see `fit`."""


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
    machine = Machine(run.cfg, run.path, learner)
    run.session.memory.memory = machine.memory
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
                    meters=validation_meters(run, learner),
                ),
                monitor=run.cfg.metrics.monitor,
                mode=run.cfg.metrics.mode,
                guard=make_guard(run, learner),
                tuning=record.tuning,
                watch=make_watch(run, record.tuning),
            )
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


def make_saver(run: MemberRun, learner: Learner, observer: Observer) -> Callable[[float | None], None]:
    """Return what writes a checkpoint, ranked by the value it is given."""
    store, logger = learner.store, run.logger
    text = to_yaml(run.cfg) if store else ""  # which takes longer than a small save

    def save(value: float | None) -> None:
        with observer.saving(learner):
            saved = content.gather(**stateful(learner), config_text=text)  # in every process: metrics are everywhere
            if store is None:
                return
            logger.flush()  # what the checkpoint counts as logged must not die with this process, nor in a power cut
            state = learner.state
            store.save(saved, step=state.step, value=value, epoch=state.epoch, first=logger.sync)

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
