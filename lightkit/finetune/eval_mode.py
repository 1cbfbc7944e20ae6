"""Which modules of frozen parts are held in eval mode: norm layers, and others that keep a state of their own."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import replace

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from lightkit.common.modules import has_statistics, inside, parent_of
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.phases import Phase
from lightkit.finetune.tuning import freeze


def frozen_modules(model: nn.Module, trained: Collection[str], names: NetworkNames) -> frozenset[str]:
    """Return the paths of the modules in frozen parts.

    A module is frozen when none of the parameters in it trains. One without parameters is what the part around it is.

    Args:
        model: The network.
        trained: Names, as before anything was injected, of the parameters that train.
        names: The names of the network.
    """
    training, with_parameters = set(), set()
    for first, aliases in names.aliases.items():
        parts = [name.split(".")[:-1] for name in aliases]  # `a.b.c` is in ``, `a` and `a.b`
        around = {".".join(path[:count]) for path in parts for count in range(len(path) + 1)}
        with_parameters |= around
        if first in trained:
            training |= around
    found = set()
    for path, _ in model.named_modules():
        part = path
        while part and part not in with_parameters:
            part = parent_of(part)
        if part not in training and (part or not training):
            found.add(path)
    return frozenset(found)


def frozen_norms(model: nn.Module, trained: Collection[str], names: NetworkNames, *, bn: str) -> frozenset[str]:
    """Return the paths of the norm layers with statistics in frozen parts, which are to be held in eval mode.

    One with a weight is frozen when its weight is, so that with BitFit (https://arxiv.org/abs/2106.10199) only biases
    change: statistics that go on would change more than these.

    Args:
        model: The network.
        trained: Names, as before anything was injected, of the parameters that train.
        names: The names of the network.
        bn: `frozen` holds them; with `stats` and `train` their statistics go on.
    """
    if bn != "frozen":
        return frozenset()
    frozen = frozen_modules(model, trained, names)
    first_names = {alias: name for name, aliases in names.aliases.items() for alias in aliases}
    found = set()
    for path, module in model.named_modules():
        weight = first_names.get(f"{path}.weight".lstrip("."))
        if has_statistics(module) and (path in frozen if weight is None else weight not in trained):
            found.add(path)
    return frozenset(found)


def frozen_stateful_modules(
    model: nn.Module, trained: Collection[str], names: NetworkNames, *, trainable: frozenset[str], bn: str
) -> frozenset[str]:
    """Return the paths of other modules than norm layers in frozen parts that are held in eval mode for their buffers.

    In train mode spectral norm updates its vectors with every step, and a layer of one's own may gather statistics, so
    that a frozen layer would not stay what it is. As for norm layers, one with a weight is frozen when its weight is.

    Args:
        model: The network.
        trained: Names, as before anything was injected, of the parameters that train.
        names: The names of the network.
        trainable: Names, as they are now, of the parameters that train.
        bn: `frozen` holds them; with `stats` and `train` they go on.
    """
    if bn != "frozen":
        return frozenset()
    frozen, found = frozen_modules(model, trained, names), set()
    for path, module in model.named_modules():
        if path and has_state(module) and not has_statistics(module):
            own = [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
            weights = [name for name in own if not name.endswith("bias")] or own
            if path in frozen if not weights else trainable.isdisjoint(weights):
                found.add(path)
    return frozenset(found)


def has_state(module: nn.Module) -> bool:
    """Tell whether a module has numbers of its own that change in train mode, as far as its code tells.

    One that drops out values by itself is left alone, as eval mode would end that too.
    """
    own = {name for name, buffer in module.named_buffers(recurse=False) if buffer.is_floating_point()}
    if not own or any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()):
        return bool(own)
    used = {
        name
        for kind in type(module).__mro__
        for function in vars(kind).values()
        for name in getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ())
    }
    drops = any("dropout" in name or name == "scaled_dot_product_attention" for name in used)
    return "training" in used and not own.isdisjoint(used) and not drops


def norms_held_by_model(model: nn.Module) -> frozenset[str]:
    """Return the paths of the norm layers with statistics that the network's own `train()` leaves in eval mode.

    Networks for detection and segmentation often do that in a `train` of their own. The modes stay as they are.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    found = {path for path, module in model.named_modules() if has_statistics(module) and not module.training}
    for module, training in modes:
        module.training = training
    return frozenset(found)


def with_norms_held_by_model(model: nn.Module, phase: Phase) -> Phase:
    """Return a phase in which the norm layers that the network itself holds in eval mode are frozen too.

    Which ones these are may depend on what needs a gradient: the parameters are left as the phase has them.
    """
    freeze(model, phase)
    return replace(phase, frozen_norms=phase.frozen_norms | norms_held_by_model(model))


def norm_parameters(model: nn.Module, within: Collection[str], names: NetworkNames) -> set[str]:
    """Return the names, out of `within`, of the parameters of norm layers that keep statistics."""
    paths = [path for path, module in model.named_modules() if has_statistics(module)]
    return {
        name for name in within if any(inside(alias, path) for alias in names.aliases.get(name, ()) for path in paths)
    }
