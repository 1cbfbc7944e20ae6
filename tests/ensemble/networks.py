"""Networks that are harder to train at once than most: shared tensors, kernels for whole layers."""

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


class Encoder(nn.Module):
    """PyTorch's own encoder over the numbers of an input, a token each.

    Args:
        in_features: Numbers of an input.
        num_classes: Outputs.
        dropout: Share that is dropped.
    """

    def __init__(self, in_features: int, num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, C)` of inputs `(B, F)`."""
        return self.head(self.encoder(self.embed(x[..., None])).mean(1))
