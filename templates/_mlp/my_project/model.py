"""The model: any `torch.nn.Module`. Sizes that follow from the data are asked for by their names."""

import torch
from torch import nn


class Net(nn.Module):
    """A network with two hidden layers.

    Args:
        in_features: Numbers in one input; the data knows.
        num_classes: Outputs; the data knows.
        width: Width of the hidden layers.
        dropout: Share of values left out while it trains.
    """

    def __init__(self, in_features: int, num_classes: int, width: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(in_features, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, without softmax: the loss has it."""
        return self.head(self.body(x))
