"""What a run does otherwise as the member of an ensemble: its rows, its first weights, what it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import nn

from lightkit.assembly.network import trained_network
from lightkit.assembly.parts import role_of
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.config import to_plain
from lightkit.data import Data, DataInfo
from lightkit.device import Engine
from lightkit.ensemble.rows import held_out_rows, training_rows
from lightkit.ensemble.tasks import Adversarial, JointResiduals, Residual
from lightkit.trainer.tasks import Supervised, Task


def own_rows(cfg: DictConfig, data: Data) -> Data:
    """Draw the training rows of a member, and keep those apart that it is to predict.

    Args:
        cfg: Its configuration.
        data: That of the whole ensemble.

    Raises:
        UserError: There are too few rows.
    """
    role = role_of(cfg)
    if role.rows == "all":
        return data
    rows, source = data.rows["train"], data.source
    dealt: dict[str, Any] = {
        "strata": getattr(source, "strata", None),
        "groups": getattr(source, "groups", None),
        "ordered": cfg.data.split.by == "ordered",
    }
    which: dict[str, Any] = {"folds": role.folds, "fold": role.fold, "repeat": role.repeat, **dealt}
    with keys_under("ensemble.member"):
        drawn = training_rows(rows, role.rows, role.draw, role.index, **which)
        left = held_out_rows(rows, role.rows, role.draw, role.index, **which)
    train = data.train.with_rows(drawn)
    return replace(data, train=train, rows={**data.rows, "train": drawn}, left_out=left)


def own_task(cfg: DictConfig, task: Task, info: DataInfo, engine: Engine, folder: Path) -> Task:
    """Return the task that a member learns, made of that of the run.

    Args:
        cfg: Its configuration.
        task: That of the run.
        info: Facts about the data.
        engine: Places the networks that it learns from.
        folder: Its folder, beside those of the others.

    Raises:
        UserError: The run has a task of its own, or a member that it needs is not there.
    """
    role = role_of(cfg)
    if not (role.adds_to is not None or role.epsilon or role.joint == "soft_gradient_boosting"):
        return task
    if type(task) is not Supervised:
        raise UserError(
            "the members of this ensemble take inputs and targets apart themselves",
            key="trainer.task",
            expected=f"{Supervised.__module__}.{Supervised.__qualname__}",
            received=type(task).__name__,
            family="ensemble",
        )
    if role.epsilon:
        return Adversarial(task, epsilon=role.epsilon)
    if role.joint:
        return JointResiduals(shrinkage=role.shrinkage, kind=info.task)
    where = {"trust": to_plain(cfg.trust), "key": "ensemble.member.adds_to"}
    networks = [trained_network(folder.parent / name, info, engine, **where) for name in role.adds_to or []]
    return Residual([engine.precision.place(network) for network in networks], shrinkage=role.shrinkage, kind=info.task)


def start_from(cfg: DictConfig, model: nn.Module, folder: Path) -> None:
    """Load the weights that a member starts with: the last ones of the member before it.

    Args:
        cfg: Its configuration.
        model: Its network, before it is placed; nothing happens where it starts with its own weights.
        folder: Its folder, beside those of the others.

    Raises:
        UserError: That member has no checkpoint, or another network.
    """
    name = role_of(cfg).weights_of
    if name is None:
        return
    before = folder.parent / name
    newest = CheckpointStore(before / run_files.CHECKPOINTS, mode=cfg.metrics.mode).newest()
    if newest is None:
        raise UserError(
            "the member that this one goes on from has no checkpoint",
            key="ensemble.member.weights_of",
            received=str(before),
            family="no-checkpoint",
        )
    weights = content.load_model_state(newest, averaged=False)
    problems = content.model_problems(weights, model)
    if problems:
        raise problems[0]
    content.load_model(model, weights)
