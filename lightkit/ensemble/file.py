"""The file of a whole ensemble: every network's weights with its configuration, in safetensors.

Tensors that several members have in common, such as the base under LoRA, are in it once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightkit.checkpoint.files import write_atomically
from lightkit.checkpoint.reading import reason
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import UNREADABLE
from lightkit.common.names import name_problem

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

    Args:
        path: Where to.
        ensemble: What to write.

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
    content = save(tensors, metadata={"format": _FORMAT, "version": str(_VERSION), "ensemble": json.dumps(facts)})
    try:
        write_atomically(path, lambda file: file.write(content), scratch=f".{path.name}.unfinished")
    except OSError as error:
        raise UserError(f"cannot be written: {reason(error)}", key=str(path), family="cannot-write") from error


def read_ensemble(path: Path) -> StoredEnsemble:
    """Read what `write_ensemble` has written.

    Raises:
        UserError: It is missing, damaged, or no such file (exit code 5).
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = file.metadata() or {}
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
