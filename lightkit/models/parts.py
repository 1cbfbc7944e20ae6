"""Pieces that several models share.

Shapes: B samples, C channels, H rows, W columns, F features.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from lightkit.common.errors import UserError

Activation = Literal["relu", "gelu", "silu", "leaky_relu", "elu", "selu", "tanh", "sigmoid", "identity"]
"""Names of activation layers."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}


def activation(name: str) -> nn.Module:
    """Make an activation layer by name.

    Raises:
        UserError: There is no activation of that name.
    """
    if name not in ACTIVATIONS:
        raise UserError("unknown activation", argument="activation", received=name, choices=ACTIVATIONS)
    return ACTIVATIONS[name]()


def check_choice(value: str, words: Any, *, argument: str) -> None:
    """Refuse a value that is not one of the words of a `Literal`.

    Args:
        value: The value.
        words: The `Literal`.
        argument: Name of the argument.

    Raises:
        UserError: The value is not among them.
    """
    choices = typing.get_args(words)
    if value not in choices:
        raise UserError("not a valid choice", argument=argument, received=value, choices=choices)


def check_sizes(**sizes: int | float | Sequence[int]) -> None:
    """Refuse sizes that are not positive; each keyword is the name of a model argument.

    Raises:
        UserError: A size, or an element of a list of sizes, is below 1.
    """
    for name, value in sizes.items():
        values = value if isinstance(value, Sequence) else [value]
        if not all(element >= 1 for element in values):
            raise UserError("sizes start at 1", argument=name, received=value)


def check_dropout(dropout: float) -> None:
    """Refuse a dropout probability outside `[0, 1)`.

    Raises:
        UserError: It lies outside.
    """
    if not 0.0 <= dropout < 1.0:
        raise UserError("not a probability", argument="dropout", expected="0 <= dropout < 1", received=dropout)


def image_size(input_shape: Sequence[int], *, model: str) -> tuple[int, int, int]:
    """Return `(C, H, W)` of an image model's input.

    Raises:
        UserError: The samples are not images.
    """
    if len(input_shape) != 3:
        raise UserError(
            f"{model} needs images",
            argument="input_shape",
            expected="samples of shape (channels, height, width)",
            received=tuple(input_shape),
            fix="model=mlp takes samples of any shape, model=transformer takes sequences and rows of numbers",
        )
    channels, height, width = input_shape
    return int(channels), int(height), int(width)
