"""Small operations on the tree of a network's modules."""

from __future__ import annotations

import re

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
HEADS = ("head", "heads", "fc", "classifier", "lm_head", "last_linear", "score", "output", "cls")
"""What the output layer, or the part that ends in it, is called in lightkit, torchvision, timm and transformers."""
_NORM_NAME = re.compile(r"norm(\d?d)?(act(\d?d)?)?$", re.IGNORECASE)


_BIAS = re.compile(r"^bias(?![a-z])|bias$")
_MADE = re.compile(r"(?:^|\.)parametrizations\.([^.]+)\.")
"""A tensor with parametrizations, in the names of what it is made of."""


class _OfTransposedWeight(type):
    """Makes `isinstance` go by what a module holds: its class is that of a package that need not be there."""

    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, nn.Module) or not isinstance(getattr(instance, "nf", None), int):
            return False
        named = any(kind.__name__ == "Conv1D" for kind in type(instance).__mro__)
        weight = getattr(instance, "weight", None) if named else None
        return isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[1] == instance.nf


class TransposedLinear(nn.Module, metaclass=_OfTransposedWeight):
    """A linear layer with a weight of inputs × outputs: `Conv1D`, with which transformers builds GPT-2 and the like."""

    nf: int
    """Number of outputs."""
    weight: Tensor
    bias: Tensor


def is_bias(name: str) -> bool:
    """Tell whether a parameter is a bias: its own name begins or ends so (`bias`, `in_proj_bias`, `bias_ih_l0`)."""
    made = _MADE.search(name)
    return _BIAS.search(made.group(1) if made else name.rpartition(".")[2]) is not None


def is_norm(module: nn.Module) -> bool:
    """Tell whether it is a norm layer: of PyTorch, or a class whose name ends in Norm, Norm2d, NormAct and the like."""
    return isinstance(module, _NORMS) or _NORM_NAME.search(type(module).__name__) is not None


def has_statistics(module: nn.Module) -> bool:
    """Tell whether it is a norm layer that keeps running statistics in training."""
    return is_norm(module) and getattr(module, "running_mean", None) is not None


def parent_of(path: str) -> str:
    """Return the dotted path one level up; empty for the network itself."""
    return path.rpartition(".")[0]


def inside(name: str, path: str) -> bool:
    """Tell whether a dotted name is the path itself or lies below it; everything lies in the empty path."""
    return not path or name == path or name.startswith(f"{path}.")


def replace_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module in the place of another one."""
    setattr(model.get_submodule(parent_of(path)), path.rpartition(".")[2], module)


def parameter_aliases(model: nn.Module) -> dict[str, list[str]]:
    """Map the first name of every parameter to all its names, where modules share it."""
    first: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(first.setdefault(id(parameter), name), []).append(name)
    return found


def path_of(model: nn.Module, wanted: nn.Module) -> str | None:
    """Find where in a network a module is; None where it is not."""
    return next((path for path, module in model.named_modules() if module is wanted), None)
