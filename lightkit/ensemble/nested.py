"""Ensembles of finished runs: members that are ensembles themselves, or that scale their inputs in another way.

`StoredEnsemble.more` keeps what the file of a plain ensemble has no need of. `groups`, inner before outer ones, have
`name`, `rule`, `weight` and the names of their `members`. `scaling` has `shift` and `scale` by the name of a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightkit.ensemble.file import StoredEnsemble, StoredMember
from lightkit.ensemble.module import Ensemble, Rule

_GROUPS, _SCALING = "groups", "scaling"
PARTS = (_GROUPS, _SCALING)
"""What of `StoredEnsemble.more` is understood here."""


class Scaled(nn.Module):
    """A network that scales its inputs itself.

    Args:
        network: The network.
        shift: What becomes 0, broadcastable to one input.
        scale: What becomes 1.
    """

    def __init__(self, network: nn.Module, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.network = network
        self.shift, self.scale = nn.Buffer(shift.clone()), nn.Buffer(scale.clone())

    def forward(self, x: Tensor) -> Any:
        """Compute the network's output for inputs as they are in the data set."""
        return self.network((x - self.shift) / self.scale)


def nested(
    inner: StoredEnsemble, name: str, weight: float
) -> tuple[list[StoredMember], list[dict[str, Any]], dict[str, Any]]:
    """Return what an ensemble becomes in the file of one that it is a member of.

    Args:
        inner: The ensemble.
        name: Its name among the members.
        weight: How much it counts.

    Returns:
        Its networks, its groups with itself as the last one, and the scaling of its members.
    """
    more = inner.more or {}
    groups = [
        {**group, "name": f"{name}.{group['name']}", "members": [f"{name}.{member}" for member in group["members"]]}
        for group in more.get(_GROUPS, ())
    ]
    members = [replace(member, name=f"{name}.{member.name}") for member in inner.members]
    taken = {member for group in groups for member in group["members"]}
    own = [known for known in (*(m.name for m in members), *(g["name"] for g in groups)) if known not in taken]
    groups.append({"name": name, "rule": inner.rule, "weight": weight, "members": own})
    return members, groups, {f"{name}.{member}": value for member, value in more.get(_SCALING, {}).items()}


def assembled(stored: StoredEnsemble, networks: Mapping[str, nn.Module]) -> Ensemble:
    """Put the networks of an ensemble together.

    Args:
        stored: What its file says.
        networks: Its networks with their weights, by name.
    """
    found, weights = grouped(stored, networks)
    shares = [weights[name] for name in found]
    rule = cast("Rule", stored.rule)
    return Ensemble(list(found.values()), task=stored.task, rule=rule, weights=shares, names=list(found))


def grouped(stored: StoredEnsemble, networks: Mapping[str, nn.Module]) -> tuple[dict[str, nn.Module], dict[str, float]]:
    """Make ensembles of the networks that belong to one, and let each scale its inputs.

    Args:
        stored: What the file of the whole ensemble says.
        networks: Its networks with their weights, by name.

    Returns:
        The members of the whole ensemble, and how much each counts, by name.
    """
    more = stored.more or {}
    weights = {member.name: member.weight for member in stored.members}
    found = {name: _scaled(network, more.get(_SCALING, {}).get(name)) for name, network in networks.items()}
    for group in more.get(_GROUPS, ()):
        name, names = group["name"], group["members"]
        estimators, shares = [found.pop(one) for one in names], [weights.pop(one) for one in names]
        rule = cast("Rule", group["rule"])
        ensemble = Ensemble(estimators, task=stored.task, rule=rule, weights=shares, names=names)
        found[name], weights[name] = _scaled(ensemble, more.get(_SCALING, {}).get(name)), group["weight"]
    return found, weights


def _scaled(network: nn.Module, scaling: Mapping[str, Any] | None) -> nn.Module:
    if scaling is None:
        return network
    return Scaled(network, torch.tensor(scaling["shift"]), torch.tensor(scaling["scale"]))
