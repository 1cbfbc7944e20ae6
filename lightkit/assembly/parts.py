"""One function for each part of a run, from a checked configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Sampler

from lightkit.assembly.compatibility import check_hooks, check_monitor, check_targets
from lightkit.assembly.dry_run import Tried
from lightkit.assembly.named import build_metric, sampler_node, shipped, with_weights
from lightkit.assembly.origin import check_same_classes, fitted_before, pinned_before
from lightkit.assembly.run_rows import known_rows, with_further_sets
from lightkit.checkpoint.background import BackgroundStore
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.common.lengths import read_length
from lightkit.common.names import SPLIT_NAMES
from lightkit.common.strategies import ELSEWHERE
from lightkit.common.text import counted
from lightkit.config import instantiate, to_plain
from lightkit.config.direction import MODES
from lightkit.config.doors import load
from lightkit.config.schema.learning import MemberConfig
from lightkit.data import Data, DataInfo, build_data
from lightkit.data.kept_rows import KeptRows
from lightkit.data.sample_cache import keep_samples
from lightkit.data.sources import as_source
from lightkit.device import Engine, Parallel, configure_process
from lightkit.device.ranks import Ranks
from lightkit.device.switches import Switches
from lightkit.loggers import ConsoleLogger, Logger, Loggers, OwnLogger
from lightkit.metrics import SharedMetrics, SplitMetrics
from lightkit.trainer.average import Ema, NoAverage, OwnAverage, Swa, averages_itself
from lightkit.trainer.callbacks import Callback, EarlyStopping
from lightkit.trainer.guard import KEPT, Kept
from lightkit.trainer.histograms import KEY as HISTOGRAMS
from lightkit.trainer.histograms import Histograms
from lightkit.trainer.overfit import KEY as OVERFIT
from lightkit.trainer.overfit import Overfit
from lightkit.trainer.state import Timetable
from lightkit.trainer.tasks import Criterion, Supervised
from lightkit.trainer.traced import StepTrace


def role_of(cfg: DictConfig) -> MemberConfig:
    """Return what a run is among the members of an ensemble; the defaults are those of a run of its own."""
    return MemberConfig(**to_plain(cfg.ensemble.get("member") or {}))


def strategy_class(cfg: DictConfig) -> tuple[type[Parallel], dict[str, Any]]:
    """Import the class that `device.parallel` names or is a node of.

    Returns:
        The class, and the arguments that the configuration gives it.

    Raises:
        UserError: It cannot be imported, or does not support what else the configuration asks for.
    """
    device = to_plain(cfg.device)
    kind, given = load("device.parallel", device["parallel"], Parallel, entries=to_plain(cfg.trust))
    features = device | {name: OmegaConf.select(cfg, key) for name, key in ELSEWHERE.items()}
    for name, why in kind.strategy.refused(features):
        key = ELSEWHERE.get(name, f"device.{name}")
        raise UserError(why.what, key=key, received=device.get(name), fix=why.fix, family="contradiction")
    return kind, kind.strategy.arguments(device) | given


def build_engine(cfg: DictConfig, ranks: Ranks | None = None) -> Engine:
    """Choose the device and make everything random a function of the seed from here on."""
    device, (parallel, options) = to_plain(cfg.device), strategy_class(cfg)
    shared = {"precision": device["precision"], "deterministic": device["deterministic"], "ranks": ranks}
    with keys_under("device"):
        shared["switches"] = Switches(**{field.name: device[field.name] for field in fields(Switches)})
        return Engine(
            configure_process(
                device["name"],
                gpus=device["gpus"],
                threads=device["threads"],
                several_gpus=parallel.strategy.several_gpus,
                seed=cfg.seed,
                **shared,
            ),
            parallel=parallel,
            parallel_options=options,
            seed=cfg.seed,
            clip_type=float(cfg.trainer.clip_type),
            **{name: cfg.trainer[name] for name in ("clip_norm", "clip_value")},
            **shared,
        )


def build_splits(
    cfg: DictConfig,
    engine: Engine,
    folder: Path | None = None,
    *,
    within: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
    like: Data | None = None,
    rows: Callable[[Any], Mapping[str, Tensor]] | None = None,
) -> Data:
    """Load the data set, split it and make the loaders, those of further sets, too.

    Args:
        cfg: The configuration.
        engine: Tells which part of every batch is for this process.
        folder: That of a run that has begun, which knows its rows and what it fitted to them; None for others.
        within: That of the ensemble that a new run is a member of, whose rows are its own.
        report: Called with a line now and then where that takes long.
        like: Data to whose training rows all was fitted; None fits it to those of this data.
        rows: Tells which rows of the data set are in which split; None draws them.

    Raises:
        UserError: The data cannot be loaded, or a setting does not suit it.
    """
    options, override = to_plain(cfg.data), tuple(cfg.resume.override)
    pinned = {"like": getattr(like.source, "base", like.source)} if like else pinned_before(cfg.data, folder or within)
    dataset = instantiate(cfg.data.dataset, key="data.dataset", **pinned)
    for name in ("dataset", "more", "leak_check"):
        options.pop(name, None)
    sizes = dataset.info.sizes() if hasattr(dataset, "info") else {}
    options["augment"] = [
        instantiate(node, key=f"data.augment[{i}]", **sizes) for i, node in enumerate(cfg.data.augment)
    ]
    if cfg.data.sampler is not None:
        options["sampler"] = partial(instantiate, sampler_node(cfg.data.sampler), key="data.sampler", expected=Sampler)
    if cfg.data.collate is not None:
        options["collate"] = instantiate(cfg.data.collate, key="data.collate", expected=Callable)
    options |= {"replica": engine.ranks.replica, "replicas": engine.ranks.replicas}
    if (steps := cfg.trainer.get("epoch_steps")) is not None:
        options["epoch_batches"] = steps * cfg.trainer.accumulate
    if options["pin_memory"] is None:
        options["pin_memory"] = engine.placement.pins_memory
    options |= fitted_before(cfg, folder, like)
    length = cfg.trainer.steps or (cfg.trainer.get("epoch_steps") or 0) * (cfg.trainer.epochs or 0)
    with keys_under("data.dataset"):
        source = as_source(dataset, length * cfg.trainer.accumulate * cfg.data.batch_size)
    source = keep_samples(source, options.pop("cache", None), to_plain(cfg.data.dataset), options["augment"])
    if folder is not None:
        check_same_classes(folder, source.info, override)
    known = known_rows(cfg.data, source, folder or within, override)
    with keys_under("data"):
        own = rows(source) if rows else None if known.kept is None else known.kept.rows()
        data = build_data(dataset=known.source, seed=cfg.seed, rows=own, report=report, order=known.order, **options)
    kept = known.kept or replace(KeptRows.of(source, data.rows), order=known.order)
    data = replace(data, kept=kept, notes=(*data.notes, *known.notes, *known.seen(data.rows)))
    return with_further_sets(cfg, data, partial(build_splits, engine=engine))


def build_timetable(cfg: DictConfig, data: Data) -> Timetable:
    """Work out lengths and intervals in optimizer steps of this data set."""
    trainer, checkpoint = cfg.trainer, cfg.checkpoint
    table = Timetable(
        epoch_samples=data.train.epoch_samples,
        batch_size=data.train.batch_size,
        epochs=trainer.epochs,
        steps=trainer.steps,
        accumulate=trainer.accumulate,
        validate_every=trainer.validate_every,
        validate_unit=trainer.validate_unit,
        save_epochs=checkpoint.every_epochs,
        save_steps=checkpoint.every_steps,
        save_minutes=checkpoint.get("every_minutes"),
        stop_at=None if trainer.stop_at is None else read_length(trainer.stop_at),
    )
    return replace(table, log_steps=cfg.logger.every_steps or min(table.log_steps, table.steps_per_epoch))


TRAINED_LOSS = "trained_loss"
"""Where a model holds the loss, if that has parameters: they train, are saved and are averaged with its own."""


def build_loss(node: DictConfig, info: DataInfo, engine: Engine, model: nn.Module | None = None) -> Criterion:
    """Build the loss from its node, or take that of the model; one with tensors of its own goes to the device."""
    made: Any = getattr(model, TRAINED_LOSS, None)
    node = node if made else with_weights(node, info, engine)
    loss: Criterion = engine.place_loss(made or instantiate(node, key="loss", expected=Callable, **info.sizes()))
    return loss


def build_metrics(
    metrics: DictConfig, info: DataInfo, engine: Engine, *, alone: bool = False, more: Iterable[str] = ()
) -> dict[str, SplitMetrics | SharedMetrics]:
    """Build the metrics of every split; torchmetrics is imported when the first results come in.

    Args:
        metrics: The node of each split.
        info: Facts about the data.
        engine: Tells the device, and the processes that share the batches.
        alone: This process sees all results, and asks no other.
        more: Names of further sets, which are measured as the validation rows are.
    """

    def made(split: str) -> SplitMetrics | SharedMetrics:
        kind, sizes = "val" if split in more else split, info.sizes()

        def make() -> dict[str, Any]:
            named = ((str(name), node) for name, node in metrics[kind].items() if node is not None)
            return {name: build_metric(node, f"metrics.{kind}.{name}", sizes) for name, node in named}

        about: dict[str, Any] = {"class_names": info.class_names, "decode": info.decode, "undo": info.undo}
        part = SplitMetrics(split, make, device=engine.device, **about)
        return SharedMetrics(part, engine.ranks) if engine.ranks.size > 1 and not alone else part

    return {split: made(split) for split in ("train", "val", "test", *more)}


def check_metrics(metrics: DictConfig, tried: Mapping[str, Tried], *, fresh: bool) -> None:
    """Refuse a monitored value that the metrics do not give, or whose metric says the opposite of its mode.

    Args:
        metrics: The node of the metrics: what is monitored, and how.
        tried: What came of trying the metrics, by split.
        fresh: The run has not begun: one that has keeps the mode it was trained with.

    Raises:
        UserError: The value or its mode is wrong.
    """
    monitor, mode = metrics.monitor, metrics.mode
    found = tried.get(monitor.partition("/")[0])
    if found is None:
        return
    if monitor not in found.values:
        raise UserError("no such value", key="metrics.monitor", received=monitor, choices=found.values)
    higher = found.meter.higher_is_better(monitor)
    if fresh and higher is not None and MODES[higher] != mode:
        what = f"contradicts metrics.monitor: {'larger' if higher else 'smaller'} values of {monitor} are better"
        fix = f"metrics.mode={MODES[higher]}"
        raise UserError(what, key="metrics.mode", received=mode, fix=fix, family="missing-value")


def build_callbacks(cfg: DictConfig) -> dict[str, Callback]:
    """Build early stopping, histograms, a trace, the user's callbacks in order, and what keeps states."""
    trainer, stopping, callbacks = cfg.trainer, cfg.trainer.early_stopping, dict[str, Callback]()
    if stopping.patience is not None or stopping.get("target") is not None:
        callbacks["early_stopping"] = EarlyStopping(cfg.metrics.monitor, cfg.metrics.mode, **stopping)
    if histograms := cfg.logger.tensorboard.get("histograms"):
        callbacks[HISTOGRAMS] = Histograms(histograms)
    if trace := cfg.logger.get("trace"):
        callbacks["logger.trace"] = StepTrace(trace)
    for name, node in trainer.callbacks.items():
        callbacks[str(name)] = instantiate(node, key=f"trainer.callbacks.{name}", expected=Callback)
        check_hooks(callbacks[str(name)], key=f"trainer.callbacks.{name}")
    if trainer.overfit.samples is not None:
        callbacks[OVERFIT] = Overfit(trainer.overfit.loss)
    if trainer.nonfinite.action == "rollback":
        callbacks[KEPT] = Kept()
    return callbacks


