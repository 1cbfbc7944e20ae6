"""The two matrices of LoRA, beside a weight (`LowRankWeight`) or beside a layer (`LowRankPath`).

Shapes: O × I the weight as a matrix (a convolution's I is input channels of a group times the kernel's size; an
embedding has one row per token), R the rank, P matrices stacked in one tensor (3 in a packed attention projection).
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.finetune.peft.feature_dims import CONVOLUTION
from lightkit.finetune.peft.injected import Injected

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LowRank(Injected):
    """`scale · B A`, which is added to a weight (LoRA, https://arxiv.org/abs/2106.09685); B starts at zero.

    Args:
        weight: The weight; gives size, device and type of the matrices.
        rank: R.
        scale: Factor on the product.
        dropout: Probability of dropping an input of the product in training.
        parts: Matrices stacked in the weight, P; each gets matrices of its own.
        transposed: The weight is I × O; it then is a single matrix.
        normal: A starts with standard deviation 1, as for embeddings, in place of uniform within ± 1 / √I.
        generator: Draws A; None takes the global generator.
        share_with: Take the matrices of this one: the weight is the same tensor.
    """

    label = "LoRA"
    mergeable = True
    lora_A: nn.Parameter  # noqa: N815 - the paper's names, as in every checkpoint of LoRA
    lora_B: nn.Parameter  # noqa: N815

    def __init__(
        self,
        weight: Tensor,
        rank: int,
        *,
        scale: float,
        dropout: float = 0.0,
        parts: int = 1,
        transposed: bool = False,
        normal: bool = False,
        generator: torch.Generator | None = None,
        share_with: LowRank | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.scale, self.parts, self.transposed = rank, scale, parts, transposed
        self.merged = False
        self.dropout = nn.Dropout(dropout)
        if share_with is not None:
            self.lora_A, self.lora_B = share_with.lora_A, share_with.lora_B
            return
        rows, columns = matrix_shape(weight.t() if transposed else weight, parts)
        stacked = (parts,) if parts > 1 else ()
        self.lora_A = nn.Parameter(weight.new_empty(*stacked, rank, columns, requires_grad=True))
        self.lora_B = nn.Parameter(weight.new_zeros(*stacked, rows, rank, requires_grad=True))
        with torch.no_grad():
            if normal:
                self.lora_A.normal_(generator=generator)
            else:
                self.lora_A.uniform_(-(columns**-0.5), columns**-0.5, generator=generator)

    def added_to(self, weight: Tensor, *, drop: bool = False) -> Tensor:
        """Return a weight with the product added, of the same shape.

        Args:
            weight: The weight.
            drop: Drop inputs of the product, if in training mode.
        """
        if self.merged:
            return weight
        a, b = self.lora_A, self.lora_B
        if drop and self.dropout.p:
            a = a * self.dropout(a.new_ones(a.shape[-1]))
        # In the weight's own precision: under autocast the layer then rounds once, as it does with a merged weight.
        device = weight.device.type
        autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if autocast else nullcontext():
            if self.transposed:
                total = torch.addmm(weight, a.t(), b.t(), alpha=self.scale)
            elif self.parts > 1:
                total = torch.baddbmm(weight.reshape(self.parts, -1, a.shape[-1]), b, a, alpha=self.scale)
            else:
                total = torch.addmm(weight.reshape(-1, a.shape[-1]), b, a, alpha=self.scale)
        return total.view(weight.shape)

    def extra_repr(self) -> str:
        """Describe rank and scale."""
        return f"rank={self.rank}, scale={self.scale:g}"


class LowRankWeight(LowRank):
    """A parametrization: the layer computes with `weight + scale · B A`, whoever reads the weight.

    Dropout zeroes columns of A, that is, inputs of the product, and all samples of a forward pass share what is
    dropped, since there is one weight for all of them.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight that the layer computes with."""
        return self.added_to(weight, drop=self.training)


class LowRankPath(LowRank):
    """A path beside a layer: `layer(x) + scale · B (A dropout(x))`, with dropout for each sample by itself."""

    def forward(self, x: Tensor, layer: nn.Module) -> Tensor:
        """Compute what the path adds to the output of `layer(x)`."""
        if isinstance(layer, nn.Embedding):
            rows = F.embedding(x, self.lora_B, layer.padding_idx, sparse=layer.sparse)
            return F.linear(rows * self.scale, self.lora_A.t())
        x = self.dropout(x)
        if not isinstance(layer, CONVOLUTIONS):
            return F.linear(F.linear(x, self.lora_A) * self.scale, self.lora_B)
        # A is the layer's own kind of convolution, of every group; B a convolution of width 1.
        kernel = (layer.in_channels // layer.groups, *layer.kernel_size)
        down = self.lora_A.view(self.rank, *kernel).repeat(layer.groups, *(1 for _ in kernel))
        up = self.lora_B.view(-1, self.rank, *(1 for _ in kernel[1:]))
        low = layer._conv_forward(x, down, None) * self.scale
        return CONVOLUTION[len(kernel) + 1](low, up, groups=layer.groups)


def add_path(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> Tensor:
    """Add the path called `lora` of a layer to the layer's output (forward hook).

    It uses the layer it is handed, which may be a copy.
    """
    path: LowRankPath = layer.lora  # type: ignore[assignment]
    if path.merged:
        return output
    return output + path(args[0] if args else kwargs["input"], layer)


def matrix_shape(weight: Tensor, parts: int = 1) -> tuple[int, int]:
    """Return rows and columns of a weight as a matrix, of one part where several are stacked."""
    return weight.shape[0] // parts, weight.shape[1:].numel()
