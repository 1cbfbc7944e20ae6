"""Putting a checkpoint into the parts of a run whose configuration may have changed since."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig
from torch import Tensor
from torch.optim import Optimizer

from lightkit.assembly import Learner
from lightkit.checkpoint import content
from lightkit.checkpoint.optimizer_state import misfit
from lightkit.checkpoint.training_file import TrainingFile, fit_optimizer, fit_weights, read_training_file
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.ledger import Ledger
from lightkit.common.modules import whole
from lightkit.common.patterns import named
from lightkit.common.text import counted
from lightkit.config import to_plain
from lightkit.config.origins import shown
from lightkit.config.project import located
from lightkit.loggers import Logger
from lightkit.optim.wrapped import Torch as TorchSchedule
from lightkit.runner.merge import FREE, KeyChange
from lightkit.runs.folder import RunFolder
from lightkit.trainer import Ema, State
from lightkit.trainer.guard import KEPT

_STOPPING = ("trainer.early_stopping", "trainer.max_time", "trainer.callbacks")
_REMAKING = (*_STOPPING, "data.batch_size")
"""What may change between two parts of a run, but not between a state to roll back to and the rest of the run."""
_LENGTHS = ("trainer.epochs", "trainer.steps", "data.batch_size")
_MOMENT = re.compile(r"(from|to)_(step|epoch)_\d+")
_GROUPING = ("rules", "no_decay", "layer_decay")


def restore(saved: dict[str, Any], learner: Learner, changes: list[KeyChange]) -> tuple[Learner, list[str]]:
    """Load a checkpoint into a freshly built learner, under a configuration that may have changed.

    Args:
        saved: Content of the checkpoint.
        learner: Built from the merged configuration; its state is filled.
        changes: What differs from the checkpoint's configuration.

    Returns:
        The learner, with the lengths of the rest of the run, and lines about what has changed.

    Raises:
        UserError: The checkpoint does not fit.
    """
    state = learner.state
    settings = settings_of(learner.optimizer)
    known, given_up = still_kept(learner.callbacks, saved.get("callbacks", {}), changes)
    callbacks, notes = fitted(learner.callbacks, known)
    check_moments(saved["optimizer"], learner.optimizer, changes)
    content.apply({**saved, "callbacks": callbacks}, **stateful(learner))
    state.samples_done = min(state.samples_done, learner.data.train.epoch_samples)  # rows may be gone since
    own = not isinstance(learner.scheduler, TorchSchedule)
    reapply_overrides(learner.optimizer, settings, changes, own=own)
    timetable = learner.timetable.continued(step=state.step, epoch=state.epoch, samples_done=state.samples_done)
    if timetable.extra_steps and own:
        learner.scheduler.total_steps = timetable.total_steps
        learner.scheduler.refresh()
    if goes_on(changes):
        state.stop_reason = None
    over = ["nothing is left to train"] if state.step >= timetable.total_steps else []
    if not over and timetable.pauses_at(step=state.step, epoch=state.epoch):
        over = [f"nothing is left to train up to trainer.stop_at={timetable.stop_at}"]
    return replace(learner, timetable=timetable), [*map(str, changes), *notes, *given_up, *over]


def check_moments(saved: Mapping[str, Any], optimizer: Optimizer, changes: Sequence[KeyChange]) -> None:
    """Refuse another length of a fine-tuning whose parts begin to train after shares of the run, or of epochs.

    Args:
        saved: The optimizer in the checkpoint; what begins to train later has the moment in the names of its groups.
        optimizer: The optimizer of this run.
        changes: What differs.

    Raises:
        UserError: The moments lie elsewhere now, where the run may be already.
    """
    longer = next((change for change in changes if change.taken and change.key in _LENGTHS), None)
    before = {str(group.get("name")) for group in saved["groups"]}
    now = {str(group.get("name")) for group in optimizer.param_groups}
    if longer and before != now and any(_MOMENT.search(name) for name in before ^ now):
        raise misfit(
            "what begins or stops to train later would do so at other steps in a run of this length",
            key=longer.key,
            expected=", ".join(sorted(before - now)),
            received=", ".join(sorted(now - before)),
            fix="name the steps: finetune.schedule with `step` in place of `share`, finetune.gradual.every_steps in "
            "place of share, with resume.override=['finetune.*']",
        )


def stateful(learner: Learner, *, kept: bool = True) -> dict[str, Any]:
    """Return the stateful parts, as a checkpoint names them.

    Args:
        learner: The parts.
        kept: The states that a rollback goes back to are a part too; not of themselves.
    """
    return {
        "model": learner.model,
        "optimizer": learner.optimizer,
        "scheduler": learner.scheduler,
        "precision": learner.engine.precision,
        "callbacks": {name: part for name, part in learner.callbacks.items() if kept or name != KEPT},
        "metrics": {"train": learner.metrics["train"]},
        "state": learner.state,
        "ema": learner.average if learner.average.is_saved else None,
    }


def start_logging(logger: Logger, place: RunFolder, state: State) -> None:
    """Make the loggers forget what was logged after the step of the counters; count what there is before it.

    Args:
        logger: The loggers.
        place: The run's folder.
        state: The counters, of a checkpoint or of a state that the run has gone back to.
    """
    rows = place.rows_before(state.step, state.rows, state.logged)
    logger.start(state.step, rows)
    state.rows, state.logged = len(rows), Ledger.of(rows)  # fewer where a power cut took some


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of every parameter group, as the configuration has them, to be kept for `retake`."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def reapply_overrides(
    optimizer: Optimizer, settings: Sequence[Mapping[str, Any]], changes: Sequence[KeyChange], *, own: bool
) -> None:
    """Put overridden settings of the optimizer back, which the checkpoint's groups have replaced.

    Args:
        optimizer: The optimizer with the state of the checkpoint.
        settings: What `settings_of` gave before that was loaded.
        changes: What differs.
        own: Whether the schedule computes the rates from those of the configuration, as lightkit's own do.

    Raises:
        UserError: The learning rate is to be changed, but a scheduler of PyTorch's has it in its own state.
    """
    keys = [change.key.split(".")[1] for change in changes if change.taken and change.key.startswith("optim.")]
    if not own and {"lr", *_GROUPING} & set(keys):
        what, fix = "PyTorch's schedulers keep the learning rate in their own state", "one of lightkit's schedulers"
        raise misfit(what, key="resume.override", received="optim.lr", fix=f"{fix}, or a new run")
    names = [*keys, "weight_decay"] if set(_GROUPING) & set(keys) else keys
    for group, wanted in zip(optimizer.param_groups, settings):
        group |= {name: wanted[name] for name in names if name in wanted and name != "lr"}


def still_kept(
    callbacks: Mapping[str, Any], saved: Mapping[str, dict[str, Any]], changes: Sequence[KeyChange]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The saved states of the callbacks without those to roll back to where these no longer fit; a line about that.

    Args:
        callbacks: Callbacks of this run.
        saved: States in the checkpoint.
        changes: What differs from the checkpoint's configuration.
    """
    taken = [change.key for change in changes if change.taken]
    remade = [key for key in taken if named(key, _REMAKING) or not named(key, FREE)]
    if not saved.get(KEPT) or (KEPT in callbacks and not remade):
        return dict(saved), []
    others = {name: state for name, state in saved.items() if name != KEPT}
    return others, [f"a rollback goes back to here at most, as {remade[0]} has changed"] if KEPT in callbacks else []


