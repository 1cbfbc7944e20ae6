"""The loop of a run, with everything in it that the configuration decides."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

from lightkit.assembly import Components
from lightkit.checkpoint import content
from lightkit.config import to_yaml
from lightkit.finetune.tuning import NoTuning
from lightkit.loggers import Logger
from lightkit.runner.restore import start_logging, stateful
from lightkit.runs.folder import RunFolder
from lightkit.trainer import State, Trainer
from lightkit.trainer.clock import Clock
from lightkit.trainer.guard import KEPT, Guard, Kept, RollbackGuard, SkipGuard
from lightkit.trainer.interrupt import Signals


def make_trainer(
    cfg: DictConfig,
    place: RunFolder,
    parts: Components,
    *,
    state: State,
    logger: Logger,
    signals: Signals,
    save: Callable[[float | None], None],
    tuning: NoTuning,
    clock: Clock,
    kind: Callable[..., Trainer] = Trainer,
) -> Trainer:
    """The loop over the parts of a run.

    Args:
        cfg: The configuration.
        place: The run's folder.
        parts: The parts.
        state: The counters, also those of a resumed run.
        logger: Takes what is measured.
        signals: Tell when the run is asked to end.
        save: From `make_saver`.
        tuning: What trains when.
        clock: Measures where the time goes.
        kind: The trainer itself, or one that does more.
    """
    return kind(
        parts.network,
        parts.data.train,
        parts.data.val,
        task=parts.task,
        criterion=parts.criterion,
        optimizer=parts.optimizer,
        scheduler=parts.scheduler,
        timetable=parts.timetable,
        engine=parts.engine,
        train_metrics=parts.metrics["train"],
        val_metrics=parts.metrics["val"],
        monitor=cfg.metrics.monitor,
        mode=cfg.metrics.mode,
        average=parts.average,
        callbacks=tuple(parts.callbacks.values()),
        logger=logger,
        save=save,
        state=state,
        guard=_guard(cfg, place, parts, state=state, logger=logger),
        interrupt=signals,
        tuning=tuning,
        clock=clock,
    )


def _guard(cfg: DictConfig, place: RunFolder, parts: Components, *, state: State, logger: Logger) -> Guard:
    """What to do about a loss that is not finite."""
    options, device, ranks = cfg.trainer.nonfinite, parts.engine.device, parts.engine.ranks
    agree = ranks.agree if ranks.size > 1 else None
    if options.action == "stop":
        return Guard(device, agree=agree)
    if options.action == "skip":
        return SkipGuard(device, limit=options.limit, agree=agree)
    kept = parts.callbacks.get(KEPT)
    return RollbackGuard(
        device,
        agree=agree,
        limit=options.limit,
        every=options.every,
        factor=options.factor,
        gather=lambda: content.gather(**stateful(parts, state, kept=False)),
        apply=lambda saved: content.apply(saved, **stateful(parts, state, kept=False)),
        purge=lambda: _purge(place, parts, state, logger),
        kept=kept if isinstance(kept, Kept) else None,
    )


def _purge(place: RunFolder, parts: Components, state: State, logger: Logger) -> None:
    """After the run has gone back: forget what was logged and saved later."""
    start_logging(logger, place, state)
    if parts.store:
        parts.store.abandon()


def make_saver(cfg: DictConfig, parts: Components, state: State, logger: Logger) -> Callable[[float | None], None]:
    """What writes a checkpoint, ranked by the value it is given."""
    store, text = parts.store, to_yaml(cfg) if parts.store else ""  # which takes longer than a small save

    def save(value: float | None) -> None:
        saved = content.gather(**stateful(parts, state), config_text=text)  # in every process: metrics are everywhere
        if store is None:
            return
        logger.flush()  # what the checkpoint counts as logged must not die with this process, nor in a power cut
        store.save(saved, step=state.step, value=value, epoch=state.epoch, first=logger.sync)

    return save if cfg.checkpoint.enabled else lambda value: None
