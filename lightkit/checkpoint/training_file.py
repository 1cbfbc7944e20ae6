"""Checkpoints of other programs' training loops: weights, the state of the optimizer, and how far training was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.checkpoint.formats import open_file
from lightkit.checkpoint.names import shared_prefix, unwrapped
from lightkit.checkpoint.optimizer_state import group_names, kind, misfit
from lightkit.checkpoint.reading import LABEL
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from lightkit.common.text import counted

_WEIGHTS = ("model", "model_state_dict", "state_dict", "model_state", "net", "network", "weights", "module")
"""Where training loops keep the weights that were being trained; averages of them stand elsewhere."""
_OPTIMIZER = (
    "optimizer", "optimizer_state_dict", "optimizer_state", "optim", "optim_state_dict", "opt", "optimizer_states",
)  # fmt: skip
_EPOCH = ("epoch", "epochs", "current_epoch", "start_epoch")
_STEP = ("global_step", "step", "steps", "iteration", "iter", "num_steps", "global_steps")
_SCALER = ("scaler", "scaler_state_dict", "amp_scaler", "grad_scaler")
_MARKS = {
    "nesterov": "sgd",
    "momentum_decay": "nadam",
    "centered": "rmsprop",
    "lr_decay": "adagrad",
    "amsgrad": "adam",
    "decoupled_weight_decay": "radam",
}
"""A setting that tells which optimizer of PyTorch a group is of, the first that is there."""


@dataclass(frozen=True)
class TrainingFile:
    """What a file holds of a training that another program has begun."""

    path: Path
    """The file."""
    weights: dict[str, Tensor]
    """Weights and buffers by the model's own names."""
    optimizer: Mapping[str, Any] | None
    """What the optimizer's `state_dict()` gave; None where there is none."""
    epoch: int | None
    """What it says of the epoch: the number of epochs that are done, or the index of the last one."""
    step: int | None
    """Optimizer steps taken, as the file or the optimizer in it counts them."""
    scaler: Mapping[str, Any] | None
    """State of a `GradScaler`."""

    def epochs_done(self, steps_per_epoch: int) -> int:
        """Return how many epochs are done.

        Some loops save the number of epochs that are done, others the index of the one that has ended: where the steps
        are known they tell which.

        Args:
            steps_per_epoch: Optimizer steps of an epoch.
        """
        if self.epoch is None:
            return (self.step or 0) // steps_per_epoch
        return self.epoch + 1 if self.step == (self.epoch + 1) * steps_per_epoch else self.epoch

    def optimizer_overrides(self) -> list[str]:
        """Return the overrides that choose the optimizer of the file; none where its settings don't tell which it is.

        Of its values only those are named that decide what it keeps of each parameter.
        """
        groups = self.optimizer["param_groups"] if self.optimizer is not None else []
        group: Mapping[str, Any] = groups[0] if groups else {}
        name = next((name for mark, name in _MARKS.items() if mark in group), None)
        if name is None:
            return []
        settings = {key: group[key] for key in ("momentum", "nesterov", "amsgrad", "centered") if group.get(key)}
        if name == "sgd":
            settings |= {key: group[key] for key in ("momentum", "nesterov") if key in group}
        decoupled = "w" if name == "adam" and group.get("decoupled_weight_decay") else ""
        return [f"optim={name}{decoupled}", *(f"optim.{key}={str(value).lower()}" for key, value in settings.items())]


