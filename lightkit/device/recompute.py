"""Activation checkpointing: parts of a network compute their activations again in the backward pass.

They are not kept in memory in between (Chen et al. 2016, https://arxiv.org/abs/1604.06174).
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from functools import cache
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lightkit.common.errors import UserError
from lightkit.common.modules import inside
from lightkit.common.patterns import Matched, Pattern

KEY = "device.activation_checkpointing"
_MARK = "_recomputes"
_SMALL = 1 << 16
"""Elements of a buffer that is kept as it was whether or not it seems to have changed; masks and tables are larger."""


def recompute(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Let the modules whose names match compute their activations twice; gradients stay the same to the bit.

    Of modules inside of each other the outermost counts. Parameters, buffers and their names stay as they are, and
    copies and pickles of the model are of its own classes.

    Args:
        model: The network; changed in place.
        patterns: Name patterns of modules, such as `blocks.*`.

    Returns:
        The names of the modules that do so.

    Raises:
        UserError: A pattern matches no module.
    """
    found = {name for matched in recomputed(model, patterns) for name in matched.names}
    outermost: list[str] = []
    for name, _ in model.named_modules():  # outer ones come first
        if name in found and not any(inside(name, outer) for outer in outermost):
            outermost.append(name)
    for name in outermost:
        _change_class(model.get_submodule(name))
    return outermost


def recomputed(model: nn.Module, patterns: Sequence[str]) -> list[Matched]:
    """Find the modules that each pattern fits.

    Raises:
        UserError: A pattern matches no module.
    """
    names, matched = [name for name, _ in model.named_modules() if name], []
    for text in patterns:
        pattern = Pattern(text, key=KEY)
        found = tuple(name for name in names if pattern.fits(name))
        if not found:
            raise UserError("the pattern matches no module", key=KEY, received=text, choices=names, family="pattern")
        matched.append(Matched(KEY, text, found, modules=True))
    return matched


def recomputes(module: nn.Module) -> bool:
    """Tell whether a module computes its activations again: of those, only its inputs are kept."""
    return hasattr(type(module), _MARK)


def _change_class(module: nn.Module) -> None:
    """Give a module another class, not another method: copies of it would go on computing with its own weights.

    The replicas of DataParallel are such copies.
    """
    kind = type(module)
    if hasattr(kind, _MARK):
        return
    if parametrize.is_parametrized(module):  # it has a class of its own already, which PyTorch looks below
        kind.forward = _recomputing(kind.__bases__[0]).forward
        setattr(kind, _MARK, True)
        return
    module.__class__ = _recomputing(cast("Any", kind))


@cache
def _recomputing(kind: Any) -> Any:
    """Make the same class with a forward pass that can be done again."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *args, **kwargs)
        from torch.utils.checkpoint import checkpoint

        def contexts() -> tuple[_First, _Again]:
            first = _First(self)
            return first, _Again(first)

        plain = MethodType(kind.forward, self)
        if torch.compiler.is_compiling():  # the compiler sees to it itself that buffers change once only
            return checkpoint(plain, *args, use_reentrant=False, **kwargs)
        return checkpoint(plain, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    def plain_parts(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        make, values, *rest = tuple(kind.__reduce_ex__(self, protocol))
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            return copyreg._reconstructor, (kind, object, None), *rest  # type: ignore[attr-defined]
        return make, tuple(kind if value is type(self) else value for value in values), *rest

    own: dict[str, Any] = {"forward": forward, "__reduce_ex__": plain_parts, _MARK: True}
    return type(kind.__name__, (kind,), {**own, "__module__": kind.__module__, "__qualname__": kind.__qualname__})


class _First:
    """The forward pass; remembers what its buffers were, such as the running averages of norm layers."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.changed: list[tuple[nn.Module, str, Tensor]] = []

    def __enter__(self) -> None:
        owned = ((part, name, tensor) for part in self._module.modules() for name, tensor in part._buffers.items())
        self._before = [(part, name, t, t._version, t.clone()) for part, name, t in owned if t is not None]

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, []
        self.changed = [
            (part, name, values)
            for part, name, tensor, version, values in before
            # The version does not tell everything: norm layers change their averages behind its back.
            if values.numel() <= _SMALL or part._buffers.get(name) is not tensor or tensor._version != version
        ]


class _Again:
    """The same pass once more, on the buffers of then; it leaves those of now alone."""

    def __init__(self, first: _First) -> None:
        self._first = first

    def __enter__(self) -> None:
        self._now = [(part, name, part._buffers[name]) for part, name, _ in self._first.changed]
        for part, name, values in self._first.changed:
            part._buffers[name] = values.clone()

    def __exit__(self, *_: object) -> None:
        for part, name, tensor in self._now:
            part._buffers[name] = tensor
        self._now = []
