"""Small data for the models of transformers."""

from __future__ import annotations

import torch

from lightkit.data import DataInfo
from lightkit.data.tensors import TensorData

TOKENS, POSITIONS = 30, 6


def sentences(rows: int = 48) -> TensorData:
    """Token numbers, and the class that the first of them belongs to."""
    x = torch.randint(1, TOKENS, (rows, POSITIONS), generator=torch.Generator().manual_seed(0))
    return TensorData(x, x[:, 0] % 3)


def continuations(rows: int = 48) -> TensorData:
    """Token numbers, and those that follow."""
    x = torch.randint(1, TOKENS, (rows, POSITIONS + 1), generator=torch.Generator().manual_seed(0))
    info = DataInfo("language_modeling", (POSITIONS,), 0, vocab_size=TOKENS, context_length=POSITIONS)
    return TensorData(x[:, :-1], x[:, 1:], info)
