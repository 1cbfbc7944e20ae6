"""Small operations on the tree of a network's modules, and on tensors in nested values, such as its inputs."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
HEADS = ("head", "heads", "fc", "classifier", "lm_head", "last_linear", "score", "output", "cls")
"""What the output layer, or the part that ends in it, is called in lightkit, torchvision, timm and transformers."""
_NORM_NAME = re.compile(r"norm(\d?d)?(act(\d?d)?)?$", re.IGNORECASE)


_BIAS = re.compile(r"^bias(?![a-z])|bias$")
_MADE = re.compile(r"(?:^|\.)parametrizations\.([^.]+)\.")
"""A tensor with parametrizations, in the names of what it is made of."""


class _OfTransposedWeight(type):
    """Makes `isinstance` go by what a module holds: its class is that of a package that need not be there."""

    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, nn.Module) or not isinstance(getattr(instance, "nf", None), int):
            return False
        named = any(kind.__name__ == "Conv1D" for kind in type(instance).__mro__)
        weight = getattr(instance, "weight", None) if named else None
        return isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[1] == instance.nf


class TransposedLinear(nn.Module, metaclass=_OfTransposedWeight):
    """A linear layer with a weight of inputs × outputs: `Conv1D`, with which transformers builds GPT-2 and the like."""

    nf: int
    """Number of outputs."""
    weight: Tensor
    bias: Tensor


def is_bias(name: str) -> bool:
    """Tell whether a parameter is a bias: its own name begins or ends so (`bias`, `in_proj_bias`, `bias_ih_l0`)."""
    made = _MADE.search(name)
    return _BIAS.search(made.group(1) if made else name.rpartition(".")[2]) is not None


def is_norm(module: nn.Module) -> bool:
    """Tell whether it is a norm layer: of PyTorch, or a class whose name ends in Norm, Norm2d, NormAct and the like."""
    return isinstance(module, _NORMS) or _NORM_NAME.search(type(module).__name__) is not None


def trains(module: Any) -> bool:
    """Tell whether something is a module with parameters to train."""
    return isinstance(module, nn.Module) and any(parameter.requires_grad for parameter in module.parameters())


def has_statistics(module: nn.Module) -> bool:
    """Tell whether it is a norm layer that keeps running statistics in training."""
    return is_norm(module) and getattr(module, "running_mean", None) is not None


def parent_of(path: str) -> str:
    """Return the dotted path one level up; empty for the network itself."""
    return path.rpartition(".")[0]


def inside(name: str, path: str) -> bool:
    """Tell whether a dotted name is the path itself or lies below it; everything lies in the empty path."""
    return not path or name == path or name.startswith(f"{path}.")


def replace_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module in the place of another one."""
    setattr(model.get_submodule(parent_of(path)), path.rpartition(".")[2], module)


def parameter_aliases(model: nn.Module) -> dict[str, list[str]]:
    """Map the first name of every parameter to all its names, where modules share it."""
    first: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(first.setdefault(id(parameter), name), []).append(name)
    return found


def path_of(model: nn.Module, wanted: nn.Module) -> str | None:
    """Find where in a network a module is; None where it is not."""
    return next((path for path, module in model.named_modules() if module is wanted), None)


def is_shard(value: Any) -> bool:
    """Tell whether other processes hold the rest of a tensor."""
    return type(value) is not Tensor and hasattr(value, "full_tensor")  # asking a tensor for what it lacks takes long


def everywhere(value: Tensor) -> Tensor:
    """Return a whole tensor, of which each process may hold a part; then all of them ask."""
    found: Tensor = value.full_tensor() if is_shard(value) else value  # type: ignore[attr-defined]
    return found


def whole(value: Any) -> Any:
    """Put whole tensors, in host memory, in place of shards; every process calls it with the same nested values.

    Tensors that are one and the same stay so; what is whole already is not copied.
    """
    return _whole(value, {})


