"""Pieces that several models share.

Shapes: B samples, C channels, H rows, W columns, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from lightkit.common.argument_checks import check_choice, check_range
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
    check_choice("activation", name, ACTIVATIONS, "unknown activation")
    return ACTIVATIONS[name]()


def check_sizes(**sizes: int | float | Sequence[int]) -> None:
    """Refuse sizes that are not positive; each keyword is the name of a model argument.

    Raises:
        UserError: A size, or an element of a list of sizes, is below 1.
    """
    for name, value in sizes.items():
        values = value if isinstance(value, Sequence) else [value]
        if not all(element >= 1 for element in values):
            raise UserError("sizes start at 1", argument=name, received=value, family="wrong-value")


def check_dropout(dropout: float) -> None:
    """Refuse a dropout probability outside `[0, 1)`.

    Raises:
        UserError: It lies outside.
    """
    check_range("dropout", dropout, low=0, below=1, what="not a probability")


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
