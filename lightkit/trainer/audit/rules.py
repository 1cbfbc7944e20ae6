"""The rules of both audits, of a fine-tuning by its phases and of any training from time to time.

Checks of live objects return one line for each thing that is wrong, with the names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.errors import AUDIT_FAILED, UserError
from lightkit.common.modules import has_statistics, is_shard, parameter_aliases, part
from lightkit.common.text import counted
from lightkit.device.ranks import Ranks
from lightkit.finetune.phases import Phase
from lightkit.finetune.tables import base_rate, format_line, format_names, format_rate, group_name

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
_TOO_EARLY = "was the optimizer built before the network was changed?"
Groups = Sequence[Mapping[str, Any]]
"""The groups of an optimizer."""
ENOUGH_STEPS = 3
"""Steps after which what trains must have moved: what starts at zero holds back the gradients of others for one or two,
and the first steps of a warm-up may be too small for any bit to change."""
_VISIBLE = 32
"""How many times the resolution of a number a step must be to show: gradients may be clipped, and rates may fall."""
UNREACHED, ZERO, TOO_SMALL, STUCK, NOT_FINITE = range(5)
"""Why a parameter did not move, from what needs least of a gradient to what needs most."""


def announce(
    lines: Collection[str], where: str, *, who: str, tell: Callable[[str], None], ends: tuple[str, str, str] | None
) -> None:
    """Report what does not hold, or end the run.

    Args:
        lines: What does not hold.
        where: When it was seen.
        who: Who reports.
        tell: Takes lines for people.
        ends: Ends the run: what that is called, the key that asks for it, and the value that goes on; None goes on.

    Raises:
        UserError: Something does not hold, and the run is to end.
    """
    if lines and ends is not None:
        what, key, other = ends  # the key is named here: no caller in the midst of training knows it
        text = f"{what} ({where})" + "".join(f"\n      {line}" for line in lines)
        raise UserError(text, key=key, fix=f"{other} goes on all the same", exit_code=AUDIT_FAILED)
    for line in lines:
        tell(f"{who} ({where}): {line}")


def why_idle(parameter: Tensor, rate: float, gradient: float | None) -> int:
    """Tell why a parameter may not have moved.

    Args:
        parameter: The parameter.
        rate: Its learning rate.
        gradient: Largest absolute value of a gradient of it; None where none came.
    """
    if not gradient:
        return UNREACHED if gradient is None else ZERO
    if not math.isfinite(gradient):
        return NOT_FINITE
    size, dtype = largest_number(parameter)
    # A step along the gradient, and one of the size of the rate, would both have shown.
    return STUCK if rate * min(gradient, 1.0) > _VISIBLE * torch.finfo(dtype).eps * size else TOO_SMALL


def largest_number(parameter: Tensor) -> tuple[float, torch.dtype]:
    """Return the largest absolute value in what this process holds of a parameter, and its type."""
    own = part(parameter.detach())
    return (float(own.abs().max()) if own.numel() else 0.0), own.dtype


def norm_statistics(model: nn.Module) -> dict[str, list[str]]:
    """Return the path of each norm layer with running statistics, and the full names of these."""
    return {
        path: [f"{path}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False)]
        for path, module in model.named_modules()
        if has_statistics(module)
    }


def own_tensors(tensors: Mapping[str, Any], ranks: Ranks) -> dict[str, Tensor]:
    """Keep what this process judges: what others have as a whole too, such as a buffer, rank 0 gives them."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor) and (ranks.main or isinstance(tensor, nn.Parameter) or is_shard(tensor))
    }


def state_faults(
    model: nn.Module, optimizer: Optimizer, phase: Phase, *, zero_rates: Collection[str] = frozenset()
) -> list[str]:
    """List everything that is not as a phase asks for.

    Args:
        model: The network without wrappers.
        optimizer: Its optimizer.
        phase: What is to train and what is frozen now.
        zero_rates: Names of groups that may have a learning rate of 0.
    """
    # An optimizer moves whatever has a gradient, by momentum and weight decay too.
    stale = [name for name, p in model.named_parameters() if not p.requires_grad and p.grad is not None]
    idle = [
        f"{group_name(group, index)} ({counted(len(group['params']), 'tensor')})"
        for index, group in enumerate(optimizer.param_groups)
        if any(parameter.requires_grad for parameter in group["params"])
        and base_rate(group) == 0.0
        and not group.get("allow_zero")
        and group_name(group, index) not in zero_rates
    ]
    return [
        *gradient_faults(model, phase),
        *format_line("frozen but still has a gradient of before, so the optimizer would move it:", stale),
        *_tie_faults(model, phase),
        *membership_faults(model, optimizer),
        *format_line("trains with a learning rate of 0:", idle),
        *mode_faults(model, phase),
    ]


