"""Tensors of which each process holds a part (`torch.distributed.tensor.DTensor`), and whole ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def is_shard(value: Any) -> bool:
    """Tell whether other processes hold the rest of a tensor."""
    return hasattr(value, "full_tensor")


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


def reshard(model: nn.Module) -> None:
    """Give back whatever a model of shards has gathered, so that its parameters are the shards again."""
    for module in model.modules():
        if callable(give_back := getattr(module, "reshard", None)):
            give_back()


def part(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
