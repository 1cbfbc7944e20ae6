"""Modules that are put into a network, and what adapters, prefixes and prompts share in putting them there.

Each becomes a submodule of the module that it changes, and a hook of that module uses it. Hooks are functions of a
module and use the module they are handed, so that copies, replicas and pickled networks use what is their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.modules import inside


class Injected(nn.Module):
    """A module that is no part of the plain network: none of the tensors below it are the plain network's.

    Names, adapter files and merging rest on this: whatever is put into a network is put there as a submodule of this
    class.
    """

    label = "injected module"
    """What users call it."""
    mergeable = False
    """Whether its effect can be put into weights of the plain network."""
    stands_alone = False
    """Whether calling it is all that uses its parameters; otherwise hooks of the module it is in use them."""


def injected_modules(model: nn.Module) -> Iterator[tuple[str, Injected]]:
    """Yield the path of every module that was put into a network, a shared one under each of its paths."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Injected):
            yield path, module


def join_names(path: str, name: str) -> str:
    """Return the full name of something that a module holds; the path of the network itself is empty."""
    return f"{path}.{name}" if path else name


def modules_at(model: nn.Module, paths: Sequence[str]) -> dict[str, nn.Module]:
    """Return modules by path, a shared one under its first path only.

    Args:
        model: The network.
        paths: Paths of modules in it.

    Raises:
        UserError: There is no path, or no module of that path.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    chosen: dict[int, tuple[str, nn.Module]] = {}
    for path in paths:
        if path not in modules:
            choices = filter(None, modules)
            raise UserError(
                "the network has no such module", argument="match", received=path, choices=choices, family="pattern"
            )
        chosen.setdefault(id(modules[path]), (path, modules[path]))
    if not chosen:
        raise UserError("there is no module to put it into", argument="match", received=list(paths), family="pattern")
    return dict(chosen.values())


def attach(model: nn.Module, path: str, name: str, injected: Injected) -> None:
    """Add an injected module to the one at `path` as its submodule `name`, in the same mode.

    In eval mode an `nn.TransformerEncoder` around it may pack padded sequences into nested tensors, which hooks could
    not work with, and is kept from doing so. The outputs of positions that are not padding stay the same; those of
    padding are then as they are in training, not zero.

    Raises:
        UserError: The module has something of that name.
    """
    module = model.get_submodule(path)
    if hasattr(module, name):
        received = type(module).__name__
        raise UserError(f"{path} already has something called {name}", argument="match", received=received)
    module.add_module(name, injected.train(module.training))
    for around, encoder in model.named_modules():
        if isinstance(encoder, nn.TransformerEncoder) and inside(path, around):
            encoder.use_nested_tensor = False


def new_parameter_names(model: nn.Module, known: Iterable[nn.Parameter]) -> list[str]:
    """Return the names of the parameters that are not among the known ones, in the order of the network."""
    before = {id(parameter) for parameter in known}
    return [name for name, parameter in model.named_parameters() if id(parameter) not in before]


def reference_tensor(path: str, module: nn.Module) -> Tensor:
    """Return a tensor of the device and type that a module computes with.

    Raises:
        UserError: It has no floating-point parameters.
    """
    for parameter in module.parameters():
        if parameter.is_floating_point():
            return parameter.detach()
    what = f"{path} has no layers that tell what it works with"
    raise UserError(what, argument="match", received=type(module).__name__)


Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of a call."""


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first argument of a call."""
    return args[0] if args else next(iter(kwargs.values()), None)


def first_tensor(value: Any, path: str, what: str) -> Tensor:
    """Return the input or output of a module, or the first of several.

    Args:
        value: The input or output.
        path: Of the module, for errors.
        what: Whether it is the `input` or the `output`, for errors.

    Raises:
        UserError: It is no tensor.
    """
    first = value[0] if isinstance(value, tuple) and value else value
    if not torch.is_tensor(first):
        expected = "a tensor, or a tuple that starts with one"
        raise UserError(f"the {what} of {path} is no tensor", expected=expected, received=type(first).__name__)
    return first


def replace_first_output(output: Any, new: Tensor) -> Any:
    """Return the output of a module with another first tensor."""
    if not isinstance(output, tuple):
        return new
    fields = getattr(output, "_fields", None)
    if fields:
        return output._replace(**{fields[0]: new})  # type: ignore[attr-defined]
    return (new, *output[1:])
