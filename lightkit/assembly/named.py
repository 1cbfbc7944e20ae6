"""Parts that no configuration names by a path, but by a name, `data.sampler=balanced`; and metrics, of equal nodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.utils.data import Sampler

from lightkit.common.modules import tensors
from lightkit.config import instantiate, to_plain
from lightkit.config.doors import load
from lightkit.data import DataInfo
from lightkit.device import Engine

_COPIED = ("torchmetrics.classification.", "torchmetrics.regression.")
_MADE: dict[str, Any] = {}
"""Metrics of these packages that count nothing, by what they are made of."""


def shipped(module: str, kind: str, **arguments: Any) -> Any:
    """Make the node of a part that no configuration names by its path."""
    node = {"_target_": f"{module}.{kind}", **arguments}
    return OmegaConf.create({"trust": [module], "node": node}).node


def sampler_node(value: Any) -> Any:
    """Return the node of a sampler, which may be chosen by a name."""
    if not isinstance(value, str):
        return value
    kind, given = load("data.sampler", value, Sampler)
    return shipped(kind.__module__, kind.__qualname__, **given)


def with_weights(node: DictConfig, info: DataInfo, engine: Engine) -> DictConfig:
    """Return the node of a loss with the weights that a name in their place stands for; others as they are.

    Args:
        node: The node of the loss.
        info: Facts about the data.
        engine: Takes note of the weights.

    Raises:
        UserError: They do not follow from these data.
    """
    if not isinstance(name := node.get("weight"), str):
        return node
    (make, given), root = load("loss.weight", name), node._get_root()
    found: Any = make(info, **given)
    unseen = [name for name, share in zip(info.class_names, info.class_shares, strict=False) if not share]
    told = f", and no training row is of {', '.join(unseen)}, which counts 1" if unseen else ""
    engine.notes.add(f"loss.weight={name}: {', '.join(f'{key} {own}' for key, own in found.items())}{told}")
    plain = {**to_plain(node), "weight": None, **found}
    return OmegaConf.create({"trust": to_plain(root).get("trust"), "node": plain}).node


def build_metric(node: DictConfig, key: str, sizes: Mapping[str, Any]) -> Any:
    """Build a metric; of a small one of torchmetrics copy one that is made of the same, which takes far less time."""
    plain = to_plain(node)
    facts = repr((plain, sizes, torch.get_default_dtype()))
    metric = _MADE[facts] if facts in _MADE else instantiate(node, key=key, **sizes)
    # What is made by others may be another each time.
    copied = type(metric).__module__.startswith(_COPIED) and plain["_target_"].startswith("torchmetrics.")
    if not copied or facts.count("_target_") > 1 or sum(map(Tensor.numel, tensors(metric._defaults))) > 10_000:
        return metric
    if len(_MADE) >= 256:
        _MADE.clear()
    _MADE[facts], made = metric, copy.copy(metric)
    vars(made).update({name: held.copy() for name, held in vars(metric).items() if isinstance(held, (dict, list))})
    made.reset()
    return made
