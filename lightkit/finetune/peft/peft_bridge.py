"""Hugging Face peft: any of its configs that put layers into a network, such as LoRA with DoRA, IA3 or LoKr.

Nothing else imports peft (https://github.com/huggingface/peft, extra `peft`). It replaces a layer by one that holds it:
`fc.weight` becomes `fc.base_layer.weight`. What it does not do well is kept from happening here:

- PyTorch's fast path for `nn.TransformerEncoderLayer` in eval mode reads weights without calling layers, and what was
  learnt would vanish without a word: the fast path is switched off, for the whole process.
- Layers inside of `nn.MultiheadAttention` are never called, or break when replicated: refused.
- A tensor that several layers share comes apart when merged: refused.
- LoRA forgets a convolution's dilation and padding mode: refused.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.hub import installed
from lightkit.common.modules import inside, parameter_aliases, parent_of
from lightkit.finetune.peft.injected import join_names
from lightkit.finetune.peft.lowrank import CONVOLUTIONS

_INSTEAD = {
    "modules_to_save": "finetune.train and finetune.head",
    "bias": "finetune.train=[@bias]",
    "trainable_token_indices": "finetune.train",
    "target_parameters": "finetune.lora",
    "layer_replication": "a model with more layers",
}
"""Options of peft that would change other parts of the network, and what to use."""


def inject_peft(model: nn.Module, config: Any) -> list[str]:
    """Put peft's layers into a network. What of the network itself trains stays as it is.

    Args:
        model: The network; changed in place.
        config: An instance of a config of peft, such as `peft.LoraConfig`; not changed.

    Returns:
        Names of the new parameters that train, in the order of the network.

    Raises:
        UserError: peft is not installed or refuses the config, or its layers would not work in this network.
    """
    fix, what = "pip install 'lightkit[peft]'", "peft cannot be imported: {}"
    peft = installed("peft", fix, what, argument="peft")
    _check_config(peft, config)
    known = {id(parameter): parameter.requires_grad for parameter in model.parameters()}
    modes = {id(module): module.training for module in model.modules()}
    try:
        peft.inject_adapter_in_model(copy.deepcopy(config), model)
    except (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError) as error:
        raise UserError(f"peft refuses this: {error}", argument="peft", received=type(config).__name__) from error
    new = [
        name for name, parameter in model.named_parameters() if id(parameter) not in known and parameter.requires_grad
    ]
    for parameter in model.parameters():
        parameter.requires_grad_(known.get(id(parameter), parameter.requires_grad))
    for module in model.modules():
        module.training = modes.get(id(module), model.training)
    _check_layers(model)
    if any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules()):
        torch.backends.mha.set_fastpath_enabled(False)
    return new


def plain_names(model: nn.Module) -> dict[str, str | None]:
    """Return the plain network's name of every tensor in the layers of peft, None where that has none."""
    names: dict[str, str | None] = {}
    for path, layer in _peft_layers(model):
        for name in layer.state_dict():
            plain = join_names(path, name.removeprefix("base_layer.")) if name.startswith("base_layer.") else None
            names[join_names(path, name)] = plain
    return names


def merged(model: nn.Module) -> dict[str, Tensor]:
    """Return tensors of the plain network with what the layers of peft learnt put in; the network is not changed.

    Raises:
        UserError: peft cannot merge a layer.
    """
    tensors: dict[str, Tensor] = {}
    for path, layer in _peft_layers(model):
        own = copy.deepcopy(layer).eval()
        try:
            own.merge()
        except (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError) as error:
            received = f"{path} ({type(layer).__module__}.{type(layer).__name__})"
            # The key is named here: whoever merges a network need not know what is in it.
            raise UserError(f"peft cannot merge this: {error}", key="finetune.peft", received=received) from error
        state = own.get_base_layer().state_dict()
        tensors |= {join_names(path, name): tensor.detach() for name, tensor in state.items()}
    return tensors


def _check_config(peft: Any, config: Any) -> None:
    if not isinstance(config, peft.PeftConfig):
        expected, received = "such as peft.LoraConfig", type(config).__name__
        raise UserError("not a config of peft", argument="peft", expected=expected, received=received)
    for option, instead in _INSTEAD.items():
        value = getattr(config, option, None)
        if value and value != "none":
            what = "this is not for peft to do here"
            raise UserError(what, argument=f"peft.{option}", received=value, fix=instead)


def _peft_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield paths and layers of peft, a shared one under each of its paths."""
    kind = importlib.import_module("peft.tuners.tuners_utils").BaseTunerLayer
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, kind) and hasattr(module, "base_layer"):
            yield path, module


def _check_layers(model: nn.Module) -> None:
    """Refuse layers of peft that would do harm where they are.

    Raises:
        UserError: There is one.
    """
    shared = [names for names in parameter_aliases(model).values() if len(names) > 1]
    for path, layer in _peft_layers(model):
        base, parent = layer.base_layer, model.get_submodule(parent_of(path))
        ties = [names for names in shared if any(inside(name, join_names(path, "base_layer")) for name in names)]
        unusual = isinstance(base, CONVOLUTIONS) and (set(base.dilation) != {1} or base.padding_mode != "zeros")
        if isinstance(base, nn.MultiheadAttention) or isinstance(parent, nn.MultiheadAttention):
            what = "peft's layers do not work in nn.MultiheadAttention"
        elif ties:
            names = [name.replace(".base_layer.", ".") for name in ties[0]]
            what = f"peft takes shared weights apart: {' and '.join(names)} are one tensor"
        elif unusual and ".lora." in type(layer).__module__:
            what = "LoRA of peft forgets the dilation and the padding mode of a convolution"
        else:
            continue
        fix = "finetune.lora, which knows that"
        raise UserError(what, argument="peft.target_modules", received=path, fix=fix)
