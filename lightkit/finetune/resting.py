"""What rests beside the parameters: norm layers that a network itself holds still, and other modules with a state."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import replace

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from lightkit.common.modules import has_statistics
from lightkit.finetune.names import Names
from lightkit.finetune.phases import Phase, frozen_paths
from lightkit.finetune.tuning import freeze


def held_by_network(model: nn.Module) -> frozenset[str]:
    """Paths of the norm layers with statistics that the network's own `train()` leaves in eval mode.

    Networks for detection and segmentation often do that in a `train` of their own. The modes stay as they are.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    found = {path for path, module in model.named_modules() if has_statistics(module) and not module.training}
    for module, training in modes:
        module.training = training
    return frozenset(found)


def with_held(model: nn.Module, phase: Phase) -> Phase:
    """A phase in which the norm layers that the network itself holds still rest too.

    Which ones these are may depend on what needs a gradient: the parameters are left as the phase has them.
    """
    freeze(model, phase)
    return replace(phase, still=phase.still | held_by_network(model))


def resting_states(
    model: nn.Module, trained: Collection[str], names: Names, *, trainable: frozenset[str], bn: str
) -> frozenset[str]:
    """Paths of modules in frozen parts, other than norm layers, that are to be held in eval mode for their buffers.

    In train mode spectral norm turns its vectors with every step, and a layer of one's own may gather statistics, so
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
    resting, found = frozen_paths(model, trained, names), set()
    for path, module in model.named_modules():
        if path and has_state(module) and not has_statistics(module):
            own = [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
            weights = [name for name in own if not name.endswith("bias")] or own
            if path in resting if not weights else trainable.isdisjoint(weights):
                found.add(path)
    return frozenset(found)


def has_state(module: nn.Module) -> bool:
    """Whether a module has numbers of its own that change in train mode, as far as its code tells.

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
