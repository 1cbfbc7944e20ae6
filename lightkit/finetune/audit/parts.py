"""A network cut into the parts that its plan and its audit speak of: the groups of the optimizer, and what has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lightkit.common.modules import has_statistics, inside, parent_of

REST = "never trained"
LOST = "no group"


@dataclass(frozen=True)
class Part:
    """Parameters of one group that train, or that rest."""

    name: str
    """Name of the group; other names for what has none, and for the resting part of a group that trains."""
    names: tuple[str, ...]
    """First names of the parameters."""
    trains: bool
    """Whether they are to train."""
    group: Mapping[str, Any]
    """The group of the optimizer; empty for what has none."""
    index: int | None
    """Place of the group in the optimizer."""
    norms: tuple[str, ...] = ()
    """Paths of the norm layers with running statistics that belong here."""


def split(model: nn.Module, groups: Sequence[Mapping[str, Any]], trainable: Collection[str]) -> list[Part]:
    """The parts of a network, in the order of the optimizer's groups; what has no group is last.

    Args:
        model: The network without wrappers.
        groups: The groups of its optimizer.
        trainable: First names of the parameters that train.
    """
    place = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
    found: dict[tuple[int, bool], list[str]] = {}
    for name, parameter in model.named_parameters():
        found.setdefault((place.get(id(parameter), len(groups)), name not in trainable), []).append(name)
    norms = _norms(model, {name: cell for cell, names in found.items() for name in names})
    parts = []
    for index, rests in sorted(found):
        known = index < len(groups)
        label = str(groups[index].get("name", f"group {index}")) if known else (REST if rests else LOST)
        cell = (index, rests)
        parts.append(
            Part(
                name=f"{label} (frozen)" if rests and (index, False) in found and known else label,
                names=tuple(found[cell]),
                trains=not rests,
                group=groups[index] if known else {},
                index=index if known else None,
                norms=tuple(path for path, owner in norms.items() if owner == cell),
            )
        )
    return parts


def statistics(model: nn.Module, path: str) -> dict[str, Tensor]:
    """The running statistics of a norm layer by their full names."""
    module = model.get_submodule(path)
    return {f"{path}.{name}".lstrip("."): buffer for name, buffer in module.named_buffers(recurse=False)}


def frozen_around(name: str, parameters: Collection[str], trained: Collection[str]) -> bool:
    """Whether a buffer is in a frozen part: in the smallest one with parameters, if none of these trains."""
    path = parent_of(name)
    while path and not any(inside(own, path) for own in parameters):
        path = parent_of(path)
    around = [own for own in parameters if inside(own, path)]
    return bool(around) and not any(own in trained for own in around)


def _norms(model: nn.Module, cells: Mapping[str, tuple[int, bool]]) -> dict[str, tuple[int, bool]]:
    """Norm layer with statistics → where its parameters are; one without any is where its surroundings are."""
    found = {}
    for path, module in model.named_modules():
        if has_statistics(module):
            own = (f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
            owner = next((cells[name] for name in own if name in cells), None) or _around(path, cells)
            if owner is not None:
                found[path] = owner
    return found


def _around(path: str, cells: Mapping[str, tuple[int, bool]]) -> tuple[int, bool] | None:
    """Where the first parameter in the smallest part with any is that a path is in."""
    while True:
        owner = next((cell for name, cell in cells.items() if inside(name, path)), None)
        if owner is not None or not path:
            return owner
        path = parent_of(path)
