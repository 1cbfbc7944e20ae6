"""Optimizer state by parameter name.

PyTorch numbers the parameters and matches state by position: a changed order or a changed group silently gives a
parameter the state of another one. Names cannot be mixed up.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lightkit.common.errors import UserError
from lightkit.common.modules import is_shard
from lightkit.common.modules import like as shard_like


def by_name(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of an optimizer with parameter names in place of numbers.

    Returns:
        `kind` (class of the optimizer), `state` (by parameter name) and `groups` (settings, name and parameter names of
        each group). The tensors are the live ones.

    Raises:
        ValueError: The optimizer holds a parameter that is not the model's.
    """
    state = optimizer.state_dict()
    names = dict(enumerate(name for group in group_names(optimizer, model) for name in group))
    return {
        "kind": kind(optimizer),
        "state": {names[index]: packed(values) for index, values in state["state"].items()},
        "groups": [
            {key: value for key, value in group.items() if key != "param_names"}
            | {"params": [names[index] for index in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def from_names(saved: dict[str, Any], optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Convert a state by names to what `optimizer.load_state_dict` wants, in the optimizer's own order.

    The tensors are copies, so that `saved` stays what it is while training goes on. They lie in memory as their
    parameters do: fused optimizers go through both side by side, and on a CPU do not look. Call `problems` first.
    """
    named = {group.get("name"): group for group in saved["groups"]}
    sources = saved["groups"]
    if len(named) == len(sources) and None not in named:  # settings go by group name, else by position
        sources = [named[group["name"]] for group in optimizer.param_groups]
    numbers: dict[str, int] = {}
    groups = []
    for names, source, live in zip(group_names(optimizer, model), sources, optimizer.param_groups):
        first = len(numbers)
        numbers |= {name: first + offset for offset, name in enumerate(names)}
        by_device = {name: live[name] for name in ("foreach", "fused") if name in live}  # which may be another one
        groups.append(source | by_device | {"params": [numbers[name] for name in names]})
    parameters, package = dict(model.named_parameters()), kind(optimizer).partition(".")[0]
    return {
        "state": {
            numbers[name]: _unpacked(_copied(values, parameters[name]), package)
            for name, values in saved["state"].items()
        },
        "param_groups": groups,
    }


def load(optimizer: torch.optim.Optimizer, converted: dict[str, Any], *, formats: dict[int, torch.dtype]) -> None:
    """Load an optimizer's state and keep the number formats of the state.

    PyTorch turns all of it into the format of the parameter: the float32 `mu_product` of NAdam with bfloat16 weights
    would lose its digits, and grow others with float64 ones. Only where the parameter itself has changed its format
    does what has its shape follow.

    Args:
        optimizer: The optimizer.
        converted: What `from_names` gave.
        formats: Format that each parameter had when the state was saved, by its number.
    """
    optimizer.load_state_dict(converted)
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in converted["state"].items():
        parameter = parameters[number]
        live = optimizer.state[parameter]
        for name, value in values.items():
            if not isinstance(value, torch.Tensor) or live[name].dtype == value.dtype or name == "step":
                continue
            if formats.get(number) == parameter.dtype or value.shape != parameter.shape:
                live[name] = value.to(live[name].device)


def problems(saved: dict[str, Any], optimizer: torch.optim.Optimizer, model: nn.Module) -> list[UserError]:
    """List why the saved state does not fit this optimizer; nothing is changed."""
    if saved["kind"] != kind(optimizer):
        what = "the checkpoint was written with another optimizer"
        return [misfit(what, key="optim._target_", expected=saved["kind"], received=kind(optimizer))]
    here = [name for group in group_names(optimizer, model) for name in group]
    there = [name for group in saved["groups"] for name in group["params"]]
    misfits = name_problems(there, here, what="optimizer state", key="optim")
    labels, wanted = [group.get("name") for group in saved["groups"]], [g.get("name") for g in optimizer.param_groups]
    named = None not in labels and len(set(labels)) == len(labels)
    if not misfits and (len(labels) != len(wanted) or (named and set(labels) != set(wanted))):
        what = "the parameter groups are not those of the checkpoint"
        misfits.append(misfit(what, key="optim.rules", expected=_listed(labels), received=_listed(wanted)))
    return misfits


def misfit(what: str, *, key: str, **facts: Any) -> UserError:
    """Make the error of a checkpoint that does not fit a run."""
    return UserError(what, key=key, family="checkpoint-misfit", **facts)


def name_problems(saved: list[str], here: list[str], *, what: str, key: str) -> list[UserError]:
    """Make an error for names that are here but not in the checkpoint, and one for the reverse."""
    known, wanted = set(saved), set(here)
    missing, unexpected = [name for name in here if name not in known], [name for name in saved if name not in wanted]
    errors = []
    if missing:
        errors.append(misfit(f"the checkpoint has no {what} for {_listed(missing)}", key=key))
    if unexpected:
        text = f"the checkpoint has {what} for {_listed(unexpected)}, which this run does not have"
        errors.append(misfit(text, key=key))
    return errors


def group_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    """Return the parameter names of each group, in the optimizer's order.

    Raises:
        ValueError: The optimizer holds a parameter that is not the model's.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    try:
        return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    except KeyError as error:
        raise ValueError("the optimizer holds a parameter that the model has no name for") from error


def kind(optimizer: torch.optim.Optimizer) -> str:
    """Return the dotted path of the optimizer's class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _copied(value: Any, like: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        if is_shard(like):
            return shard_like(value, like)
        if value.shape != like.shape or value.stride() == like.stride():
            return value.clone()
        return torch.empty_like(like, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)
    if isinstance(value, dict):
        return {key: _copied(item, like) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, like) for item in value)
    return value


_CLASS = "tensor class"
"""Key of the path of a class, in what stands for a tensor that is made of others."""


def packed(value: Any) -> Any:
    """Put the plain tensors and settings that a tensor is made of in its place, as 8-bit optimizers have some."""
    if isinstance(value, dict):
        return {key: packed(item) for key, item in value.items()}
    if type(value) is torch.Tensor or not is_traceable_wrapper_subclass(value) or is_shard(value):
        return value
    names, settings = cast(Any, value).__tensor_flatten__()
    plain = [str(each) if isinstance(each, torch.dtype) else each for each in settings]
    path = f"{type(value).__module__}.{type(value).__qualname__}"
    return {_CLASS: path, "tensors": {name: getattr(value, name) for name in names}, "settings": plain}


def _unpacked(value: Any, package: str) -> Any:
    """Make such tensors again; their class must be one of the package that the optimizer is of, and is loaded with it.

    Raises:
        UserError: There is no such class.
    """
    if not isinstance(value, dict):
        return value
    if _CLASS not in value:
        return {key: _unpacked(item, package) for key, item in value.items()}
    module, _, name = str(value[_CLASS]).rpartition(".")
    made = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] == package else None
    if not isinstance(made, type) or not issubclass(made, torch.Tensor):
        what = "the state of the optimizer is of a class that its package does not have here"
        raise misfit(what, key="optim", received=value[_CLASS], fix="the version of the package it was saved with")
    settings = [getattr(torch, each[6:]) if str(each).startswith("torch.") else each for each in value["settings"]]
    return made.__tensor_unflatten__(value["tensors"], settings, None, None)  # type: ignore[attr-defined]


def _listed(names: list[Any], limit: int = 8) -> str:
    shown = ", ".join(map(str, names[:limit]))
    return f"{shown}, … ({len(names)} in all)" if len(names) > limit else shown