def build_average(
    trainer: DictConfig, model: nn.Module, timetable: Timetable, optimizer: Optimizer, engine: Engine
) -> NoAverage:
    """Build the average of the weights that is asked for, or that of an optimizer which keeps one itself.

    Raises:
        UserError: There would be two averages.
    """
    if averages_itself(optimizer):
        asked = {"ema.decay": trainer.ema.decay, "swa.from_epoch": (trainer.get("swa") or {}).get("from_epoch")}
        for name, value in asked.items():
            if value is not None:
                what, key = f"{type(optimizer).__name__} averages the weights itself", f"trainer.{name}"
                raise UserError(what, key=key, received=value, fix=f"{key}=null", family="contradiction")
        return OwnAverage(model, optimizer)
    if trainer.ema.decay is not None:
        return Ema(model, trainer.ema.decay)
    swa = trainer.get("swa")
    if swa is None or swa.from_epoch is None:
        return NoAverage()
    epochs = timetable.total_steps // timetable.steps_per_epoch
    first = min(swa.from_epoch, max(1, epochs))  # members, and runs that are cut short, have fewer
    if first != swa.from_epoch:
        whole = counted(epochs, "whole epoch")
        engine.notes.add(
            f"trainer.swa.from_epoch={swa.from_epoch}: there are {whole}, and averaging begins in the last"
        )
    return Swa(model, first, update_bn=swa.update_bn)


