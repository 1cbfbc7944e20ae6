"""All parts of a run, built in the order of their needs: what its models share, then each model with what trains it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import nn
from torch.optim import Optimizer

from lightkit.assembly.dry_run import rehearse, try_metrics
from lightkit.assembly.ensemble import is_ensemble, trained_ensemble
from lightkit.assembly.few_rows import few_rows
from lightkit.assembly.member import own_rows, own_task, solve_for, start_from
from lightkit.assembly.network import Make, Network, build_model, build_network, check_base, trained_network
from lightkit.assembly.parts import (
    build_average,
    build_callbacks,
    build_engine,
    build_loss,
    build_metrics,
    build_splits,
    build_store,
    build_timetable,
    check_fit,
    check_metrics,
    role_of,
)
from lightkit.assembly.run_rows import ensemble_of
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.config import instantiate, to_plain
from lightkit.config.project import located
from lightkit.data import DataInfo
from lightkit.device import Engine
from lightkit.device.ranks import Ranks
from lightkit.device.stepping import FLAGS, ClipNorm
from lightkit.ensemble.methods.base import NO_ENSEMBLE
from lightkit.optim.groups import parameter_groups
from lightkit.optim.schedulers import Schedule
from lightkit.optim.several import Part, Several
from lightkit.runs.catalog import is_fold
from lightkit.trainer.learner import Learner, Shared
from lightkit.trainer.state import State, Timetable
from lightkit.trainer.step import check_closure, check_parts
from lightkit.trainer.tasks import Distillation, Supervised, Task, Weighted
from lightkit.trainer.timed import time_limit


def build_shared(
    cfg: DictConfig,
    folder: Path,
    *,
    pretrained: bool = True,
    trains: bool = True,
    ranks: Ranks | None = None,
    report: Callable[[str], None] = lambda line: None,
    rows: Mapping[str, int] | None = None,
) -> Shared:
    """Build what all models of a process share: the device with its seeds, and the data.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder, which knows what it fitted to its data where it has begun.
        pretrained: Whether the run begins; False where a checkpoint will be loaded.
        trains: Whether something will train; a base that a checkpoint depends on has to be there then.
        ranks: The processes that train together; None where this one is alone.
        report: Called with a line now and then where the data take long.
        rows: Rows to keep of each split, for a run that only proves something; None keeps all.

    Raises:
        UserError: The data cannot be loaded, or do not go with the loss and the metrics.
    """
    if trains and not pretrained and cfg.checkpoint.export == "adapter":
        check_base(cfg.finetune.get("weights", {}).get("path"))
    engine = build_engine(cfg, ranks)
    data = build_splits(cfg, engine, None if pretrained else folder, within=ensemble_of(folder), report=report)
    single = cfg.ensemble["_target_"] == NO_ENSEMBLE
    with keys_under("data"):
        data = data.shortened(rows, seed=cfg.seed) if rows else few_rows(cfg.trainer, data, cfg.seed, single=single)
    check_fit(cfg, data)
    return Shared(engine, own_rows(cfg, data, folder))


def build_own(cfg: DictConfig, shared: Shared, folder: Path) -> Shared:
    """Give one of several models seeds, rows and an engine of its own, over the data they share.

    Args:
        cfg: The configuration of the model.
        shared: What is built for all of them.
        folder: Its folder, beside those of the others.

    Raises:
        UserError: The data do not go with its loss and metrics.
    """
    if is_fold(folder):
        begun = shared.engine.ranks.shared((folder / run_files.ROWS).is_file)
        return build_shared(cfg, folder, pretrained=not begun, ranks=shared.engine.ranks)
    check_fit(cfg, shared.data)
    if role_of(cfg).features:
        shared.engine.ranks.shared(lambda: None)  # by then the first process has written what members predicted
    data = own_rows(cfg, shared.data.reseeded(cfg.seed), folder)
    return Shared(build_engine(cfg, shared.engine.ranks), data)


def build_learner(
    cfg: DictConfig, shared: Shared, folder: Path, *, pretrained: bool = True, trains: bool = True, tried: bool = False
) -> Learner:
    """Build a model and what trains it; nothing is written and nothing trains yet.

    Args:
        cfg: A composed and checked configuration.
        shared: What it shares with other models.
        folder: The run's folder, for the parts that will write to it.
        pretrained: Load the pretrained weights of a fine-tuning; False where a checkpoint will be loaded anyway.
        trains: Whether the parts will train; otherwise a teacher is not needed.
        tried: Whether parts like these have been tried on the data, so that these need not be.

    Raises:
        UserError: A part cannot be built, or two of them do not fit together.
    """
    engine, data, role, mode = shared.engine, shared.data, role_of(cfg), cfg.metrics.mode
    timetable, trust = build_timetable(cfg, data), to_plain(cfg.trust)
    run = None if pretrained else folder
    made = build_network(cfg, data.info, engine, timetable, pretrained=pretrained, run=run, data=data)
    if pretrained and (role.computed_from or role.weights_of):
        start_from(cfg.ensemble.member, made.model, engine, folder, mode=mode)
    model = engine.place_model(made.model)
    task = build_task(cfg.trainer.task, made.tuning if trains else None, data.info, engine, trust=trust)
    task = own_task(role, task, data.info, engine, folder, last=cfg.trainer.test == "last", mode=mode, trust=trust)
    criterion = build_loss(cfg.loss, data.info, engine, model)
    if pretrained and role.solved is not None:
        solve_for(role.solved, model, data, criterion)
    with keys_under("device"):
        network = engine.wrap(model)  # before the optimizer, which has to know the parameters that it will step
    optimizer = build_optimizer(cfg.optim, made, timetable, engine)
    check_closure(optimizer, engine)
    check_parts(task, optimizer, engine)
    scheduler = build_schedules(cfg, optimizer, timetable)
    if not tried:  # a model of which this process holds a part only is let pass
        rehearse(data, model, task, criterion, engine, to_plain(cfg.model))
    metrics = build_metrics(cfg.metrics, data.info, engine, more=data.more)
    if trains and not tried:
        measured = {split: part for split, part in metrics.items() if cfg.metrics.get(split, cfg.metrics.val)}
        found = try_metrics(data, model, task, criterion, engine, measured, monitor=cfg.metrics.monitor)
        for split in measured.keys() - found.keys():
            measured[split].check()  # a function may have given anything
        check_metrics(cfg.metrics, found, fresh=pretrained)
    return Learner(
        engine=engine,
        data=data,
        model=model,
        network=network,
        task=task,
        criterion=criterion,
        optimizer=optimizer,
        scheduler=scheduler,
        timetable=timetable,
        metrics=metrics,
        made=made,
        average=build_average(cfg.trainer, model, timetable, optimizer, engine),
        callbacks=build_callbacks(cfg) | time_limit(cfg.trainer.get("max_time"), engine.ranks, timetable.log_steps),
        store=build_store(cfg.checkpoint, folder, mode=mode) if engine.ranks.main else None,
    )


def build_twin(
    cfg: DictConfig, shared: Shared, twin: Learner, folder: Path, *, steps: bool = False, make: Make | None = None
) -> Learner:
    """Build a model that differs from another one in seeds and rows alone; what both have alike is not built again.

    It has no checkpoints of its own: it is for training together with its twin.

    Args:
        cfg: Its configuration.
        shared: What all models share.
        twin: The other model, as it was built.
        folder: Its folder, beside those of the others.
        steps: It has an optimizer of its own, with settings of its own.
        make: Builds its model, where that takes the same arguments; None reads them from the configuration.
    """
    engine, fold = twin.engine.reseeded(cfg.seed), is_fold(folder)
    own = build_own(cfg, shared, folder).data if fold else shared.data.reseeded(cfg.seed)
    data = own if fold else own_rows(cfg, own, folder)
    engine.seed_init()
    again = make if data.info is twin.data.info else None  # folds have facts of their own
    model = engine.place_model(again() if again else build_model(cfg, data.info, engine, data))
    alike = data.info.class_shares == twin.data.info.class_shares  # which loss.weight=balanced goes by
    return replace(
        twin,
        engine=engine,
        data=data,
        model=model,
        network=engine.wrap(model),
        criterion=twin.criterion if alike else build_loss(cfg.loss, data.info, engine, model),
        timetable=replace(twin.timetable, epoch_samples=data.train.epoch_samples),
        optimizer=build_optimizer(cfg.optim, Network(model), twin.timetable, engine) if steps else twin.optimizer,
        made=Network(model),
        callbacks=copy.deepcopy(dict(twin.callbacks)),
        store=None,
        state=State(),
    )


def build(
    cfg: DictConfig,
    folder: Path,
    *,
    pretrained: bool = True,
    trains: bool = True,
    report: Callable[[str], None] = lambda line: None,
) -> Learner:
    """Build one model with all that it needs, for whoever wants nothing else.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder.
        pretrained: See `build_learner`.
        trains: See `build_learner`.
        report: See `build_shared`.

    Raises:
        UserError: A part cannot be built, or two of them do not fit together.
    """
    shared = build_shared(cfg, folder, pretrained=pretrained, trains=trains, report=report)
    return build_learner(cfg, shared, folder, pretrained=pretrained, trains=trains)


def build_optimizer(node: DictConfig, made: Network, timetable: Timetable, engine: Engine) -> Optimizer:
    """Build the optimizer from its node, over named groups in which every parameter that ever trains stands once."""
    given = to_plain(node)
    settings: dict[str, Any] = {
        **{name: given.get(name) for name in ("lr", "weight_decay", "layer_decay")},
        "rules": given.get("rules") or [],
        "no_decay": given.get("no_decay", False),
        "depths": made.depths,
        "parts": given.get("parts"),
    }
    options, prepared = made.tuning, made.prepared
    if options is not None and prepared is not None:
        settings |= {
            "rules": prepared.rules,
            "names": prepared.trained,
            "labels": prepared.group_labels(),
            "slices": options["slices"],
            "aliases": prepared.original_names,
            "first_steps": prepared.first_steps(timetable.steps_per_epoch),
        }
    with keys_under("optim"):
        groups = parameter_groups(made.model, **settings)
    parts = {}
    for name, part in node.get("parts", {}).items():
        own = [group for group in groups if group["part"] == name]
        clip = part.clip_norm and ClipNorm(part.clip_norm)
        parts[name] = Part(_optimizer(part, made, engine, key=f"optim.parts.{name}", params=own), part.every, clip)
    optimizer = _optimizer(node, made, engine, params=groups, parts=parts)
    if parts and not isinstance(optimizer, Several):
        raise UserError("there are several", key="optim.parts", received=given["_target_"], fix="optim=several")
    return optimizer


def _optimizer(node: DictConfig, made: Network, engine: Engine, *, key: str = "optim", **given: Any) -> Optimizer:
    """Build one optimizer, which steps as the device does it best unless its node says so itself."""
    own = any(node.get(flag) is not None for flag in FLAGS)
    with keys_under("device"):
        steps = {} if own else engine.implementation(made.model, node["_target_"].rpartition(".")[2])
    return instantiate(node, key=key, expected=Optimizer, model=made.model, **given, **steps)


def build_scheduler(
    node: DictConfig, optimizer: Optimizer, timetable: Timetable, *, mode: str, key: str = "scheduler"
) -> Schedule:
    """Build a schedule of the learning rates from its node."""
    lengths = {"total_steps": timetable.total_steps, "steps_per_epoch": timetable.steps_per_epoch}
    return instantiate(node, key=key, expected=Schedule, optimizer=optimizer, mode=mode, **lengths)


def build_schedules(cfg: DictConfig, optimizer: Any, timetable: Timetable) -> Schedule:
    """Build the schedule of the learning rates, and those of single ones of several optimizers."""
    schedule = build_scheduler(cfg.scheduler, optimizer, timetable, mode=cfg.metrics.mode)
    for name, part in cfg.optim.get("parts", {}).items():
        own = {"timetable": timetable, "mode": cfg.metrics.mode, "key": f"optim.parts.{name}.schedule"}
        if part.schedule is not None:
            schedule.leave(partial(build_scheduler, part.schedule, **own), name)
    return schedule


def build_task(
    node: DictConfig, tuning: Mapping[str, object] | None, info: DataInfo, engine: Engine, *, trust: Sequence[str] = ()
) -> Task:
    """Build the task from its node, which turns a batch into a loss; with the teacher where fine-tuning has one."""
    task: Task = instantiate(node, key="trainer.task", expected=Task)
    if type(task) is Supervised and info.learnt_by:
        task = instantiate({"_target_": info.learnt_by}, key="trainer.task", expected=Task)
    elif type(task) is Supervised and info.weighted:
        task = Weighted(scaled=True)
    distill: Any = tuning["distill"] if tuning else {}
    if not distill.get("teacher"):
        return task
    run, key = located(distill["teacher"]), "finetune.distill.teacher"
    trained = trained_ensemble if is_ensemble(run) else trained_network
    teacher: nn.Module = trained(run, info, engine, trust=trust, key=key)
    chosen = {"temperature": distill["temperature"], "weight": distill["weight"], "kind": info.task}
    return Distillation(task, engine.precision.place(teacher), **chosen)
