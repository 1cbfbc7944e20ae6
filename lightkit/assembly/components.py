"""All parts of a run, built in the order of their needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from torch import nn
from torch.optim import Optimizer

from lightkit.assembly.dry_run import rehearse
from lightkit.assembly.learning import build_optimizer, build_scheduler, build_task
from lightkit.assembly.metrics_trial import try_metrics
from lightkit.assembly.network import Network, build_network, check_base
from lightkit.assembly.parts import (
    build_callbacks,
    build_engine,
    build_loss,
    build_metrics,
    build_splits,
    build_store,
    build_timetable,
    check_fit,
    check_metrics,
)
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import keys_under
from lightkit.data import Data
from lightkit.device import Engine
from lightkit.device.ranks import Ranks
from lightkit.metrics import SharedMetrics, SplitMetrics
from lightkit.optim.schedulers import Schedule
from lightkit.trainer.average import Ema, NoAverage
from lightkit.trainer.callbacks import Callback
from lightkit.trainer.tasks import Criterion, Task
from lightkit.trainer.timetable import Timetable


@dataclass(frozen=True)
class Components:
    """Everything a run is made of."""

    data: Data
    """Splits and facts about them."""
    model: nn.Module
    """The network without any wrapper: its parameter names are the saved ones."""
    network: nn.Module
    """What is called in training: the model, wrapped for several GPUs where asked for."""
    task: Task
    """How a batch becomes a loss."""
    criterion: Criterion
    """The loss."""
    optimizer: Optimizer
    """Steps over named parameter groups."""
    scheduler: Schedule
    """Learning rates over time."""
    timetable: Timetable
    """Lengths and intervals."""
    engine: Engine
    """Device, precision and seeds."""
    metrics: dict[str, SplitMetrics | SharedMetrics]
    """Metrics of each split."""
    average: NoAverage
    """Average of the weights to evaluate with."""
    callbacks: dict[str, Callback]
    """Hooks by name."""
    store: CheckpointStore | None
    """The checkpoints; None when none are written."""
    made: Network
    """How the model came to be: pretrained weights, head, what was injected."""


def build(
    cfg: DictConfig,
    folder: Path,
    *,
    pretrained: bool = True,
    trains: bool = True,
    ranks: Ranks | None = None,
    report: Callable[[str], None] = lambda line: None,
    rows: Mapping[str, int] | None = None,
) -> Components:
    """Build the parts of a run; nothing is written and nothing trains yet.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder, for the parts that will write to it.
        pretrained: Load the pretrained weights of a fine-tuning; False where a checkpoint will be loaded anyway.
        trains: Whether the parts will train; otherwise a teacher is not needed.
        ranks: The processes that train together; None where this one is alone.
        report: Called with a line now and then where the data take long.
        rows: Rows to keep of each split, for a run that only proves something; None keeps all.

    Raises:
        UserError: A part cannot be built, or two of them do not fit together.
    """
    if trains and not pretrained:
        check_base(cfg)
    engine = build_engine(cfg, ranks)
    data = build_splits(cfg, engine, None if pretrained else folder, report=report)
    with keys_under("data"):
        data = data.shortened(rows, seed=cfg.seed) if rows else data
    check_fit(cfg, data)
    timetable = build_timetable(cfg, data)
    run = None if pretrained else folder
    made = build_network(cfg, data.info, engine, timetable, pretrained=pretrained, run=run, data=data)
    model, task = engine.place_model(made.model), build_task(cfg, data.info, engine, trains=trains)
    criterion = build_loss(cfg, data.info, engine)
    network = engine.wrap(model)  # before the optimizer, which has to know the parameters that it will step
    optimizer = build_optimizer(cfg, made, timetable, engine)
    scheduler = build_scheduler(cfg, optimizer, timetable)
    rehearse(data, model, task, criterion, engine)  # a model of which this process holds a part only is let pass
    metrics = build_metrics(cfg, data.info, engine)
    if trains:
        measured = {split: part for split, part in metrics.items() if cfg.metrics[split]}
        for part in measured.values():
            part.check()  # also those of which nothing is tried: a function may have given anything
        tried = try_metrics(data, model, task, criterion, engine, measured, monitor=cfg.metrics.monitor)
        check_metrics(cfg, tried, fresh=pretrained)
    return Components(
        data=data,
        model=model,
        network=network,
        task=task,
        criterion=criterion,
        optimizer=optimizer,
        scheduler=scheduler,
        timetable=timetable,
        engine=engine,
        metrics=metrics,
        average=NoAverage() if cfg.trainer.ema.decay is None else Ema(model, cfg.trainer.ema.decay),
        callbacks=build_callbacks(cfg),
        store=build_store(cfg, folder),
        made=made,
    )