def build_store(options: DictConfig, folder: Path, *, mode: str) -> CheckpointStore | None:
    """Build the store of checkpoints of a run's folder; None where they are off."""
    if not options.enabled:
        return None
    kind = BackgroundStore if options.asynchronous else CheckpointStore
    with keys_under("checkpoint"):
        kept = {name: options[name] for name in ("keep_last", "keep_best", "keep_every")}
        return kind(folder / run_files.CHECKPOINTS, mode=mode, **kept)


_shipped = cache(shipped)
_LOGGERS = {
    "log": ("LogLogger", run_files.LOG),
    "metrics": ("JsonlLogger", run_files.METRICS),
    "progress": ("ProgressFile", run_files.PROGRESS),
    "tensorboard": ("TensorBoardLogger", None),
}
"""The loggers of lightkit's own beside the console, with the file that each writes."""


def build_console(cfg: DictConfig) -> ConsoleLogger:
    """Build the logger of the console."""
    node, options = _shipped("lightkit.loggers", "ConsoleLogger"), to_plain(cfg.logger.console)
    made: ConsoleLogger = instantiate(node, key="logger.console", expected=ConsoleLogger, **options)
    return made


def build_logger(cfg: DictConfig, folder: Path, *, console: Logger | None = None, strict: bool = True) -> Loggers:
    """Build the loggers of a run: console, run.log, metrics.jsonl, progress, TensorBoard, and those of `logger.more`.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        console: Shows the run; None builds the console that the configuration asks for.
        strict: Whether a logger of the user's that fails before the first step ends the run; see `OwnLogger`.

    Raises:
        UserError: A logger of the user's cannot be built.
    """
    given: dict[str, Any] = {"folder": folder, "monitor": cfg.metrics.monitor, "mode": cfg.metrics.mode}
    given["splits"] = (*SPLIT_NAMES, *(cfg.data.get("more") or ()))
    loggers: list[Logger] = [console or build_console(cfg)]
    for name, (kind, file) in _LOGGERS.items():
        if cfg.logger.get(name, {}).get("enabled", True):
            node, own = _shipped("lightkit.loggers", kind), {"path": folder / file} if file else {}
            loggers.append(instantiate(node, key=f"logger.{name}", expected=Logger, **given, **own))
    for name, node in (cfg.logger.get("more") or {}).items():
        key = f"logger.more.{name}"
        loggers.append(OwnLogger(key, partial(instantiate, node, key=key, expected=Logger, **given), strict))
    return Loggers(loggers)


def check_fit(cfg: DictConfig, data: Data) -> None:
    """Refuse a loss, metrics or a monitored value that do not suit the data.

    A task class of one's own may make any targets, so nothing is said of its loss and metrics.

    Raises:
        UserError: They do not; one report about loss and metrics.
    """
    metrics = {
        split: {str(name): node["_target_"] for name, node in to_plain(cfg.metrics[split]).items() if node is not None}
        for split in ("train", "val", "test")
    }
    if cfg.trainer.task["_target_"] == f"{Supervised.__module__}.{Supervised.__qualname__}":
        two_classes = cfg.data.dataset.get("binary") is False and data.info.num_classes == 2
        check_targets(data.info.task, loss=cfg.loss["_target_"], metrics=metrics, two_classes=two_classes)
    check_monitor(cfg.metrics.monitor, splits=data.loaders())
