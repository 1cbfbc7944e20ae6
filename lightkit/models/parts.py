"""Pieces that several models share, the block of all transformers here among them.

Shapes: B samples, C channels, H rows, W columns, F features; T positions, D model width, N heads, K = D / N width of a
head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError

Activation = Literal["relu", "gelu", "silu", "leaky_relu", "elu", "selu", "tanh", "sigmoid", "identity"]
"""Names of activation layers."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}


def activation(name: str) -> nn.Module:
    """Make an activation layer by name.

    Raises:
        UserError: There is no activation of that name.
    """
    check_choice("activation", name, ACTIVATIONS, "unknown activation")
    return ACTIVATIONS[name]()


def check_sizes(**sizes: int | float | Sequence[int]) -> None:
    """Refuse sizes that are not positive; each keyword is the name of a model argument.

    Raises:
        UserError: A size, or an element of a list of sizes, is below 1.
    """
    for name, value in sizes.items():
        values = value if isinstance(value, Sequence) else [value]
        if not all(element >= 1 for element in values):
            raise UserError("sizes start at 1", argument=name, received=value, family="wrong-value")


def check_dropout(dropout: float) -> None:
    """Refuse a dropout probability outside `[0, 1)`.

    Raises:
        UserError: It lies outside.
    """
    check_range("dropout", dropout, low=0, below=1, what="not a probability")


def image_size(input_shape: Sequence[int], *, model: str) -> tuple[int, int, int]:
    """Return `(C, H, W)` of an image model's input.

    Raises:
        UserError: The samples are not images.
    """
    if len(input_shape) != 3:
        what, expected = f"{model} needs images", "samples of shape (channels, height, width)"
        fix = "model=mlp takes samples of any shape, model=transformer takes sequences and rows of numbers"
        raise UserError(what, argument="input_shape", expected=expected, received=tuple(input_shape), fix=fix)
    channels, height, width = input_shape
    return int(channels), int(height), int(width)


Positions = Literal["learned", "rotary", "none"]


class Attention(nn.Module):
    """Multi-head self-attention (https://arxiv.org/abs/1706.03762) through `F.scaled_dot_product_attention`.

    Args:
        dim: Model width, D.
        heads: Number of heads, N; divides D.
        dropout: Probability of dropping an attention weight in training.
        causal: Let a position see itself and earlier ones only.
        bias: Biases in the projections.
    """

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, rotary: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Map `(B, T, D)` to `(B, T, D)`; `rotary` is the table of `rotary_table`, `mask` says what is seen."""
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(batch, length, dim))


class Block(nn.Module):
    """Pre-norm transformer block: attention and a two-layer perceptron, each beside a shortcut.

    Args:
        dim: Model width, D.
        heads: Number of heads; divides D.
        mlp_ratio: Width of the perceptron's hidden layer relative to D.
        dropout: Probability of dropping an attention weight, or a feature at the end of a branch.
        causal: Let a position see itself and earlier ones only.
        bias: Biases in linear and norm layers.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        causal: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        hidden = int(dim * mlp_ratio)
        self.norm1 = nn.LayerNorm(dim, bias=bias)
        self.attn = Attention(dim, heads, dropout=dropout, causal=causal, bias=bias)
        self.norm2 = nn.LayerNorm(dim, bias=bias)
        self.fc1 = nn.Linear(dim, hidden, bias=bias)
        self.fc2 = nn.Linear(hidden, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotary: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Map `(B, T, D)` to `(B, T, D)`; see `Attention.forward`."""
        x = x + self.dropout(self.attn(self.norm1(x), rotary, mask))
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


def rotary_table(length: int, width: int, *, base: float = 10000.0) -> Tensor:
    """Compute cosines and sines of rotary positions (RoFormer, https://arxiv.org/abs/2104.09864), `(2, length, width)`.

    Args:
        length: Number of positions.
        width: Width of a head, even.
        base: Slowest wavelength in positions, over 2 pi.
    """
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn queries or keys `(B, N, T, K)` by the angles of their positions; `table` is `(2, T, K)`."""
    cos, sin = table.to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def check_transformer(*, dim: int, depth: int, heads: int, mlp_ratio: float, dropout: float, positions: str) -> None:
    """Refuse sizes no transformer can have.

    Raises:
        UserError: An argument is out of its range, or the heads don't divide the width.
    """
    check_sizes(dim=dim, depth=depth, heads=heads)
    check_dropout(dropout)
    check_choice("positions", positions, get_args(Positions))
    check_range("mlp_ratio", mlp_ratio, above=0, what="the perceptron needs a width")
    if dim % heads:
        what, expected = "the heads don't divide the width", f"a divisor of {dim}"
        raise UserError(what, argument="heads", expected=expected, received=heads, family="wrong-value")
    if positions == "rotary" and dim // heads % 2:
        what, expected = "rotary positions need an even width of a head", "dim / heads even"
        raise UserError(what, argument="heads", expected=expected, received=heads, family="wrong-value")


def init_weights(model: nn.Module, *, depth: int, std: float = 0.02) -> None:
    """Initialise weights as GPT-2: small and normal, smaller ones where a branch ends, biases zero.

    See https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf, 2.3.

    Args:
        model: Any module; linear and embedding layers and direct parameters with two or more dimensions are set.
        depth: Number of blocks.
        std: Standard deviation of the weights.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            ends_branch = name.endswith(("attn.proj.weight", "fc2.weight"))
            nn.init.normal_(parameter, std=std / (2 * depth) ** 0.5 if ends_branch else std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
