"""Networks whose modules share tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """An encoder and a decoder with one weight, a block that is used twice, and a buffer under two names.

    Args:
        in_features: Numbers of an input.
        num_classes: Outputs.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(in_features, in_features, bias=False)
        self.decoder = nn.Linear(in_features, in_features)
        self.decoder.weight = self.encoder.weight
        self.block = nn.Sequential(nn.Linear(in_features, in_features), nn.BatchNorm1d(in_features))
        self.again = self.block
        self.head = nn.Linear(in_features, num_classes)
        scale = torch.full((in_features,), 0.5)
        self.register_buffer("scale", scale)
        self.register_buffer("same_scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, C)` of inputs `(B, F)`."""
        x = self.decoder(torch.tanh(self.encoder(x * self.scale)))
        return self.head(self.again(torch.relu(self.block(x))) * self.same_scale)
