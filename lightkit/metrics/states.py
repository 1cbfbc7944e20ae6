"""The state of torchmetrics' metrics: kept to this process, shared, copied and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def alone(metric: Any) -> Any:
    """Keep a metric from exchanging anything with other processes: it gets the results of all."""
    for part in metric.modules():
        if hasattr(part, "metric_state"):
            part.sync_on_compute = part._to_sync = False
    return metric


WINDOW = "_num_vals_seen"
"""Where a wrapper of torchmetrics counts the batches of its window."""
_BESIDE = (WINDOW, "min_val", "max_val")
"""What wrappers of torchmetrics keep beside their states: batches in a window, the extremes of all epochs."""


def has_counted(metric: Any) -> bool:
    """Tell whether a metric, or one inside a wrapper that does not count its updates, has been updated."""
    return any(
        part.update_called or getattr(part, WINDOW, 0) for part in metric.modules() if hasattr(part, "metric_state")
    )


def share(leader: Any, follower: Any) -> None:
    """Let a metric see the state of its group's first, as torchmetrics' own collection does."""
    for name in leader._defaults:
        setattr(follower, name, getattr(leader, name))
    follower._update_count, follower._computed = leader._update_count, None


def outlasts(metric: Any) -> bool:
    """Tell whether a metric keeps something when it is reset: the extremes of all epochs."""
    return any(hasattr(part, "min_val") for part in metric.modules())


def keeps_more(metric: Any) -> bool:
    """Tell whether a metric keeps something beside its states."""
    return any(hasattr(part, name) for part in metric.modules() for name in _BESIDE)


def state_of(metric: Any) -> dict[str, Any]:
    """Copy the state of a metric and of the metrics inside it, by module path."""
    return {
        path: {
            "updates": module._update_count,
            "values": {
                name: value.detach().clone() if isinstance(value, Tensor) else [v.detach().clone() for v in value]
                for name, value in module.metric_state.items()
            },
            **_beside(module),
        }
        for path, module in metric.named_modules()
        if hasattr(module, "metric_state")
    }


def _beside(module: Any) -> dict[str, Any]:
    """Copy what a wrapper keeps beside its states."""
    kept = {name: getattr(module, name) for name in _BESIDE if hasattr(module, name)}
    return {"beside": {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in kept.items()}} if kept else {}


def load(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Put a state from `state_of` into a metric, copied to the device."""
    modules = dict(metric.named_modules())
    for path, saved in state.items():
        module = modules[path]
        for name, value in saved["values"].items():
            copied = (
                value.to(device, copy=True) if isinstance(value, Tensor) else [v.to(device, copy=True) for v in value]
            )
            setattr(module, name, copied)
        for name, value in saved.get("beside", {}).items():
            setattr(module, name, value.to(device, copy=True) if isinstance(value, Tensor) else value)
        module._update_count, module._computed = saved["updates"], None
