"""The two matrices of LoRA, beside a weight (`LowRankWeight`) or beside a layer (`LowRankPath`).

Some layers make their weights of other tensors. The parametrizations of `torch.nn.utils.parametrizations` are part of
the layer, and a low-rank change can be put after them: `g · v / ‖v‖ + B A`. The older `torch.nn.utils.weight_norm` and
`spectral_norm` make the weight anew in a hook before each pass, so that only a path beside the layer lasts. What is
added to a weight can go into the tensors it is made of where these can make any weight, as those of weight norm can.

Shapes: O × I the weight as a matrix (a convolution's I is input channels of a group times the kernel's size; an
embedding has one row per token), R the rank, P matrices stacked in one tensor (3 in a packed attention projection).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.weight_norm import WeightNorm

from lightkit.common.modules import kept_modes
from lightkit.finetune.peft.blocks import CONVOLUTION
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


_ROUNDING = 100
"""How many units in the last place a weight may differ from the one that was to be made."""


def parametrizations(layer: nn.Module, tensor: str) -> ParametrizationList | None:
    """Return what makes a tensor of a layer in the layer itself; None where nothing does."""
    if not parametrize.is_parametrized(layer, tensor):
        return None
    return layer.parametrizations[tensor]  # type: ignore[index,return-value]


def effective_weight(layer: nn.Module, tensor: str) -> Tensor:
    """Return the weight a layer computes with in eval mode; asking changes nothing, as a training pass might.

    Args:
        layer: The layer.
        tensor: What it calls the weight.

    Returns:
        The parameter itself where the weight is one.
    """
    if tensor in layer._parameters:
        return layer._parameters[tensor]  # type: ignore[return-value]
    changes, hook = parametrizations(layer, tensor), _weight_norm(layer, tensor)
    if hook is not None:
        with torch.no_grad():
            return hook.compute_weight(layer)
    if changes is None:
        return getattr(layer, tensor)
    with kept_modes(changes), torch.no_grad():
        return changes.eval()()


def source_parameters(layer: nn.Module, tensor: str) -> list[nn.Parameter]:
    """Return the parameters that a weight is made of; none where it is a parameter itself."""
    if tensor in layer._parameters:
        return []
    changes = parametrizations(layer, tensor)
    if changes is not None:
        return list(changes.parameters(recurse=False))
    return [own for name, own in layer.named_parameters(recurse=False) if name.startswith(f"{tensor}_")]


def describe_sources(layer: nn.Module, tensor: str) -> str:
    """Name what besides LoRA makes a weight: `_SpectralNorm`; empty where the weight is a parameter."""
    changes = parametrizations(layer, tensor)
    if tensor in layer._parameters:
        return ""
    hooks = [hook for hook in layer._forward_pre_hooks.values() if getattr(hook, "name", None) == tensor]
    kinds = [type(part).__name__ for part in (hooks if changes is None else changes) if not isinstance(part, LowRank)]
    return " and ".join(kinds) or ("a hook" if changes is None else "")


def solve_for_weight(layer: nn.Module, tensor: str, weight: Tensor) -> dict[str, tuple[Tensor, Tensor]] | None:
    """Compute the values of the tensors that a weight is made of which make a given weight.

    Args:
        layer: The layer; not changed.
        tensor: What it calls the weight.
        weight: The weight it is to make without low-rank matrices.

    Returns:
        Name of each of these tensors below the layer → itself and the new value; None where they cannot make it.
    """
    if tensor in layer._parameters:
        return {tensor: (effective_weight(layer, tensor), weight)}
    values: Sequence[Tensor] | None
    changes, hook = parametrizations(layer, tensor), _weight_norm(layer, tensor)
    if changes is not None:
        names = ["original"] if changes.is_tensor else [f"original{index}" for index in range(changes.ntensors)]
        values = _invert([part for part in changes if not isinstance(part, LowRank)], weight)
        own = {f"parametrizations.{tensor}.{name}": getattr(changes, name) for name in names}
    elif hook is not None:
        values = (torch.norm_except_dim(weight, 2, hook.dim), weight)
        own = {name: layer._parameters[name] for name in (f"{tensor}_g", f"{tensor}_v")}
    else:
        return None
    if values is None:
        return None
    return {name: (old, value.to(old.dtype)) for (name, old), value in zip(own.items(), values)}


def _weight_norm(layer: nn.Module, tensor: str) -> WeightNorm | None:
    """Return the hook of the older weight norm that makes this tensor."""
    hooks = layer._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, WeightNorm) and hook.name == tensor), None)


def _invert(parts: Sequence[nn.Module], weight: Tensor) -> Sequence[Tensor] | None:
    """Compute what goes into parametrizations for a weight to come out; None where it does not come out."""
    if not parts:
        return (weight,)
    precise = torch.promote_types(weight.dtype, torch.float32)
    steps = [copy.deepcopy(part).eval().to(precise) for part in parts]
    value, wanted = weight.to(precise), weight.to(precise)
    try:
        for step in reversed(steps):
            value = step.right_inverse(value) if hasattr(step, "right_inverse") else value  # type: ignore[operator]
        values = (value,) if isinstance(value, Tensor) else tuple(value)
        made = steps[0](*values)
        for step in steps[1:]:
            made = step(made)
    except (NotImplementedError, RuntimeError, ValueError):  # what they say of weights they cannot make
        return None
    allowed = _ROUNDING * torch.finfo(precise).eps * float(wanted.abs().max())
    return values if torch.allclose(made, wanted, rtol=0, atol=allowed) else None
