"""Transformers: an encoder that classifies sequences and images, and a decoder that models text.

Shapes: B samples, T positions, D model width, V vocabulary size, C channels, H rows, W columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError
from lightkit.models.parts import Block, Positions, check_sizes, check_transformer, init_weights, rotary_table

Pooling = Literal["mean", "cls"]
AUTO_TOKENS = 64
"""`patch: null` cuts an image into at most this many patches."""


class TransformerClassifier(nn.Module):
    """Pre-norm transformer encoder over tokens, rows of numbers, single numbers, or patches of an image.

    The shape of a sample decides what a position is: `(T,)` with `vocab_size` a token, `(T,)` without it a number with
    weights of its own (FT-Transformer, https://arxiv.org/abs/2106.11959), `(T, F)` a row of F numbers, `(C, H, W)` a
    square patch (ViT, https://arxiv.org/abs/2010.11929).

    Args:
        input_shape: Shape of a sample; of tokens the longest.
        num_classes: Size of the output.
        vocab_size: Number of tokens, when samples are token numbers.
        padding_idx: Token that fills up shorter samples: it is neither seen nor averaged. None where there is none.
        task: `tagging` gives an output for each token, any other one for each sample.
        dim: Model width, D.
        depth: Number of blocks.
        heads: Number of attention heads; divides D.
        mlp_ratio: Width of each block's hidden layer relative to D.
        dropout: Probability of dropping an attention weight or a feature in training, 0 to below 1.
        positions: `learned` vectors, `rotary` angles, or `none`, which makes a set of the sequence.
        patch: Side of an image patch in pixels; None takes the smallest from 2 on that makes at most 64 patches.
        pool: What the head sees: the `mean` of all positions, or an extra `cls` token.

    Raises:
        UserError: An argument is out of its range or does not fit the samples.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        *,
        vocab_size: int | None = None,
        padding_idx: int | None = None,
        task: str = "multiclass",
        dim: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        positions: Positions = "learned",
        patch: int | None = None,
        pool: Pooling = "mean",
    ) -> None:
        super().__init__()
        check_transformer(dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio, dropout=dropout, positions=positions)
        check_sizes(num_classes=num_classes)
        check_choice("pool", pool, get_args(Pooling))
        values, length = _input_layer(input_shape, vocab_size=vocab_size, dim=dim, patch=patch)
        self.embed = Embed(values, length, dim, learned=positions == "learned", cls=pool == "cls", dropout=dropout)
        table = rotary_table(length + (pool == "cls"), dim // heads) if positions == "rotary" else None
        self.register_buffer("rotary", table, persistent=False)
        self.blocks = nn.ModuleList(Block(dim, heads, mlp_ratio=mlp_ratio, dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)
        self.pool, self.padding_idx, self.tags = pool, padding_idx, task == "tagging"
        init_weights(self, depth=depth)

    rotary: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Compute outputs `(B, num_classes)` of samples `(B, *input_shape)`; of tags `(B, num_classes, T)`."""
        cls, there = int(self.pool == "cls"), None
        if self.padding_idx is not None:
            there = F.pad(x != self.padding_idx, (cls, 0), value=True)
        x = self.embed(x)
        rotary = self.rotary if self.rotary is None else self.rotary[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x, rotary, None if there is None else there[:, None, None])
        x = self.norm(x)
        if self.tags:
            return self.head(x[:, cls:]).transpose(1, 2)
        if cls or there is None:
            return self.head(x[:, 0] if cls else x.mean(dim=1))
        return self.head((x * there.unsqueeze(2)).sum(dim=1) / there.sum(dim=1, keepdim=True).clamp(min=1))


class TransformerLM(nn.Module):
    """Pre-norm transformer decoder that predicts the next token (GPT-2 without its tokenizer).

    Args:
        vocab_size: Number of tokens, V.
        context_length: Longest sequence, T.
        dim: Model width, D.
        depth: Number of blocks.
        heads: Number of attention heads; divides D.
        mlp_ratio: Width of each block's hidden layer relative to D.
        dropout: Probability of dropping an attention weight or a feature in training, 0 to below 1.
        positions: `learned` vectors or `rotary` angles; `none` leaves only the causal mask to tell positions apart.
        tie: Use the token embedding as the weights of the head (https://arxiv.org/abs/1608.05859).
        bias: Biases in linear and norm layers.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        *,
        dim: int = 128,
        depth: int = 4,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        positions: Positions = "rotary",
        tie: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_transformer(dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio, dropout=dropout, positions=positions)
        check_sizes(vocab_size=vocab_size, context_length=context_length)
        self.context_length = context_length
        values = nn.Embedding(vocab_size, dim)
        self.embed = Embed(values, context_length, dim, learned=positions == "learned", dropout=dropout)
        table = rotary_table(context_length, dim // heads) if positions == "rotary" else None
        self.register_buffer("rotary", table, persistent=False)
        options = {"mlp_ratio": mlp_ratio, "dropout": dropout}
        self.blocks = nn.ModuleList(Block(dim, heads, causal=True, bias=bias, **options) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, bias=bias)
        self.head = nn.Linear(dim, vocab_size, bias=False)
        if tie:
            self.head.weight = values.weight
        init_weights(self, depth=depth)

    rotary: Tensor | None

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute logits `(B, T, V)` of the token after each position of `(B, T)` token numbers.

        Raises:
            UserError: The sequence is longer than `context_length`.
        """
        length = tokens.shape[1]
        if length > self.context_length:
            expected = f"at most {self.context_length} tokens"
            raise UserError("the sequence is too long", key="model.context_length", expected=expected, received=length)
        rotary = None if self.rotary is None else self.rotary[:, :length]
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, rotary)
        return self.head(self.norm(x))


class Embed(nn.Module):
    """From samples to vectors `(B, T, D)`, with what tells their positions.

    Args:
        values: Turns samples into `(B, T, D)`.
        length: Longest sequence, T.
        dim: Model width, D.
        learned: Add a learned vector per position.
        cls: Put an extra learned vector in front.
        dropout: Probability of dropping a feature in training.
    """

    def __init__(
        self, values: nn.Module, length: int, dim: int, *, learned: bool, cls: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.values = values
        self.positions = nn.Parameter(torch.zeros(length, dim)) if learned else None
        self.cls = nn.Parameter(torch.zeros(1, dim)) if cls else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Compute vectors `(B, T, D)`, one more position with `cls`."""
        x = self.values(x)
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)
        return self.dropout(x)


class Numbers(nn.Module):
    """One vector per number of a row: `(B, T)` → `(B, T, D)`, with weights of its own for each of the T places.

    Args:
        length: Numbers per sample, T.
        dim: Model width, D.
    """

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, dim))
        self.bias = nn.Parameter(torch.empty(length, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, T)` to `(B, T, D)`."""
        return x.unsqueeze(-1) * self.weight + self.bias


class Patches(nn.Module):
    """One vector per square of an image, row by row: `(B, C, H, W)` → `(B, T, D)`.

    Args:
        channels: Channels of the image, C.
        dim: Model width, D.
        side: Side of a patch in pixels.
    """

    def __init__(self, channels: int, dim: int, side: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, dim, side, stride=side)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, T, D)`."""
        return self.conv(x).flatten(2).transpose(1, 2)


def _input_layer(
    input_shape: Sequence[int], *, vocab_size: int | None, dim: int, patch: int | None
) -> tuple[nn.Module, int]:
    """Make the layer that turns samples of this shape into vectors, and tell how many vectors."""
    if len(input_shape) == 1:
        length = input_shape[0]
        return (Numbers(length, dim) if vocab_size is None else nn.Embedding(vocab_size, dim)), length
    if len(input_shape) == 2:
        return nn.Linear(input_shape[1], dim), input_shape[0]
    if len(input_shape) != 3:
        expected = "(T,), (T, F) or (C, H, W)"
        received = tuple(input_shape)
        raise UserError("no transformer for this shape", argument="input_shape", expected=expected, received=received)
    channels, height, width = input_shape
    side = _patch_side(height, width, patch)
    return Patches(channels, dim, side), height * width // side**2


def _patch_side(height: int, width: int, patch: int | None) -> int:
    """Check the side of a patch, or choose the smallest that makes few enough patches."""
    common = math.gcd(height, width)
    sides = [side for side in range(1, common + 1) if common % side == 0]
    if patch is None:
        fitting = [side for side in sides if side >= 2 and height * width // side**2 <= AUTO_TOKENS]
        if fitting:
            return fitting[0]
    elif patch in sides:
        return patch
    raise UserError(
        f"no patch of this side tiles an image of {height} × {width} pixels",
        argument="patch",
        received=patch,
        choices=[str(side) for side in sides],
        fix="choose a divisor of height and width, or resize the images",
    )