def read_training_file(path: Path, *, trust: bool = False) -> TrainingFile:
    """Read a file such as `torch.save({"model": ..., "optimizer": ..., "epoch": ...}, path)` writes.

    Args:
        path: The file; `_WEIGHTS` and the like are the names that are known.
        trust: Open a pickle of Python objects, which runs the code in it.

    Raises:
        UserError: It cannot be read, is a checkpoint of lightkit's, or has no weights.
    """
    content = open_file(path, trust=trust, asked="resume.")
    if isinstance(content, Mapping) and LABEL in content:
        run = path.resolve().parent.parent
        what, fix = "this is a checkpoint of a run of lightkit", f"lightkit resume {run}"
        raise UserError(what, key=str(path), fix=fix, family="no-checkpoint")
    entries = content if isinstance(content, Mapping) else {}
    place = next((name for name in _WEIGHTS if isinstance(entries.get(name), (Mapping, nn.Module))), None)
    weights = read_weights(path, trust=trust, key=place, asked="resume.")
    optimizer = _first(entries, _OPTIMIZER, lambda value: isinstance(value, (Mapping, list)))
    if isinstance(optimizer, list):  # Lightning's, of which there may be several
        if len(optimizer) > 1:
            raise misfit("the file has several optimizers, and a run has one", key=str(path))
        optimizer = optimizer[0] if optimizer else None
    if optimizer is not None and not {"state", "param_groups"} <= optimizer.keys():
        what = "the entry of the optimizer is not what its state_dict() gives"
        raise misfit(what, key=str(path), received=", ".join(map(str, optimizer)))
    step = _number(entries, _STEP)
    return TrainingFile(
        path=path,
        weights=weights.state,
        optimizer=optimizer,
        epoch=_number(entries, _EPOCH),
        step=_steps_of(optimizer) if step is None else step,
        scaler=_first(entries, _SCALER, lambda value: isinstance(value, Mapping) and "scale" in value),
    )


def _first(content: Mapping[str, Any], names: Iterable[str], fits: Callable[[Any], bool]) -> Any:
    return next((content[name] for name in names if name in content and fits(content[name])), None)


def _number(content: Mapping[str, Any], names: Iterable[str]) -> int | None:
    def is_count(value: Any) -> bool:
        single = value.numel() == 1 if isinstance(value, Tensor) else type(value) in (int, float)
        return single and float(value) >= 0 and float(value) == int(value)

    count = _first(content, names, is_count)
    return None if count is None else int(count)


def _steps_of(optimizer: Mapping[str, Any] | None) -> int | None:
    """Return how many steps an optimizer has counted."""
    states = optimizer["state"].values() if optimizer else ()
    return max((int(state["step"]) for state in states if "step" in state), default=None)


