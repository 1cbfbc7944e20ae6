"""Going on with what another program has begun: weights, optimizer and epoch of its checkpoint in a new run."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Learner
from lightkit.checkpoint import content
from lightkit.checkpoint.training_file import TrainingFile, fit_optimizer, fit_weights, read_training_file
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.modules import whole
from lightkit.common.text import counted
from lightkit.config import to_plain
from lightkit.config.origins import shown
from lightkit.config.project import located
from lightkit.optim.wrapped import Torch as TorchSchedule
from lightkit.runner.restore import stateful
from lightkit.trainer import Ema

_SHOWN = 3
"""Tensors that an error names from either end of a model."""


def take_over(cfg: DictConfig, learner: Learner) -> tuple[Learner, list[str]]:
    """Put the checkpoint of another program into a freshly built learner, as `resume.file` says.

    The optimizer's rates and the schedule are those of the configuration, at the step where the file stands.

    Args:
        cfg: The configuration.
        learner: Freshly built; its state is filled.

    Returns:
        The learner, with the lengths of the rest of the run, and lines about what was taken over.

    Raises:
        UserError: The file cannot be read or does not fit, or nothing is left to train.
    """
    file = read_training_file(located(cfg.resume.file), trust=cfg.resume.trust)
    weights = fit_weights(file.weights, whole(learner.model.state_dict()))
    _check_model(cfg, file, weights, learner)
    table, state = learner.timetable, learner.state
    epoch = cfg.resume.epoch if cfg.resume.epoch is not None else file.epochs_done(table.steps_per_epoch)
    step = file.step if file.step is not None else epoch * table.steps_per_epoch
    timetable = table.continued(step=step, epoch=epoch, samples_done=0)
    if step >= timetable.total_steps:
        key = "trainer.epochs" if table.steps is None else "trainer.steps"
        done = counted(epoch, "epoch") if table.steps is None else counted(step, "step")
        what = f"the file has come to {done}, and nothing is left to train"
        raise UserError(what, key=key, received=cfg.trainer[key.partition(".")[2]], fix="a longer run")
    _move_schedule(learner, timetable.total_steps if timetable.extra_steps else None, step)
    live = content.gather(**stateful(learner))
    saved: dict[str, Any] = {**live, "model": weights, "state": {**live["state"], "epoch": epoch, "step": step}}
    if file.optimizer is not None:
        saved["optimizer"] = fit_optimizer(file, learner.optimizer, learner.model)
    if isinstance(learner.average, Ema):
        averaged = {name: weights[name] for name in live["ema"]["weights"] if name in weights}
        saved["ema"] = {"steps": step, "weights": averaged}
    if file.scaler is not None and live["precision"]:
        saved["precision"] = {**live["precision"], **file.scaler}
    content.apply(saved, **stateful(learner))
    state.closed_step = step
    return replace(learner, timetable=timetable), _lines(file, learner, epoch=epoch, step=step)


def _check_model(cfg: DictConfig, file: TrainingFile, weights: Mapping[str, Tensor], learner: Learner) -> None:
    """Refuse weights of another model, and say what to type: without overrides a run has the default model.

    Args:
        cfg: The configuration.
        file: What was read.
        weights: Its weights by the names of this model, as far as these could be found.
        learner: What they are meant for.

    Raises:
        UserError: There are weights that do not fit; told before the length and the optimizer, which follow from them.
    """
    misfits = content.model_problems(dict(weights), learner.model)
    if not misfits:
        return
    here = learner.model.state_dict()
    sizes = {key: value for key, value in to_plain(cfg.model).items() if not key.startswith("_")}
    values = ", ".join(f"{key}={value}" for key, value in sizes.items())
    name = str(cfg.model._target_).rpartition(".")[2]
    shape = "×".join(map(str, learner.data.info.input_shape)) or "any size"
    alike = here.keys() & weights.keys()
    chosen = ["model=NAME", "model.KEY=VALUE", "data=NAME", *(file.optimizer_overrides() or ["optim=NAME"])]
    where = "`lightkit config model` lists the models, and model=custom is for a class of your own"
    overview = UserError(
        f"the weights are those of another model than this run has: {len(alike)} of {len(here)} names are the same",
        key=shown(file.path),
        expected=f"{name}({values}) for inputs of {shape}: {_first_and_last(here)}",
        received=_first_and_last(file.weights),
        fix=f"name what the file was made with: lightkit resume {shlex.quote(shown(file.path))} {' '.join(chosen)} "
        f"({where})",
        family="checkpoint-misfit",
    )
    raise UserErrors([overview, *misfits]) if alike else overview


def _first_and_last(tensors: Mapping[str, Tensor]) -> str:
    """Name some tensors with their shapes."""
    texts = [f"{name} {'×'.join(map(str, tensor.shape)) or 'single'}" for name, tensor in tensors.items()]
    few = texts if len(texts) <= 2 * _SHOWN else [*texts[:_SHOWN], "…", *texts[-_SHOWN:]]
    return f"{', '.join(few)} ({len(texts)} in all)"


def _move_schedule(learner: Learner, total_steps: int | None, step: int) -> None:
    """Move the schedule to a step; `total_steps` is the length of the run where that is another one now."""
    scheduler = learner.scheduler
    if not isinstance(scheduler, TorchSchedule):
        if total_steps is not None:
            scheduler.total_steps = total_steps
        scheduler.load_state_dict({"count": step})
        return
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Detected call of `lr_scheduler.step"
        )  # the optimizer's are in the file
        for _ in range(step):
            scheduler.step()


def _lines(file: TrainingFile, learner: Learner, *, epoch: int, step: int) -> list[str]:
    """Say what was taken over, and what of the file's settings is another here."""
    taken = ["weights", *(["optimizer"] if file.optimizer is not None else [])]
    said = f" (it says epoch {file.epoch})" if file.epoch not in (None, epoch) else ""
    lines = [f"{file.path}: {' and '.join(taken)} after {counted(epoch, 'epoch')}, {counted(step, 'step')}{said}"]
    if file.optimizer is None:
        lines.append("the file has no state of an optimizer: it begins with an empty one")
    for name in ("weight_decay", "betas", "momentum", "eps"):
        there = {_plain(group[name]) for group in (file.optimizer or {}).get("param_groups", ()) if name in group}
        here = {_plain(group[name]) for group in learner.optimizer.param_groups if name in group}
        if there and here and there != here:
            shown = [" and ".join(str(value) for value in sorted(side, key=str)) for side in (there, here)]
            lines.append(f"optim.{name}: {shown[0]} in the file, {shown[1]} from now on")
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return tuple(value) if isinstance(value, list) else value
