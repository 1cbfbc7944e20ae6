"""What an optimizer's groups are set to, besides their rates: whether it stays as it was when a phase began."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightkit.finetune.audit.wording import rate

OPTIONS = (
    "weight_decay",
    "betas",
    "momentum",
    "dampening",
    "nesterov",
    "alpha",
    "rho",
    "eps",
    "lr_decay",
    "lambd",
    "momentum_decay",
    "etas",
    "step_sizes",
    "amsgrad",
    "centered",
    "maximize",
    "decoupled_weight_decay",
)
"""Options that no optimizer changes by itself; some keep counters and estimates of their own among the others."""

Groups = Sequence[Mapping[str, Any]]


def options_of(groups: Groups, *, but: Collection[str] | None = ()) -> dict[str, dict[str, Any]]:
    """The options of every group by its name, on the host.

    Args:
        groups: The groups of an optimizer.
        but: Options to leave out, as a schedule may change them; None leaves out all.
    """
    if but is None:
        return {}
    return {
        label(group, index): {name: _plain(group[name]) for name in OPTIONS if name in group and name not in but}
        for index, group in enumerate(groups)
    }


def option_faults(before: Mapping[str, Mapping[str, Any]], groups: Groups) -> list[str]:
    """Options that are not what they were, one line each.

    Args:
        before: From `options_of`.
        groups: The groups as they are now.
    """
    now = options_of(groups)
    return [
        f"group {name}: {option.replace('_', ' ')} {now[name].get(option)}, {value} when the phase began"
        for name, options in before.items()
        if name in now
        for option, value in options.items()
        if now[name].get(option) != value
    ]


def rate_faults(due: Sequence[float] | None, groups: Groups) -> list[str]:
    """Groups whose rate is not the one that the schedule has set, one line each.

    Args:
        due: The rates by the schedule, in the order of the groups; None where it cannot tell.
        groups: The groups as they are now.
    """
    return [
        f"group {label(group, index)}: learning rate {rate(float(group['lr']))}, the schedule has set {rate(wanted)}"
        for index, (group, wanted) in enumerate(zip(groups, due or ()))
        if not math.isclose(float(group["lr"]), wanted, rel_tol=1e-6)
    ]


def label(group: Mapping[str, Any], index: int) -> str:
    """The name of a group, or its place."""
    return str(group.get("name", f"group {index}"))


def _plain(value: Any) -> Any:
    """A value that stays as it is when the group changes."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return value.item() if hasattr(value, "item") else value
