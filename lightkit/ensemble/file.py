"""The file of a whole ensemble: every network's weights with its configuration, in safetensors.

Tensors that several members have in common, such as the base under LoRA, are in it once.

`StoredEnsemble.more` keeps what the file of a plain ensemble has no need of. `groups`, inner before outer ones, have
`name`, `rule`, `weight` and the names of their `members`. `scaling` has `shift` and `scale` by the name of a member.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightkit.checkpoint.formats import read_tensors
from lightkit.checkpoint.reading import reason
from lightkit.common.errors import UNREADABLE, UserError, writing_to
from lightkit.common.names import name_problem
from lightkit.ensemble.module import Ensemble, Rule
from lightkit.processes.files import write_whole

_FORMAT, _VERSION = "lightkit.ensemble", 1
_JOIN = "/"


@dataclass(frozen=True)
class StoredMember:
    """One network of an ensemble."""

    name: str
    """Name of the member."""
    config: str
    """Its configuration as YAML."""
    weight: float
    """How much it counts."""
    state: Mapping[str, Tensor]
    """Its tensors by name."""


@dataclass(frozen=True)
class StoredEnsemble:
    """An ensemble as it is in a file."""

    members: Sequence[StoredMember]
    """The networks."""
    rule: str
    """How their outputs become one; see `lightkit.ensemble.module.Ensemble`."""
    task: str
    """Kind of target."""
    classes: Sequence[str] = ()
    """Names of the classes or labels, in order of their numbers."""
    more: Mapping[str, Any] | None = None
    """What else belongs to it, as plain values."""


def write_ensemble(path: Path, ensemble: StoredEnsemble) -> None:
    """Write the file, as a whole or not at all.

    Raises:
        UserError: It cannot be written; one of that name is as it was.
    """
    from safetensors.torch import save

    tensors, places, known = dict[str, Tensor](), dict[str, dict[str, str]](), dict[str, str]()
    for member in ensemble.members:
        places[member.name] = {}
        for name, tensor in member.state.items():
            key = _JOIN.join((member.name, name))
            own = tensor.detach().cpu().contiguous()
            place = known.setdefault(_digest(own), key)
            places[member.name][name] = place
            if place == key:
                tensors[key] = own
    facts = {
        "rule": ensemble.rule,
        "task": ensemble.task,
        "classes": list(ensemble.classes),
        "more": ensemble.more,
        "members": [
            {"name": member.name, "weight": member.weight, "config": member.config, "tensors": places[member.name]}
            for member in ensemble.members
        ],
    }
    about = {"format": _FORMAT, "version": str(_VERSION), "ensemble": json.dumps(facts)}
    with writing_to(path, "cannot be written"):
        write_whole(path, save(tensors, metadata=about), scratch=f".{path.name}.unfinished", forced=True)


def read_ensemble(path: Path) -> StoredEnsemble:
    """Read what `write_ensemble` has written.

    Raises:
        UserError: It is missing, damaged, or no such file (exit code 5).
    """
    from safetensors import SafetensorError

    try:
        tensors, facts = read_tensors(path)
        if (facts.get("format"), facts.get("version")) != (_FORMAT, str(_VERSION)):
            raise ValueError("it holds no ensemble of this version")
        found = json.loads(facts["ensemble"])
        members = [
            StoredMember(
                row["name"], row["config"], row["weight"], {name: tensors[key] for name, key in row["tensors"].items()}
            )
            for row in found["members"]
        ]
        if problem := next(filter(None, (name_problem(member.name) for member in members)), None):
            raise ValueError(problem)
        return StoredEnsemble(members, found["rule"], found["task"], found["classes"], found["more"])
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        what = f"the file of the ensemble cannot be read: {reason(error) if isinstance(error, OSError) else error}"
        fix = "`lightkit resume` of its run writes it anew"
        raise UserError(what, key=str(path), fix=fix, exit_code=UNREADABLE) from error


def _digest(tensor: Tensor) -> str:
    digest = hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), digest_size=16)
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


PARTS = _GROUPS, _SCALING = "groups", "scaling"
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