def _whole(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        if not is_shard(value):
            return value
        if id(value) not in known:
            known[id(value)] = value.detach().full_tensor().cpu(), value  # type: ignore[attr-defined]
        return known[id(value)][0]
    if isinstance(value, dict):
        return {name: _whole(item, known) for name, item in value.items()}
    return type(value)(_whole(item, known) for item in value) if type(value) in (tuple, list) else value


def like(value: Any, live: Any) -> Any:
    """Cut the shard that this process holds of a live tensor out of a whole one; a live one that is whole takes all."""
    if not isinstance(value, Tensor) or not is_shard(live) or is_shard(value) or value.shape != live.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    # Each process cuts its own part out of what it has read.
    return distribute_tensor(value.to(live.device), live.device_mesh, live.placements, src_data_rank=None)


def all_like(values: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Cut whole tensors by name into the shards that this process holds of live ones; see `like`."""
    return {name: like(value, live.get(name)) for name, value in values.items()}


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Put each module back afterwards into the mode that it is in, of training or of evaluation."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def hooked(
    model: nn.Module,
    before: Callable[[str, nn.Module, Any], None] | None = None,
    after: Callable[[str, nn.Module, Any, Any], None] | None = None,
) -> Iterator[None]:
    """Look at each module of a model while inside.

    Args:
        model: The model.
        before: Called before each module with its name, itself and its inputs.
        after: Called after it, with what it gives too.
    """
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if before is not None:
                stack.callback(module.register_forward_pre_hook(partial(before, name)).remove)
            if after is not None:
                stack.callback(module.register_forward_hook(partial(after, name)).remove)
        yield


@torch.no_grad()
def put_back(kept: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy into tensors the values that stand beside them, such as those of before."""
    for tensor, values in kept:
        tensor.copy_(values)


def reshard(model: nn.Module) -> None:
    """Give back whatever a model of shards has gathered, so that its parameters are the shards again."""
    for module in model.modules():
        if callable(give_back := getattr(module, "reshard", None)):
            give_back()


def part(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def wide(tensor: Tensor) -> Tensor:
    """Turn numbers of 16 bits into fp32, for what sums or differences of them are to keep."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Let `torch.nn.TransformerEncoderLayer` and its like call their layers one by one inside.

    In evaluation they would call one kernel for all of it, which `vmap` cannot compute and which no operation shows.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass object by name; None for anything else."""
    names = getattr(type(value), "__dataclass_fields__", None)
    return None if names is None else {name: getattr(value, name) for name in names if hasattr(value, name)}


def items_of(value: Any) -> Iterable[Any]:
    """Return what a mapping, list, tuple or dataclass holds; nothing of anything else."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else (fields_of(value) or {}).values()


def tensors(value: Any) -> Iterator[Tensor]:
    """Return the tensors of nested mappings, lists, tuples and dataclasses, in their order."""
    if isinstance(value, Tensor):
        yield value
        return
    for item in items_of(value):
        yield from tensors(item)


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Change the tensors of nested tuples, lists, mappings and dataclasses; everything else stays as it is.

    What holds them keeps its type and is copied, not changed.
    """
    if isinstance(value, Tensor):
        return change(value)
    if value is None or isinstance(value, (int, float, str)):  # at once: a step asks for many
        return value
    return rebuilt(lambda item: mapped(change, item), value)


def rebuilt(change: Callable[[Any], Any], value: Any, *, fresh: bool = False) -> Any:
    """Copy a tuple, list, mapping or dataclass with its items changed; anything else is returned as it is.

    Args:
        change: Gives what takes the place of an item.
        value: What holds the items.
        fresh: Copy mappings of one's own, and dataclasses, also where no item is another.
    """
    kind = type(value)
    if isinstance(value, (tuple, list)):
        parts = [change(item) for item in value]
        return parts if kind is list else kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    if kind in (dict, OrderedDict):
        items = {key: change(item) for key, item in value.items()}
        return items if kind is dict else OrderedDict(items)
    # A mapping or dataclass of somebody's own may be more than its items.
    is_mapping = isinstance(value, MutableMapping)
    before = {name: value[name] for name in value} if is_mapping else fields_of(value)
    if before is None:
        return value
    changed = {name: change(item) for name, item in before.items()}
    if not fresh and all(changed[name] is item for name, item in before.items()):
        return value
    clone = copy.copy(value)
    for name, item in changed.items():
        if is_mapping:  # one by one: not all of them know `update`
            clone[name] = item
        else:  # past `frozen`, and without `replace`, which refuses fields that are not arguments
            object.__setattr__(clone, name, item)
    return clone


def shape_of(value: Any) -> str:
    """Say what a value of any kind consists of: `{image: (3, 8, 8) float32, age: () int64}`."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    named = dict(value) if isinstance(value, Mapping) else fields_of(value)
    if named is not None:
        return "{" + ", ".join(f"{name}: {shape_of(item)}" for name, item in named.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(shape_of, value)) + ")"
    return type(value).__name__
