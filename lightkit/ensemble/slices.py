"""Ordinary checkpoints of single members, cut out of the state of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def member_contents(
    stacked: Mapping[str, Any], rows: Sequence[int], own: Sequence[Mapping[str, Any]], *, like: nn.Module
) -> list[dict[str, Any]]:
    """Return the content of a checkpoint of each of some members, in the layout of `lightkit.checkpoint.content`.

    Args:
        stacked: What `content.gather` gives of the stack.
        rows: Which members, by their places in the stack.
        own: What of the contents is each member's own, without tensors of the stack.
        like: The model of a member, which knows the versions of its modules.
    """
    index = torch.tensor(rows, device=next(iter(stacked["model"].values())).device)
    metadata = getattr(like.state_dict(), "_metadata", {})
    versions = {path: facts["version"] for path, facts in metadata.items() if facts.get("version", 1) != 1}
    models = _cut(stacked["model"], index)
    states = {name: _cut(values, index) for name, values in stacked["optimizer"]["state"].items()}
    averages = None if stacked["ema"] is None else _cut(stacked["ema"]["weights"], index)
    return [
        {
            **stacked,
            **part,
            "model": models[place],
            "model_versions": versions,
            "optimizer": {
                "kind": stacked["optimizer"]["kind"],
                "state": {name: values[place] for name, values in states.items()},
                "groups": [dict(group) for group in stacked["optimizer"]["groups"]],
            },
            "scheduler": dict(stacked["scheduler"]),
            "ema": None if averages is None else {"steps": stacked["ema"]["steps"], "weights": averages[place]},
        }
        for place, part in enumerate(own)
    ]


def _cut(stacked: Mapping[str, Any], rows: Tensor) -> list[dict[str, Any]]:
    """Cut tensors `(M, ...)` into those of single members; what has no dimensions is the same for all."""
    columns: dict[str, Sequence[Any]] = {}
    for name, value in stacked.items():
        if isinstance(value, Tensor) and value.ndim:
            columns[name] = value.detach().index_select(0, rows).unbind(0)
        else:
            columns[name] = [value.clone() if isinstance(value, Tensor) else value] * len(rows)
    return [{name: column[place] for name, column in columns.items()} for place in range(len(rows))]
