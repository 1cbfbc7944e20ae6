"""What can be said of a phase without training: whether the live objects are in the state that it asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from torch import nn
from torch.optim import Optimizer

from lightkit.common.modules import has_statistics, parameter_aliases
from lightkit.common.shards import part
from lightkit.finetune.audit.plan import own_rate
from lightkit.finetune.audit.wording import some
from lightkit.finetune.phases import Phase

ELSEWHERE = "was the optimizer built before the network was changed?"


def faults(
    model: nn.Module, optimizer: Optimizer, phase: Phase, *, zero_rates: Collection[str] = frozenset()
) -> list[str]:
    """Everything that is not as the phase says, one line each with the names.

    Args:
        model: The network without wrappers.
        optimizer: Its optimizer.
        phase: What is to train and to rest now.
        zero_rates: Names of groups that may have a learning rate of 0.
    """
    return [
        *gradient_faults(model, phase),
        *_stale_faults(model),
        *_tie_faults(model, phase),
        *membership_faults(model, optimizer),
        *_rate_faults(optimizer, zero_rates),
        *mode_faults(model, phase),
    ]


def gradient_faults(model: nn.Module, phase: Phase) -> list[str]:
    """Parameters that need a gradient and should rest, and the other way round."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    wanted = {id(parameters[name]) for name in phase.trainable if name in parameters}
    own = dict(model.named_parameters())
    asleep = [name for name, p in own.items() if id(p) in wanted and not p.requires_grad]
    awake = [name for name, p in own.items() if id(p) not in wanted and p.requires_grad]
    unknown = sorted(phase.trainable - set(parameters))
    return [
        *_line("should train but is frozen", asleep),
        *_line("should rest but trains", awake),
        *_line("should train but is not in the network", unknown),
    ]


def membership_faults(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Trainable parameters that are not in exactly one group, and tensors in groups that are not the network's."""
    count = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    own = dict(model.named_parameters())
    trained = {name: parameter for name, parameter in own.items() if parameter.requires_grad}
    known = {id(parameter) for parameter in own.values()}
    strangers = [
        name
        for group in optimizer.param_groups
        for name, parameter in zip(_labels(group), group["params"])
        if id(parameter) not in known
    ]
    missing = [name for name, parameter in trained.items() if not count[id(parameter)]]
    twice = [name for name, parameter in trained.items() if count[id(parameter)] > 1]
    return [
        *_line(f"trains but is not in the optimizer ({ELSEWHERE})", missing),
        *_line(f"in the optimizer but not in the network ({ELSEWHERE})", strangers),
        *_line("in the optimizer more than once", twice),
    ]


def mode_faults(model: nn.Module, phase: Phase) -> list[str]:
    """Norm layers with running statistics, and quiet modules, in the wrong mode; none while the network is in eval."""
    if not model.training:
        return []
    norms = {path: module for path, module in model.named_modules() if has_statistics(module)}
    awake = [path for path, module in norms.items() if path in phase.still and module.training]
    asleep = [path for path, module in norms.items() if path not in phase.still | phase.quiet and not module.training]
    loud = [path for path in sorted(phase.quiet) if model.get_submodule(path).training]
    return [
        *_line("norm layer that should be in eval mode but is in train mode", awake),
        *_line("norm layer that should be in train mode but is in eval mode", asleep),
        *_line("should be in eval mode but is in train mode", loud),
    ]


def _stale_faults(model: nn.Module) -> list[str]:
    """An optimizer moves whatever has a gradient, by momentum and weight decay too."""
    stale = [name for name, p in model.named_parameters() if not p.requires_grad and p.grad is not None]
    return _line("frozen but still has a gradient of before, so the optimizer would move it", stale)


def _tie_faults(model: nn.Module, phase: Phase) -> list[str]:
    """One tensor, or memory, under several names that is to train under some of them only.

    A phase names a tensor by its first name, or by all its names.
    """
    lines = []
    for first, names in parameter_aliases(model).items():
        trained = [name for name in names if name in phase.trainable]
        if trained and trained != names and trained != [first]:
            rest = some(name for name in names if name not in trained)
            lines.append(f"one tensor is to train as {some(trained)} and to rest as {rest}")
    places: dict[tuple[object, int], list[str]] = {}
    for name, parameter in model.named_parameters():
        own = part(parameter)
        if own.numel() and own.device.type != "meta":
            places.setdefault((own.device, own.data_ptr()), []).append(name)
    for names in places.values():
        trained = [name for name in names if name in phase.trainable]
        if trained and trained != names:
            rest = some(name for name in names if name not in trained)
            lines.append(f"{some(trained)} trains and {rest} rests, but they are the same memory")
    return lines


def _rate_faults(optimizer: Optimizer, allowed: Collection[str]) -> list[str]:
    idle = [
        f"{_name(group, index)} ({len(group['params'])} tensors)"
        for index, group in enumerate(optimizer.param_groups)
        if any(parameter.requires_grad for parameter in group["params"])
        and own_rate(group) == 0.0
        and not group.get("allow_zero")
        and _name(group, index) not in allowed
    ]
    return _line("trains with a learning rate of 0", idle)


def _name(group: Mapping[str, object], index: int) -> str:
    return str(group.get("name", f"group {index}"))


def _labels(group: Mapping[str, list[nn.Parameter]]) -> list[str]:
    """Names of a group's tensors, or their shapes where it does not know them."""
    names = group.get("param_names")
    return list(map(str, names)) if names else [f"a tensor of shape {tuple(p.shape)}" for p in group["params"]]


def _line(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {some(names)}"] if names else []
