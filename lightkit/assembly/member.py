"""What a run does otherwise as the member of an ensemble: its rows, its first weights, what it learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from lightkit.assembly.network import trained_network
from lightkit.assembly.parts import role_of
from lightkit.assembly.run_rows import check_all_there
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.argument_checks import IN_ORDER
from lightkit.common.errors import UserError, keys_under
from lightkit.config import instantiate
from lightkit.config.saved import saved_group
from lightkit.config.schema.learning import MemberConfig
from lightkit.data import Data, DataInfo
from lightkit.data.loaders import Loader
from lightkit.data.prepare import Prepare
from lightkit.data.tensors import TensorData
from lightkit.device import Engine
from lightkit.ensemble.oof import SPLITS, MemberPredictions, aligned
from lightkit.ensemble.rows import cut_holdout, member_rows
from lightkit.ensemble.stacking import base_predictions, feature_scaling, stack_features
from lightkit.ensemble.tasks import FastGradientSign, JointResiduals, Residual, row_weights, solve
from lightkit.trainer.tasks import Supervised, Task


class Features(TensorData):
    """Predictions of other members as inputs, in the rows of the data set.

    Args:
        x: `(N, F)`, scaled; 0 in rows of which there is none.
        y: Targets.
        info: What the data is.
        shift: `(F,)`: what was subtracted.
        scale: `(F,)`: what the rest was divided by.
        strata: Groups whose shares a stratified split keeps.
        groups: Groups that must stay together.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        info: DataInfo,
        *,
        shift: Tensor,
        scale: Tensor,
        strata: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> None:
        super().__init__(x, y, info, strata=strata, groups=groups, name="predictions of the members")
        self.shift, self.scale = shift, scale


def own_rows(cfg: DictConfig, data: Data, folder: Path) -> Data:
    """Draw the training rows of a member, keep those apart that it is to predict, and make its inputs.

    Args:
        cfg: Its configuration.
        data: That of the whole ensemble.
        folder: Its folder, beside those of the others.

    Raises:
        UserError: There are too few rows, or predictions that are its inputs are missing.
    """
    role = role_of(cfg)
    if role.rows == "all" and not role.holdout and not role.features:
        return data
    check_all_there(data)
    rows, source = data.rows["train"], data.source
    if data.times is not None and bool((data.times[rows].diff() < 0).any()):
        what, fix = "members learn from parts of the rows in their order, which is not that of time", "sort the data"
        raise UserError(what, key="data.split.by", received="time", fix=fix, family="ensemble")
    if role.rows == "predicted":
        return _with_features(role, data, rows, rows[:0], folder)
    dealt: dict[str, Any] = {"strata": getattr(source, "strata", None), "groups": data.together()}
    dealt["ordered"] = cfg.data.split.by in IN_ORDER
    with keys_under("ensemble.member"):
        drawn, apart = cut_holdout(rows, role.holdout, role.draw, **dealt)
        which: dict[str, Any] = {"folds": role.folds, "fold": role.fold, "repeat": role.repeat, **dealt}
        drawn, left = member_rows(drawn, role.rows, role.draw, role.index, **which)
    left = torch.cat([left, apart]).sort().values
    if role.features:
        return _with_features(role, data, drawn, left, folder)
    train = data.train.with_rows(drawn)
    return replace(data, train=train, rows={**data.rows, "train": drawn}, left_out=left)


def _with_features(role: MemberConfig, data: Data, drawn: Tensor, left: Tensor, folder: Path) -> Data:
    """Put the predictions of other members in the place of the inputs.

    Args:
        role: What the member is.
        data: That of the whole ensemble.
        drawn: Training rows.
        left: Rows that the member does not learn from and is to predict.
        folder: Its folder, beside those of the others.

    Raises:
        UserError: A file of predictions is missing or damaged, or no row was predicted by all members.
    """

    def read(name: str) -> MemberPredictions:
        return MemberPredictions.read(folder.parent / name / run_files.PREDICTIONS_HELD_OUT)

    refits: list[str] = role.refits or [""] * len(role.features)
    bases = aligned(
        [
            base_predictions([*map(read, names)], read(last) if last else None)
            for names, last in zip(role.features, refits)
        ]
    )
    known = torch.stack([base.predicted for base in bases]).all(0)
    rows, task, info = bases[0].rows[known], data.info.task, data.info
    inputs = _inputs(data, rows) if role.passthrough else None
    found = stack_features([base.predictions[known] for base in bases], task, inputs)
    parts = data.rows | {"train": drawn}
    if role.rows == "predicted":
        parts = {name: rows[bases[0].split[known] == number] for number, name in enumerate(SPLITS)}
    learnt = torch.isin(rows, parts["train"])
    if not learnt.any():
        raise UserError("there is no training row that all members predicted", key="ensemble.member.features")
    predicted = found.shape[1] - (0 if inputs is None else inputs[0].numel())
    shift, scale = feature_scaling(found[learnt], task, predicted)
    x, targets = found.new_zeros(len(data.source), found.shape[1]), bases[0].targets[known]
    y = targets.new_zeros(len(data.source), *targets.shape[1:])
    x[rows], y[rows] = (found - shift) / scale, targets
    kept = {"strata": getattr(data.source, "strata", None), "groups": data.groups}
    size = {"input_shape": (found.shape[1],), "vocab_size": None, "context_length": None}
    source = Features(x, y, replace(info, **size), shift=shift, scale=scale, **kept)  # type: ignore[arg-type]
    parts = {name: part[torch.isin(part, rows)] for name, part in parts.items()}
    loaders = dict[str, Any]()
    for name, loader in data.loaders().items():
        if len(parts.get(name, ())):
            loaders[name] = Loader(source, parts[name], loader.options, prepare=Prepare(loader.options.seed))
    parts = {name: part for name, part in parts.items() if len(part)}
    left = left[torch.isin(left, rows)]
    return data.with_loaders(loaders, info=source.info, source=source, rows=parts, left_out=left)