def gradient_faults(model: nn.Module, phase: Phase) -> list[str]:
    """List the parameters that need a gradient and should be frozen, and the other way round."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    wanted = {id(parameters[name]) for name in phase.trainable if name in parameters}
    own = dict(model.named_parameters())
    frozen = [name for name, p in own.items() if id(p) in wanted and not p.requires_grad]
    training = [name for name, p in own.items() if id(p) not in wanted and p.requires_grad]
    unknown = sorted(phase.trainable - set(parameters))
    return [
        *format_line("should train but is frozen:", frozen),
        *format_line("should rest but trains:", training),
        *format_line("should train but is not in the network:", unknown),
    ]


def membership_faults(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """List trainable parameters that are not in exactly one group, and tensors in groups that the network has not."""
    count = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    own = dict(model.named_parameters())
    trained = {name: parameter for name, parameter in own.items() if parameter.requires_grad}
    known, unknown = {id(parameter) for parameter in own.values()}, []
    for group in optimizer.param_groups:
        # Names of a group's tensors, or their shapes where it does not know them.
        names = group.get("param_names") or [f"a tensor of shape {tuple(p.shape)}" for p in group["params"]]
        unknown += [str(name) for name, parameter in zip(names, group["params"]) if id(parameter) not in known]
    missing = [name for name, parameter in trained.items() if not count[id(parameter)]]
    twice = [name for name, parameter in trained.items() if count[id(parameter)] > 1]
    return [
        *format_line(f"trains but is not in the optimizer ({_TOO_EARLY}):", missing),
        *format_line(f"in the optimizer but not in the network ({_TOO_EARLY}):", unknown),
        *format_line("in the optimizer more than once:", twice),
    ]


def mode_faults(model: nn.Module, phase: Phase) -> list[str]:
    """List norm layers with running statistics, and modules to be held in eval mode, that are in the wrong mode.

    The list is empty while the network as a whole is in eval mode.
    """
    if not model.training:
        return []
    norms = {path: module for path, module in model.named_modules() if has_statistics(module)}
    held = phase.frozen_norms | phase.eval_modules
    training = [path for path, module in norms.items() if path in phase.frozen_norms and module.training]
    evaluating = [path for path, module in norms.items() if path not in held and not module.training]
    others = [path for path in sorted(phase.eval_modules) if model.get_submodule(path).training]
    return [
        *format_line("norm layer that should be in eval mode but is in train mode:", training),
        *format_line("norm layer that should be in train mode but is in eval mode:", evaluating),
        *format_line("should be in eval mode but is in train mode:", others),
    ]


def group_options(groups: Groups, *, without: Collection[str] | None = ()) -> dict[str, dict[str, Any]]:
    """Return the options of every group by its name, on the host.

    Args:
        groups: The groups of an optimizer.
        without: Options to leave out, as a schedule may change them; None leaves out all.
    """
    if without is None:
        return {}
    return {
        group_name(group, index): {
            name: _constant(group[name]) for name in OPTIONS if name in group and name not in without
        }
        for index, group in enumerate(groups)
    }


def option_faults(before: Mapping[str, Mapping[str, Any]], groups: Groups) -> list[str]:
    """List the options that are not what they were.

    Args:
        before: From `group_options`.
        groups: The groups as they are now.
    """
    now = group_options(groups)
    return [
        f"group {name}: {option.replace('_', ' ')} {now[name].get(option)}, {value} when the phase began"
        for name, options in before.items()
        if name in now
        for option, value in options.items()
        if now[name].get(option) != value
    ]


def rate_faults(scheduled: Sequence[float] | None, groups: Groups) -> list[str]:
    """List the groups with another rate than the schedule has set.

    Args:
        scheduled: The rates by the schedule, in the order of the groups; None where it cannot tell.
        groups: The groups as they are now.
    """
    return [
        f"group {group_name(group, index)}: learning rate {format_rate(float(group['lr']))}, "
        f"the schedule has set {format_rate(wanted)}"
        for index, (group, wanted) in enumerate(zip(groups, scheduled or ()))
        if not math.isclose(float(group["lr"]), wanted, rel_tol=1e-6)
    ]


def _tie_faults(model: nn.Module, phase: Phase) -> list[str]:
    """List tensors, or memory, with several names that are to train under some of them only.

    A phase names a tensor by its first name, or by all its names.
    """
    lines = []
    for first, names in parameter_aliases(model).items():
        trained = [name for name in names if name in phase.trainable]
        if trained and trained != names and trained != [first]:
            others = format_names(name for name in names if name not in trained)
            lines.append(f"one tensor is to train as {format_names(trained)} and to rest as {others}")
    places: dict[tuple[object, int], list[str]] = {}
    for name, parameter in model.named_parameters():
        own = part(parameter)
        if own.numel() and own.device.type != "meta":
            places.setdefault((own.device, own.data_ptr()), []).append(name)
    for names in places.values():
        trained = [name for name in names if name in phase.trainable]
        if trained and trained != names:
            others = format_names(name for name in names if name not in trained)
            lines.append(f"{format_names(trained)} trains and {others} rests, but they are the same memory")
    return lines


def _constant(value: Any) -> Any:
    """Return a value that stays as it is when the group changes."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_constant, value))
    return value.item() if hasattr(value, "item") else value
