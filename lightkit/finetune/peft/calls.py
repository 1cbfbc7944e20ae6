"""The call of a module as its hooks see it: arguments that go in, and the output, of which the first is a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError

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
