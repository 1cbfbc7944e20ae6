"""Metrics of language models: how many bits, guesses or errors a symbol costs.

Shapes: B sequences, T positions, V symbols of the vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric


class _TokenMetric(Metric):
    """Sums negative log-likelihoods and hits over all symbols.

    Args:
        ignore_index: Target value that is not counted, such as padding.
    """

    full_state_update = False
    nll: Tensor
    hits: Tensor
    symbols: Tensor

    def __init__(self, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self.add_state("nll", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("hits", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("symbols", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            preds: Logits `(B, T, V)`.
            target: Symbols `(B, T)`.

        Raises:
            ValueError: The shapes do not fit each other.
        """
        if preds.shape[:-1] != target.shape:
            raise ValueError(f"logits (B, T, V) and targets (B, T) expected, got {preds.shape} and {target.shape}")
        logits, symbols = preds.flatten(0, -2), target.flatten()
        losses = F.cross_entropy(logits.float(), symbols, reduction="none", ignore_index=self.ignore_index)
        counted = symbols != self.ignore_index
        self.nll = self.nll + losses.to(self.nll.dtype).sum()
        self.hits = self.hits + ((logits.argmax(-1) == symbols) & counted).sum()
        self.symbols = self.symbols + counted.sum()

    def _mean_nll(self) -> Tensor:
        return self.nll / self.symbols


class BitsPerCharacter(_TokenMetric):
    """Mean negative log-likelihood of a symbol in bits: what an ideal coder would need with this model."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the mean over all symbols."""
        return self._mean_nll() / math.log(2)


class Perplexity(_TokenMetric):
    """Exponential of the mean negative log-likelihood: among how many symbols the model as good as guesses."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the value over all symbols."""
        return self._mean_nll().exp()


class TokenAccuracy(_TokenMetric):
    """Share of symbols whose most likely guess is right."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the share over all symbols."""
        return self.hits.to(self.nll.dtype) / self.symbols
