"""What trains a network: parameter groups, optimizer, schedule, task, and the phases of a fine-tuning."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from torch.optim import Optimizer

from lightkit.assembly.network import Network, finetune_options, trained_network
from lightkit.common.errors import keys_under
from lightkit.config import instantiate, to_plain
from lightkit.config.project import located
from lightkit.data import DataInfo
from lightkit.device import Engine
from lightkit.device.implementation import FLAGS
from lightkit.optim.groups import parameter_groups
from lightkit.optim.schedulers import Schedule
from lightkit.trainer.distill import Distillation
from lightkit.trainer.tasks import Task
from lightkit.trainer.timetable import Timetable


def build_optimizer(cfg: DictConfig, made: Network, timetable: Timetable, engine: Engine) -> Optimizer:
    """The optimizer over named groups that hold every parameter that ever trains once.

    How it steps goes by the device, unless the configuration of the optimizer says so itself.
    """
    settings: dict[str, Any] = {
        "lr": cfg.optim.get("lr"),
        "weight_decay": cfg.optim.get("weight_decay"),
        "rules": to_plain(cfg.optim.get("rules") or []),
        "no_decay": cfg.optim.get("no_decay", False),
        "layer_decay": cfg.optim.get("layer_decay"),
    }
    with keys_under("optim"):
        groups = parameter_groups(made.model, **settings | _of_finetuning(cfg, made, timetable))
    own = any(cfg.optim.get(flag) is not None for flag in FLAGS)
    with keys_under("device"):
        steps = {} if own else engine.implementation(made.model, cfg.optim["_target_"].rpartition(".")[2])
    return instantiate(cfg.optim, key="optim", expected=Optimizer, params=groups, **steps)


def _of_finetuning(cfg: DictConfig, made: Network, timetable: Timetable) -> dict[str, Any]:
    """What fine-tuning adds to the making of the groups; it replaces settings of the same name."""
    options, prepared = finetune_options(cfg), made.prepared
    if options is None or prepared is None:
        return {}
    found: dict[str, Any] = {
        "rules": [*to_plain(cfg.optim.get("rules") or []), *prepared.rules],
        "names": prepared.trained,
        "labels": prepared.group_labels(),
        "depths": prepared.depths,
        "slices": options["slices"],
        "aliases": prepared.original_names,
        "first_steps": prepared.first_steps(timetable.steps_per_epoch),
    }
    if options["layer_decay"] is not None:
        found |= {"layer_decay": options["layer_decay"], "layer_key": "finetune.layer_decay"}
    return found


def build_scheduler(cfg: DictConfig, optimizer: Optimizer, timetable: Timetable) -> Schedule:
    """The learning rates over time."""
    return instantiate(
        cfg.scheduler,
        key="scheduler",
        optimizer=optimizer,
        total_steps=timetable.total_steps,
        steps_per_epoch=timetable.steps_per_epoch,
        mode=cfg.metrics.mode,
        expected=Schedule,
    )


def build_task(cfg: DictConfig, info: DataInfo, engine: Engine, *, trains: bool = True) -> Task:
    """How a batch becomes a loss, in training with a teacher where there is one."""
    task: Task = instantiate(cfg.trainer.task, key="trainer.task", expected=Task)
    options = finetune_options(cfg)
    if options is None or not options["distill"]["teacher"] or not trains:
        return task
    distill = options["distill"]
    where = {"trust": to_plain(cfg.trust), "key": "finetune.distill.teacher"}
    teacher = trained_network(located(distill["teacher"]), info, engine, **where)
    chosen = {"temperature": distill["temperature"], "weight": distill["weight"], "kind": info.task}
    return Distillation(task, engine.precision.place(teacher), **chosen)
