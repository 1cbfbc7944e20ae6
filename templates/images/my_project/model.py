"""The model: any `torch.nn.Module`. Sizes that follow from the data are asked for by their names."""

import torch
from torch import nn


class ConvNet(nn.Module):
    """Convolutions that halve the picture, then the mean over what is left of it.

    Args:
        in_channels: Channels of a picture; the data knows.
        num_classes: Outputs; the data knows.
        channels: Channels of each block.
    """

    def __init__(self, in_channels: int, num_classes: int, channels: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        blocks = []
        for before, after in zip((in_channels, *channels), channels):
            blocks += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(channels[-1], num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, without softmax: the loss has it."""
        return self.head(self.body(x).mean((2, 3)))
