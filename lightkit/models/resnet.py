"""Residual networks with the parameter names of torchvision's, so that its weights load.

Shapes: B samples, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError
from lightkit.models.parts import check_dropout, check_sizes, image_size

Stem = Literal["auto", "cifar", "imagenet"]
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
"""Residual blocks of the four stages by depth; 50 is made of bottlenecks."""
IMAGENET_SIDE = 96
"""Images whose shorter side has at least this many pixels get the ImageNet stem with `stem: auto`."""


class ResNet(nn.Module):
    """ResNet (He et al. 2015, https://arxiv.org/abs/1512.03385), with the stem for large or for small images.

    With the ImageNet stem and width 64 it equals torchvision's `resnet18`, `resnet34` and `resnet50`, names included;
    the head is `fc`.

    Args:
        input_shape: `(C, H, W)` of a sample.
        num_classes: Size of the output.
        depth: 18, 34 or 50 layers.
        stem: `imagenet` (7 × 7 convolution and pooling, H/4 × W/4 after it), `cifar` (3 × 3 convolution, full size),
            or `auto`, which takes `imagenet` where the shorter side has 96 pixels or more.
        width: Channels of the first stage; each further stage has twice as many.
        zero_init: Start every residual branch at zero (https://arxiv.org/abs/1706.02677).
        dropout: Probability of dropping a feature before the head, 0 to below 1.

    Raises:
        UserError: An argument is out of its range, or the samples are not images.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        *,
        depth: int = 18,
        stem: Stem = "auto",
        width: int = 64,
        zero_init: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, side = image_size(input_shape, model="a ResNet")
        if depth not in BLOCKS:
            choices = [str(d) for d in BLOCKS]
            raise UserError("no such depth", argument="depth", received=depth, choices=choices, family="wrong-value")
        check_choice("stem", stem, get_args(Stem))
        check_sizes(num_classes=num_classes, width=width)
        check_dropout(dropout)
        large = stem == "imagenet" or (stem == "auto" and min(height, side) >= IMAGENET_SIDE)
        self.conv1 = _conv(channels, width, 7 if large else 3, stride=2 if large else 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        block: type[BasicBlock | Bottleneck] = Bottleneck if depth >= 50 else BasicBlock
        first, second, third, fourth = BLOCKS[depth]
        wide = width * block.expansion
        self.layer1 = _stage(block, width, width, first, stride=1)
        self.layer2 = _stage(block, wide, 2 * width, second, stride=2)
        self.layer3 = _stage(block, 2 * wide, 4 * width, third, stride=2)
        self.layer4 = _stage(block, 4 * wide, 8 * width, fourth, stride=2)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(8 * wide, num_classes)
        for module in self.modules():  # He initialisation as in torchvision
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init and isinstance(module, BasicBlock | Bottleneck):
                nn.init.zeros_((module.bn3 if isinstance(module, Bottleneck) else module.bn2).weight)

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, num_classes)` of images `(B, C, H, W)`."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut.

    Args:
        channels: Channels of the input.
        width: Channels of the output.
        stride: 2 halves the image.
    """

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, stride=stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, channels, H, W)` to `(B, width, H/stride, W/stride)`."""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolution beside a shortcut; the stride is in the 3 × 3 one, as in torchvision.

    Args:
        channels: Channels of the input.
        width: Channels of the 3 × 3 convolution; the output has four times as many.
        stride: 2 halves the image.
    """

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        wide = width * self.expansion
        self.conv1, self.bn1 = _conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride=stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, wide, 1), nn.BatchNorm2d(wide)
        self.downsample = _shortcut(channels, wide, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, channels, H, W)` to `(B, 4 width, H/stride, W/stride)`."""
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


def _stage(
    block: type[BasicBlock | Bottleneck], channels: int, width: int, count: int, *, stride: int
) -> nn.Sequential:
    """Make `count` blocks, of which the first changes the number of channels and the size."""
    rest = [block(width * block.expansion, width) for _ in range(count - 1)]
    return nn.Sequential(block(channels, width, stride), *rest)


def _conv(channels: int, width: int, size: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, width, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(channels: int, width: int, stride: int) -> nn.Sequential | None:
    """Make a projection where the block changes the shape; None stands for the input itself."""
    if stride == 1 and channels == width:
        return None
    return nn.Sequential(_conv(channels, width, 1, stride=stride), nn.BatchNorm2d(width))
