"""Recurrent language model.

Shapes: B samples, T positions, D embedding width, V vocabulary size.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError
from lightkit.models.parts import check_dropout, check_sizes

Cell = Literal["lstm", "gru"]


class RecurrentLM(nn.Module):
    """LSTM or GRU that predicts the next token.

    See https://doi.org/10.1162/neco.1997.9.8.1735 and https://arxiv.org/abs/1406.1078.

    Each sequence starts from an empty memory.

    Args:
        vocab_size: Number of tokens, V.
        cell: `lstm` or `gru`.
        dim: Width of the token embedding, D.
        hidden: Width of the memory.
        depth: Number of layers.
        dropout: Probability of dropping a feature between layers and before the head, 0 to below 1.
        tie: Use the token embedding as the weights of the head (https://arxiv.org/abs/1608.05859); needs `dim ==
            hidden`.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        cell: Cell = "lstm",
        dim: int = 64,
        hidden: int = 256,
        depth: int = 1,
        dropout: float = 0.0,
        tie: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, dim=dim, hidden=hidden, depth=depth)
        check_choice("cell", cell, get_args(Cell))
        check_dropout(dropout)
        if tie and dim != hidden:
            what = "tied weights need equal widths"
            raise UserError(what, argument="dim", expected=f"{hidden}", received=dim, family="contradiction")
        self.embed = nn.Embedding(vocab_size, dim)
        layers = nn.LSTM if cell == "lstm" else nn.GRU
        self.rnn = layers(dim, hidden, depth, batch_first=True, dropout=dropout if depth > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocab_size)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute logits `(B, T, V)` of the token after each position of `(B, T)` token numbers."""
        output, _ = self.rnn(self.dropout(self.embed(tokens)))
        return self.head(self.dropout(output))
