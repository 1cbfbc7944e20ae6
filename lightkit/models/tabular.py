"""Networks for tables with columns of names.

Shapes: B samples, F features, E numbers of all vectors together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightkit.common.argument_checks import check_range
from lightkit.models.mlp import MLP, Norm
from lightkit.models.parts import Activation


class Tabular(nn.Module):
    """A learnt vector for each name of some columns, and an MLP (Guo and Berkhahn, https://arxiv.org/abs/1604.06737).

    The vectors are as long as in fastai's tabular learner (`emb_sz_rule`, https://docs.fast.ai/tabular.model.html).
    Parameters are named `embeddings.0.weight`, …, `mlp.layers.linear0.weight`, …, `mlp.head.weight`.

    Args:
        in_features: Features of a row, F.
        num_classes: Size of the output.
        cardinalities: For each feature how many names its numbers stand for, 0 for features that are no names; features
            beyond them are none, either.
        embedding_dim: Numbers of each vector; None takes 1.6 · names^0.56, 600 at most.
        hidden: See `MLP`.
        activation: See `MLP`.
        norm: See `MLP`.
        dropout: See `MLP`.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        cardinalities: Sequence[int] = (),
        embedding_dim: int | None = None,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        norm: Norm = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_range("embedding_dim", embedding_dim, low=1, what="too small")
        self.places = [place for place, size in enumerate(cardinalities) if size]
        self.numbers = [place for place in range(in_features) if place not in self.places]
        self.sizes = [cardinalities[place] for place in self.places]
        dims = [embedding_dim or min(600, round(1.6 * size**0.56)) for size in self.sizes]
        self.embeddings = nn.ModuleList(map(nn.Embedding, self.sizes, dims))
        width = len(self.numbers) + sum(dims)
        self.mlp = MLP(width, num_classes, hidden=hidden, activation=activation, norm=norm, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, num_classes)` of rows `(B, F)`; a number that stands for no name counts as 0."""
        vectors = []
        for place, size, table in zip(self.places, self.sizes, self.embeddings, strict=True):
            number = x[:, place].round().long()
            vectors.append(table(number * ((number >= 0) & (number < size))))
        return self.mlp(torch.cat([x[:, self.numbers], *vectors], 1))