def fitted(
    callbacks: Mapping[str, Any], saved: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The saved states of the callbacks there are now, and a line about each that came or went.

    Args:
        callbacks: Callbacks of this run.
        saved: States in the checkpoint.
    """
    states = {name: saved.get(name) or part.state_dict() for name, part in callbacks.items()}
    new = [f"callback {name} is new and starts from nothing" for name in states if states[name] and not saved.get(name)]
    gone = [f"callback {name} is gone, and what it knew" for name in saved if name not in states and saved[name]]
    return states, new + gone


def goes_on(changes: Sequence[KeyChange]) -> bool:
    """Tell whether a run that ended early is to go on, because what ended it has changed."""
    return any(change.taken and change.key.startswith(_STOPPING) for change in changes)


_TENSORS_SHOWN = 3
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
    return replace(learner, timetable=timetable), _taken_over(file, learner, epoch=epoch, step=step)


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
    overview = misfit(
        f"the weights are those of another model than this run has: {len(alike)} of {len(here)} names are the same",
        key=shown(file.path),
        expected=f"{name}({values}) for inputs of {shape}: {_first_and_last(here)}",
        received=_first_and_last(file.weights),
        fix=f"name what the file was made with: lightkit resume {shlex.quote(shown(file.path))} {' '.join(chosen)} "
        f"({where})",
    )
    raise UserErrors([overview, *misfits]) if alike else overview


def _first_and_last(tensors: Mapping[str, Tensor]) -> str:
    """Name some tensors with their shapes."""
    texts = [f"{name} {'×'.join(map(str, tensor.shape)) or 'single'}" for name, tensor in tensors.items()]
    few = texts if len(texts) <= 2 * _TENSORS_SHOWN else [*texts[:_TENSORS_SHOWN], "…", *texts[-_TENSORS_SHOWN:]]
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
        # The steps of the optimizer are in the file.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        for _ in range(step):
            scheduler.step()


def _taken_over(file: TrainingFile, learner: Learner, *, epoch: int, step: int) -> list[str]:
    """Say what was taken over, and what of the file's settings is another here."""
    taken = ["weights", *(["optimizer"] if file.optimizer is not None else [])]
    differs = f" (it says epoch {file.epoch})" if file.epoch not in (None, epoch) else ""
    lines = [f"{file.path}: {' and '.join(taken)} after {counted(epoch, 'epoch')}, {counted(step, 'step')}{differs}"]
    if file.optimizer is None:
        lines.append("the file has no state of an optimizer: it begins with an empty one")
    for name in ("weight_decay", "betas", "momentum", "eps"):
        there = {_value(group[name]) for group in (file.optimizer or {}).get("param_groups", ()) if name in group}
        here = {_value(group[name]) for group in learner.optimizer.param_groups if name in group}
        if there and here and there != here:
            shown = [" and ".join(str(value) for value in sorted(side, key=str)) for side in (there, here)]
            lines.append(f"optim.{name}: {shown[0]} in the file, {shown[1]} from now on")
    return lines


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return tuple(value) if isinstance(value, list) else value