def fit_weights(weights: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by the names of a model: without a prefix that all of them have, and with counters they lack.

    Args:
        weights: Those of a file.
        model: The state dict of the model.
    """
    names = unwrapped(weights)
    off, on = shared_prefix(*({name: tuple(t.shape) for name, t in side.items()} for side in (weights, model)))
    renamed = {on + names[name].removeprefix(off): tensor for name, tensor in weights.items()}
    counters = {name: tensor for name, tensor in model.items() if name.endswith("num_batches_tracked")}
    return {**counters, **renamed}


def fit_optimizer(file: TrainingFile, optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of the optimizer in a file by the names of the parameters of a model.

    Settings such as rates are those of the optimizer here.

    Args:
        file: What was read.
        optimizer: The optimizer that goes on.
        model: Its model, with the same parameters as in the file.

    Returns:
        What `lightkit.checkpoint.optimizer_state.by_name` gives of an optimizer.

    Raises:
        UserError: The optimizer in the file is another one, or cannot be matched with the parameters here.
    """
    saved = file.optimizer or {"state": {}, "param_groups": []}
    states: dict[int, dict[str, Any]] = {
        number: {name: value for name, value in state.items() if value is not None}
        for number, state in saved["state"].items()
    }
    _check_kind(file, states, optimizer)
    names = _names_of(file, saved["param_groups"], states, optimizer, model)
    settings = [
        {key: value for key, value in g.items() if key not in ("params", "param_names")} for g in optimizer.param_groups
    ]
    listed = group_names(optimizer, model)
    known = set(chain.from_iterable(listed))
    return {
        "kind": kind(optimizer),
        "state": {names[number]: state for number, state in states.items() if names[number] in known},
        "groups": [{**group, "params": own} for group, own in zip(settings, listed)],
    }


def _check_kind(file: TrainingFile, states: Mapping[int, Mapping[str, Any]], optimizer: Optimizer) -> None:
    """Refuse the state of another optimizer, by what it keeps of each parameter."""
    there = {name for state in states.values() for name in state}
    here = _kept(optimizer)
    if states and here is not None and there != here:
        raise misfit(
            "the optimizer in the file keeps something else of each parameter",
            key="optim._target_",
            expected=f"one that keeps {', '.join(sorted(there)) or 'nothing'}, as in {file.path}",
            received=f"{kind(optimizer)}, which keeps {', '.join(sorted(here)) or 'nothing'}",
            fix=" ".join(file.optimizer_overrides())
            or "the optimizer that the file was written with; a file without one begins with an empty state",
        )


def _kept(optimizer: Optimizer) -> set[str] | None:
    """Find out what an optimizer keeps of a parameter by a step over another one; None where that does not work."""
    first = optimizer.param_groups[0]
    probe = nn.Parameter(torch.zeros(2, 2, device=first["params"][0].device, dtype=first["params"][0].dtype))
    probe.grad = torch.ones_like(probe)
    options = {name: value for name, value in first.items() if name in optimizer.defaults}
    try:
        other = type(optimizer)([{"params": [probe], **options}], lr=1e-3)  # type: ignore[call-arg]
        other.step()
    except Exception:  # a class of one's own may want other arguments, or a closure
        return None
    return {name for name, value in other.state[probe].items() if value is not None}


def _names_of(
    file: TrainingFile,
    groups: Sequence[Mapping[str, Any]],
    states: Mapping[int, Mapping[str, Any]],
    optimizer: Optimizer,
    model: nn.Module,
) -> dict[int, str]:
    """Find out which parameter each number in the state of an optimizer stands for.

    PyTorch numbers parameters in the order in which they were given. Unless the file has their names, that is tried as
    programs usually give them: in the order of the model, or in that of groups with and without weight decay. Shapes
    say which it was.
    """
    numbers = [number for group in groups for number in group["params"]]
    given = [name for group in groups for name in group.get("param_names", ())]
    parameters = dict(model.named_parameters())
    if given and len(given) == len(numbers):
        own = unwrapped(given)
        orders = [[own[name] for name in given]]
    else:
        orders = _usual_orders([len(group["params"]) for group in groups], optimizer, model)
    fitting: list[dict[int, str]] = []
    for order in orders:
        named = dict(zip(numbers, order))
        if len(order) == len(numbers) and _shapes_fit(named, states, parameters) and named not in fitting:
            fitting.append(named)
    if len(fitting) == 1:
        return fitting[0]
    several = "which parameters its state belongs to can be told in more than one way"
    what = several if fitting else "its shapes do not fit"
    raise misfit(
        f"the state of the optimizer cannot be matched with the parameters of the model: {what}",
        key=str(file.path),
        expected=f"state for {counted(len(parameters), 'parameter')}",
        received=f"state for {len(numbers)} in {len(groups)} group{'s' * (len(groups) != 1)}",
        fix="save it from an optimizer that knows names: torch.optim.AdamW(model.named_parameters()); or take the "
        "weights alone: finetune=full finetune.weights.path=FILE",
    )


def _usual_orders(sizes: Sequence[int], optimizer: Optimizer, model: nn.Module) -> list[list[str]]:
    """Return the orders in which programs give parameters to an optimizer."""
    parameters = dict(model.named_parameters())
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if len(sizes) == 1:
        return [list(parameters), list(trained)]
    here = group_names(optimizer, model)
    matrices = [name for name, parameter in trained.items() if parameter.ndim > 1]
    others = [name for name in trained if name not in matrices]
    biases = [name for name in trained if name.endswith("bias")]
    weights = [name for name in trained if name not in biases]
    groupings = [here, here[::-1], [matrices, others], [others, matrices], [weights, biases], [biases, weights]]
    return [[*chain.from_iterable(groups)] for groups in groupings if [len(group) for group in groups] == [*sizes]]


def _shapes_fit(
    named: Mapping[int, str], states: Mapping[int, Mapping[str, Any]], parameters: Mapping[str, Tensor]
) -> bool:
    """Tell whether what is kept of each parameter has its shape, where it has one at all."""
    for number, state in states.items():
        parameter = parameters.get(named.get(number, ""))
        shapes = {tuple(value.shape) for value in state.values() if isinstance(value, Tensor) and value.ndim}
        if parameter is None or (shapes and tuple(parameter.shape) not in shapes):
            return False
    return True
