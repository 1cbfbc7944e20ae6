"""Small convolutional networks for images of any size.

Shapes: B samples, C channels, H rows, W columns.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError
from lightkit.models.parts import Activation, check_dropout, check_sizes, image_size
from lightkit.models.parts import activation as make_activation

Halving = Literal["max", "avg", "stride"]
Pooling = Literal["avg", "max", "flatten"]


class CNN(nn.Module):
    """Stages of convolution, batch norm and activation, halved in size in between, then pooling and a linear head.

    Parameters are named `stages.0.conv0.weight`, `stages.0.norm0.weight`, …, `head.weight`. Images that are
    already down to one row or column are not halved further, so any size works.

    Args:
        input_shape: `(C, H, W)` of a sample.
        num_classes: Size of the output.
        channels: Channels of each stage, in order.
        depth: Convolutions per stage.
        kernel_size: Side of the kernels in pixels, odd.
        activation: `relu`, `gelu`, `silu`, `leaky_relu`, `elu`, `selu`, `tanh`, `sigmoid` or `identity`.
        pool: Halving between stages: `max`, `avg`, or `stride` in the first convolution of a stage.
        head: Global pooling before the head, `avg` or `max`; `flatten` keeps every position in a larger head.
        dropout: Probability of dropping a whole channel after each stage but the last, and a feature before the head.

    Raises:
        UserError: An argument is out of its range, or the samples are not images.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        *,
        channels: Sequence[int] = (32, 64, 128),
        depth: int = 1,
        kernel_size: int = 3,
        activation: Activation = "relu",
        pool: Halving = "max",
        head: Pooling = "avg",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size_in, height, width = image_size(input_shape, model="the CNN")
        check_sizes(num_classes=num_classes, channels=channels, depth=depth, kernel_size=kernel_size)
        check_choice("pool", pool, get_args(Halving))
        check_choice("head", head, get_args(Pooling))
        check_dropout(dropout)
        if not channels:
            what = "a CNN needs at least one stage"
            raise UserError(what, argument="channels", received=list(channels), family="wrong-value")
        if kernel_size % 2 == 0:
            what, family = "kernels need a middle pixel", "wrong-value"
            raise UserError(what, argument="kernel_size", expected="odd", received=kernel_size, family=family)
        stage = functools.partial(_stage, depth=depth, kernel_size=kernel_size, activation=activation)
        stages = []
        for i, size_out in enumerate(channels):
            halve = i > 0 and min(height, width) > 1
            if halve:
                height, width = (height + 1) // 2, (width + 1) // 2
            stages.append(stage(size_in, size_out, pool=pool if halve else None, dropout=dropout if i else 0.0))
            size_in = size_out
        self.stages = nn.Sequential(*stages)
        pooling = nn.AdaptiveAvgPool2d(1) if head == "avg" else nn.AdaptiveMaxPool2d(1)
        self.pool = nn.Identity() if head == "flatten" else pooling
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(size_in * (height * width if head == "flatten" else 1), num_classes)
        for module in self.modules():  # He initialisation, https://arxiv.org/abs/1502.01852
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, num_classes)` of images `(B, C, H, W)`."""
        return self.head(self.dropout(self.pool(self.stages(x)).flatten(1)))


class UNet(nn.Module):
    """A path of stages that halve the image, and one back up that sees each of them again.

    After https://arxiv.org/abs/1505.04597, with batch norm, padding and nearest enlargement in place of transposed
    convolutions. Parameters are named `down.0.conv0.weight`, …, `up.0.conv0.weight`, …, `head.weight`.

    Args:
        in_channels: Channels of the images, C.
        num_classes: Outputs for each pixel, K.
        channels: Channels of each stage, from the full size down.
        depth: Convolutions per stage.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self, in_channels: int, num_classes: int, channels: Sequence[int] = (16, 32, 64), depth: int = 2
    ) -> None:
        super().__init__()
        check_sizes(in_channels=in_channels, num_classes=num_classes, channels=channels, depth=depth)
        stage = functools.partial(_stage, depth=depth, kernel_size=3, activation="relu", dropout=0.0)
        below = [*itertools.pairwise(channels)]
        deeper = (stage(wide, deep, pool="max") for wide, deep in below)
        self.down = nn.ModuleList([stage(in_channels, channels[0], pool=None), *deeper])
        self.up = nn.ModuleList(stage(wide + deep, wide, pool=None) for wide, deep in reversed(below))
        self.head = nn.Conv2d(channels[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, num_classes, H, W)` of images `(B, C, H, W)`."""
        seen = [x := part(x) for part in self.down]
        for part, beside in zip(self.up, reversed(seen[:-1])):
            x = part(torch.cat([F.interpolate(x, beside.shape[-2:]), beside], 1))
        return self.head(x)


def _stage(
    size_in: int, size_out: int, *, depth: int, kernel_size: int, activation: str, pool: str | None, dropout: float
) -> nn.Sequential:
    """Make `depth` blocks of convolution, norm and activation; `pool` halves the image first, None does not."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if dropout:
        layers["dropout"] = nn.Dropout2d(dropout)
    if pool in ("max", "avg"):
        layers["pool"] = (nn.MaxPool2d if pool == "max" else nn.AvgPool2d)(2, ceil_mode=True)
    for i in range(depth):
        stride = 2 if pool == "stride" and i == 0 else 1
        conv = nn.Conv2d(size_in, size_out, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
        layers |= {
            f"conv{i}": conv,
            f"norm{i}": nn.BatchNorm2d(size_out),
            f"activation{i}": make_activation(activation),
        }
        size_in = size_out
    return nn.Sequential(layers)
