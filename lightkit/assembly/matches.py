"""What the patterns of a configuration stand for in the network of a run, for people to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from lightkit.common.modules import inside
from lightkit.common.patterns import Matched
from lightkit.config import to_plain
from lightkit.device.recompute import recomputed
from lightkit.optim.groups import matched_rules
from lightkit.trainer.learner import Learner

COLUMNS = ["key", "pattern", "modules", "tensors", "parameters"]


@dataclass(frozen=True)
class Match:
    """A pattern with what it stands for."""

    found: Matched
    """The pattern, and the names it stands for."""
    names: tuple[str, ...]
    """Names of the parameters, of modules those in them."""
    parameters: int
    """Number of elements in them."""

    def cells(self) -> list[str]:
        """Return the cells of a table's row, in the order of `COLUMNS`."""
        key, pattern, names, modules = self.found
        return [key, pattern, f"{len(names):,}" if modules else "", f"{len(self.names):,}", f"{self.parameters:,}"]

    def to_json(self) -> dict[str, Any]:
        """Return the pattern and all matched names as plain values."""
        key, pattern, names, modules = self.found
        listed = {"modules": list(names)} if modules else {}
        return {"key": key, "pattern": pattern, **listed, "names": list(self.names), "parameters": self.parameters}


def matches_of(cfg: DictConfig, parts: Learner) -> list[Match]:
    """List the patterns of `optim`, `finetune` and `device`, in this order, with what they match.

    Parameters have the names they had before anything was injected; a tensor with several names counts once.
    """
    prepared = parts.made.prepared
    aliases = prepared.original_names if prepared else {}
    elements = {aliases.get(name, name): tensor.numel() for name, tensor in parts.model.named_parameters()}
    of_optim = matched_rules(
        parts.model,
        to_plain(cfg.optim.get("rules") or []),
        names=prepared.trained if prepared else None,
        aliases=aliases,
    )
    renamed = [found._replace(names=tuple(aliases.get(name, name) for name in found.names)) for found in of_optim]
    of_device = recomputed(parts.model, parts.engine.switches.activation_checkpointing)
    own = set(elements) - set(prepared.injected if prepared else ())
    every = [*renamed, *(prepared.matched if prepared else ()), *of_device]
    matches = []
    for found in every:
        names = found.names
        if found.modules:
            within = (name for name in elements if name in own)
            names = tuple(name for name in within if any(inside(name, path) for path in found.names))
        matches.append(Match(found, names, sum(elements[name] for name in names)))
    return matches