def _inputs(data: Data, rows: Tensor) -> Tensor:
    """Return the inputs of rows as a model gets them, `(N, ...)`."""
    options = replace(
        data.train.options,
        shuffle=False,
        drop_last=False,
        epoch_batches=None,
        persistent_workers=False,
        replicas=1,
        replica=0,
    )
    prepare = replace(data.train.prepare, augment=())
    with closing(Loader(data.source, rows, options, prepare=prepare)) as loader:
        return torch.cat([batch[0] for batch in loader.epoch(0)]).flatten(1)


def own_task(
    role: MemberConfig,
    task: Task,
    info: DataInfo,
    engine: Engine,
    folder: Path,
    *,
    last: bool,
    mode: str,
    trust: Sequence[str] = (),
) -> Task:
    """Return the task that a member learns, made of that of the run.

    Args:
        role: What it is among the members.
        task: That of the run.
        info: Facts about the data.
        engine: Places the networks that it learns from.
        folder: Its folder, beside those of the others.
        last: Whether the last weights of the others count, not their best ones.
        mode: Whether a smaller or a larger value is better, for their checkpoints.
        trust: What may be built for the others beside the usual.

    Raises:
        UserError: The run has a task of its own, or a member that it needs is not there.
    """
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
        return FastGradientSign(task, epsilon=role.epsilon)
    if role.joint == "soft_gradient_boosting":
        return JointResiduals(shrinkage=role.shrinkage, kind=info.task)
    networks = []
    for earlier in (folder.parent / name for name in role.adds_to or []):
        store = CheckpointStore(earlier / run_files.CHECKPOINTS, mode=mode)
        where: dict[str, Any] = {"trust": trust, "key": "ensemble.member.adds_to"}
        where["checkpoint"] = store.newest() if last else None  # the weights that count in the sum
        networks.append(trained_network(earlier, info, engine, **where))
    return Residual([engine.precision.place(network) for network in networks], shrinkage=role.shrinkage, kind=info.task)


def solve_for(penalty: float, model: nn.Module, data: Data, criterion: object) -> None:
    """Put the best weights into the linear network of a member whose weights are solved for.

    Args:
        penalty: Strength of the penalty on them.
        model: Its network.
        data: Its data, in memory.
        criterion: The loss.
    """
    task = data.info.task
    (layer,) = (module for module in model.modules() if isinstance(module, nn.Linear))
    x, y = data.source.take(data.rows["train"])
    weights = row_weights(criterion, y, task) if isinstance(criterion, nn.Module) else None
    found = solve(x, y, task, penalty=penalty, weights=weights, outputs=data.info.num_classes)
    with torch.no_grad():
        layer.weight.copy_(found.weight)
        layer.bias.copy_(found.bias)


def start_from(node: DictConfig, model: nn.Module, engine: Engine, folder: Path, *, mode: str) -> None:
    """Load the weights that a member starts with: the last ones of the member before it, or what others come to.

    Args:
        node: What it is among the members.
        model: Its network, before it is placed; nothing happens where it starts with its own weights.
        engine: Gives the computation random numbers of its own.
        folder: Its folder, beside those of the others.
        mode: Whether a smaller or a larger value is better, for their checkpoints.

    Raises:
        UserError: One of these members has no checkpoint, or the weights are for another network.
    """
    if node.get("computed_from"):  # a node that a method gives has no more than it names
        states = [_weights(folder.parent / name, mode, key="computed_from") for name in node.computed_from]
        key = "ensemble.member.computed_by"
        compute = instantiate(node.computed_by, key=key, expected=Callable)
        engine.seed_init()
        weights = compute(states)
        if not isinstance(weights, Mapping):
            expected = "a dict of tensors by the names of the model"
            raise UserError("these are no weights", key=key, expected=expected, received=type(weights).__name__)
    elif node.get("weights_of"):
        weights = _weights(folder.parent / node.weights_of, mode, key="weights_of", goes_on=True)
    else:
        return
    problems = content.model_problems(dict(weights), model)
    if problems:
        raise problems[0]
    content.load_model(model, dict(weights))


def _weights(member: Path, mode: str, *, key: str, goes_on: bool = False) -> dict[str, Tensor]:
    """Read the weights of another member, by the model's names, on the CPU.

    Args:
        member: Its folder.
        mode: Whether a smaller or a larger value is better.
        key: Which key of its role names it.
        goes_on: Take the last weights as training left them, and not those that count.

    Raises:
        UserError: It has no checkpoint.
    """
    store = CheckpointStore(member / run_files.CHECKPOINTS, mode=mode)
    last = goes_on or ((member / run_files.CONFIG).is_file() and saved_group(member, "trainer").get("test") == "last")
    path = (None if last else store.best()) or store.newest()
    if path is None:
        what = "the member that this one goes on from has no checkpoint"
        raise UserError(what, key=f"ensemble.member.{key}", received=str(member), family="no-checkpoint")
    return content.load_model_state(path, averaged=not goes_on)
