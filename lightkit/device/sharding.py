"""The parameters of a model cut into parts, of which each process holds one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.modules import reshard


def shard(model: nn.Module, device: torch.device, *, min_parameters: int, reshard: bool) -> nn.Module:
    """Cut the parameters of a model into parts, in place; their names stay.

    Layers in a sequence or a list are gathered one after the other when they compute, what is small with the layer
    around it, in the end the whole model (Zhao et al. 2023, https://arxiv.org/abs/2304.11277). Weights and buffers
    become those of rank 0.

    Args:
        model: The model on its device.
        device: Its device.
        min_parameters: Layers with fewer are not gathered by themselves.
        reshard: Give the gathered weights back after the forward pass, and gather them again for the backward pass.

    Raises:
        UserError: PyTorch cannot cut one of its parameters.
    """
    _check_parameters(model)
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, 0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in layers(model, min_parameters):
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)  # always: others look at its parameters between steps
    model.register_forward_pre_hook(_share_buffers)
    model.register_forward_hook(_give_back)
    return model


def _check_parameters(model: nn.Module) -> None:
    named = dict(model.named_parameters())
    single = [name for name, parameter in named.items() if not parameter.ndim]
    turned = [name for name, parameter in named.items() if not parameter.is_contiguous()]
    for names, what, fix in (
        (single, "a number by itself cannot be cut into parts", "a parameter of shape (1,), or device.parallel=ddp"),
        (turned, "PyTorch cuts parameters in their usual order in memory only", "device.parallel=ddp"),
    ):
        if names:
            raise UserError(what, argument="parallel", received=", ".join(names[:5]), fix=fix)


def layers(model: nn.Module, least: int) -> list[nn.Module]:
    """Return the layers of sequences and lists with that many parameters, the inner before the outer.

    None where a weight is in two places: both have to be gathered together.
    """
    named = list(model.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in named}) < len(named):
        return []
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, (nn.Sequential, nn.ModuleList)):
            # What a fine-tuning puts into a layer does not stand alone: it is not called itself.
            children = (child for child in module.children() if getattr(child, "stands_alone", True))
            found += [child for child in children if not isinstance(child, nn.ModuleList)]
    large = [layer for layer in found if sum(p.numel() for p in layer.parameters()) >= least]
    return list(dict.fromkeys(reversed(large)))


def _share_buffers(model: nn.Module, _inputs: Any) -> None:
    """Make the averages of batch norms those of rank 0, which saves them."""
    import torch.distributed as dist

    buffers: list[Tensor] = list(model.buffers())
    for buffer in buffers:
        dist.broadcast(buffer, 0)


def _give_back(model: nn.Module, _inputs: Any, _outputs: Any) -> None:
    """Give gathered weights back where no backward pass does: the next pass would compute with what they were then."""
    if not torch.is_grad_enabled():
        reshard(model)
