"""The model: any `torch.nn.Module`. Sizes that follow from the data are asked for by their names."""

import torch
from torch import nn


class Recurrent(nn.Module):
    """Predicts the next character from those before.

    Args:
        vocab_size: Characters that there are; the data knows.
        dim: Width of what stands for a character.
        hidden: Width of the memory.
    """

    def __init__(self, vocab_size: int, dim: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.body = nn.GRU(dim, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocab_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, time, vocabulary)."""
        return self.head(self.body(self.embed(x))[0])
