"""A network cut into the parts that its plan and its audit speak of: the groups of the optimizer, and what has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from lightkit.common.modules import has_statistics, inside, parent_of

NEVER_TRAINED = "never trained"
NO_GROUP = "no group"


@dataclass(frozen=True)
class ParameterGroup:
    """The parameters of one group of an optimizer that train, or those that are frozen."""

    name: str
    """Name of the group; other names for what has none, and for the frozen part of a group that trains."""
    names: tuple[str, ...]
    """First names of the parameters."""
    elements: int
    """Number of elements in them."""
    trains: bool
    """Whether they are to train."""
    group: Mapping[str, Any]
    """The group of the optimizer; empty for what has none."""
    index: int | None
    """Place of the group in the optimizer."""
    norms: tuple[str, ...] = ()
    """Paths of the norm layers with running statistics that belong here."""


_Place = tuple[int, bool]
"""Index of a group, and whether it is the frozen part of it."""


def split_by_group(
    model: nn.Module, groups: Sequence[Mapping[str, Any]], trainable: Collection[str]
) -> list[ParameterGroup]:
    """Split the parameters of a network by the optimizer's groups, in their order; what has no group comes last.

    Args:
        model: The network without wrappers.
        groups: The groups of its optimizer.
        trainable: First names of the parameters that train.
    """
    indices = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
    elements = {name: parameter.numel() for name, parameter in model.named_parameters()}
    places: dict[_Place, list[str]] = {}
    for name, parameter in model.named_parameters():
        places.setdefault((indices.get(id(parameter), len(groups)), name not in trainable), []).append(name)
    norms = _places_of_norms(model, {name: place for place, names in places.items() for name in names})
    found = []
    for index, frozen in sorted(places):
        known, place = index < len(groups), (index, frozen)
        label = group_name(groups[index], index) if known else (NEVER_TRAINED if frozen else NO_GROUP)
        found.append(
            ParameterGroup(
                name=f"{label} (frozen)" if frozen and (index, False) in places and known else label,
                names=tuple(places[place]),
                elements=sum(elements[name] for name in places[place]),
                trains=not frozen,
                group=groups[index] if known else {},
                index=index if known else None,
                norms=tuple(path for path, own in norms.items() if own == place),
            )
        )
    return found


def group_name(group: Mapping[str, Any], index: int) -> str:
    """Return the name of an optimizer's group, or its place."""
    return str(group.get("name", f"group {index}"))


def base_rate(group: Mapping[str, Any]) -> float:
    """Return a group's own learning rate, before any schedule."""
    return float(group.get("initial_lr", group["lr"]))


def _places_of_norms(model: nn.Module, places: Mapping[str, _Place]) -> dict[str, _Place]:
    """Return where the parameters of each norm layer with statistics are.

    One without any is where the first parameter in the smallest part around it is.
    """
    found = {}
    for path, module in model.named_modules():
        if not has_statistics(module):
            continue
        own = (f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
        place, part = next((places[name] for name in own if name in places), None), path
        while place is None:
            place = next((each for name, each in places.items() if inside(name, part)), None)
            if not part:
                break
            part = parent_of(part)
        if place is not None:
            found[path] = place
    return found
