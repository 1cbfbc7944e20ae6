"""Modules that get a submodule which a hook uses: what adapters, prefixes and prompts share.

Hooks are functions of a module and use the module they are handed, so that copies, replicas and pickled networks use
what is their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.modules import inside
from lightkit.finetune.peft.injected import Injected


def find_hosts(model: nn.Module, paths: Sequence[str], *, key: str) -> dict[str, nn.Module]:
    """Modules by path, a shared one under its first path only.

    Args:
        model: The network.
        paths: Paths of modules in it.
        key: Where the options stand in the configuration, for errors.

    Raises:
        UserError: There is no path, or no module of that path.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[int, tuple[str, nn.Module]] = {}
    for path in paths:
        if path not in modules:
            raise UserError(
                "the network has no such module", key=f"{key}.match", received=path, choices=filter(None, modules)
            )
        found.setdefault(id(modules[path]), (path, modules[path]))
    if not found:
        raise UserError("there is no module to put it into", key=f"{key}.match", received=list(paths))
    return dict(found.values())


def give(path: str, host: nn.Module, name: str, module: Injected, *, key: str) -> None:
    """Make a module a submodule of its host, in the same mode.

    Raises:
        UserError: The host has something of that name.
    """
    if hasattr(host, name):
        raise UserError(f"{path} already has something called {name}", key=f"{key}.match", received=type(host).__name__)
    host.add_module(name, module.train(host.training))


def new_names(model: nn.Module, known: Iterable[nn.Parameter]) -> list[str]:
    """Names of the parameters that are not among the known ones, in the order of the network."""
    before = {id(parameter) for parameter in known}
    return [name for name, parameter in model.named_parameters() if id(parameter) not in before]


def keep_padding(model: nn.Module, paths: Iterable[str]) -> None:
    """Have the encoders around these modules pass on padded sequences.

    In eval mode `nn.TransformerEncoder` may pack them into nested tensors, which hooks could not work with. The outputs
    of positions that are not padding stay the same; those of padding are then as they are in training, not zero.
    """
    paths = list(paths)
    for path, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder) and any(inside(host, path) for host in paths):
            module.use_nested_tensor = False


def sample_of(path: str, host: nn.Module, *, key: str) -> Tensor:
    """A tensor of the device and type that a module computes with.

    Raises:
        UserError: It has no parameters with fractions.
    """
    for parameter in host.parameters():
        if parameter.is_floating_point():
            return parameter.detach()
    raise UserError(
        f"{path} has no layers that tell what it works with", key=f"{key}.match", received=type(host).__name__
    )


def first_tensor(value: Any, path: str, what: str) -> Tensor:
    """The input or output of a module, or the first of several.

    Args:
        value: The input or output.
        path: Of the module, for errors.
        what: What it is, for errors.

    Raises:
        UserError: It is no tensor.
    """
    first = value[0] if isinstance(value, tuple) and value else value
    if not torch.is_tensor(first):
        expected = "a tensor, or a tuple that starts with one"
        raise UserError(f"the {what} of {path} is no tensor", expected=expected, received=type(first).__name__)
    return first


def with_first_output(output: Any, new: Tensor) -> Any:
    """The output with another first tensor."""
    if not isinstance(output, tuple):
        return new
    fields = getattr(output, "_fields", None)
    if fields:
        return output._replace(**{fields[0]: new})  # type: ignore[attr-defined]
    return (new, *output[1:])
