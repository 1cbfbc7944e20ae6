"""Adapters: a narrow layer that learns what to add to the output of a frozen block.

Every adapter is `scale · up(dropout(activation(down(x))))` and is added to an output. `up` starts at zero, so that the
network computes exactly what it did before. Three kinds say where:

- `pfeiffer` (https://arxiv.org/abs/2005.00247): at the end of a block, from the block's output. Any module with a
  tensor as output can be such a block.
- `houlsby` (https://arxiv.org/abs/1902.00751): in a transformer block, from the output of each attention and of the
  feed-forward part, before the shortcut is added.
- `parallel` (https://arxiv.org/abs/2110.04366): beside a block or sublayer, from its input.

The layers work on the features of each position: a linear layer where they come last, `(B, N, D)` or `(B, H, W, D)`,
a convolution of width 1 for images and signals, `(B, C, H, W)` and `(B, C, L)`. The number of features is told from the
block's own layers. An adapter is a submodule `adapter` of its block, which a forward hook uses.

Shapes: B samples, N positions, D features, C channels, H rows, W columns, L length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.finetune.peft.blocks import CONVOLUTION, channels_first, feature_axis, input_dim, output_dim, sublayers
from lightkit.finetune.peft.injected import (
    Injected,
    attach,
    first_input,
    first_tensor,
    modules_at,
    new_parameter_names,
    reference_tensor,
    replace_first_output,
)

Kind = Literal["houlsby", "pfeiffer", "parallel"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "identity": nn.Identity(),
}


class Adapter(Injected):
    """The two layers of an adapter.

    Args:
        path: Of the block, for errors.
        sizes: Number of features of the input, of the bottleneck, and of the output.
        like: Gives device and type.
        first: Numbers of dimensions for which features come first, from `channels_first`.
        activation: Name in `ACTIVATIONS`.
        dropout: Probability of dropping a feature of the bottleneck in training.
        scale: Factor on what is added.
        parallel: Goes from the input of the block.
    """

    label = "adapter"

    def __init__(
        self,
        path: str,
        sizes: tuple[int, int, int],
        like: Tensor,
        *,
        first: frozenset[int],
        activation: str,
        dropout: float,
        scale: float,
        parallel: bool,
    ) -> None:
        super().__init__()
        inputs, width, outputs = self.sizes = sizes
        self.path, self.first, self.parallel = path, first, parallel
        self.activation, self.scale = activation, scale
        self.dropout = nn.Dropout(dropout)
        self.down_weight = nn.Parameter(like.new_empty(width, inputs).uniform_(-(inputs**-0.5), inputs**-0.5))
        self.down_bias = nn.Parameter(like.new_zeros(width))
        self.up_weight = nn.Parameter(like.new_zeros(outputs, width))
        self.up_bias = nn.Parameter(like.new_zeros(outputs))

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Return `x` itself: a sequence of layers also runs the adapter it was given, as if it were one of them."""
        return x

    def delta(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute from the input `x` what is to be added to the output `y`.

        Raises:
            UserError: Their features are not as many as the block's layers tell, or they have other positions.
        """
        axis = self._feature_axis(x, self.sizes[0])
        if self._feature_axis(y, self.sizes[2]) == axis == 1:
            x = _downsample(x, y)
        low = ACTIVATIONS[self.activation](_linear(x, self.down_weight, self.down_bias, axis))
        new = _linear(self.dropout(low), self.up_weight, self.up_bias, axis)
        if new.shape != y.shape:
            raise self._misfit("its input and output have other positions", f"{tuple(y.shape)}", tuple(new.shape))
        return self.scale * new

    def _feature_axis(self, x: Tensor, size: int) -> int:
        axis = feature_axis(x, size, self.first)
        if axis is None:
            what = "features are not as many as its layers tell"
            raise self._misfit(what, f"{size} in the last or second dimension", tuple(x.shape))
        return axis

    def _misfit(self, what: str, expected: str, received: object) -> UserError:
        what = f"the adapter does not fit {self.path}: {what}"
        # The key is named here, as no caller of a forward pass knows it.
        return UserError(what, key="finetune.adapter.match", expected=expected, received=received)

    def extra_repr(self) -> str:
        """Describe sizes, activation and scale."""
        return f"{' → '.join(map(str, self.sizes))}, {self.activation}, scale={self.scale:g}"


def inject_adapters(
    model: nn.Module,
    match: Sequence[str],
    *,
    kind: Kind = "pfeiffer",
    width: int | None = None,
    reduction: int = 8,
    activation: str = "gelu",
    dropout: float = 0.0,
    scale: float = 1.0,
) -> list[str]:
    """Put adapters into blocks. What the network computes, and what of it trains, stays as it is.

    Args:
        model: The network; changed in place.
        match: Paths of the blocks.
        kind: `pfeiffer`, `houlsby` or `parallel`, see above.
        width: Features of the bottleneck; None divides those of the block by `reduction`.
        reduction: Features of the block relative to those of the bottleneck.
        activation: Name of the activation in the bottleneck.
        dropout: Probability of dropping a feature of the bottleneck in training, 0 to below 1.
        scale: Factor on what the adapter adds, above 0.

    Returns:
        Names of the new parameters, in the order of the network.

    Raises:
        UserError: An option is out of its range, a block's features cannot be told, or it has no such sublayers.
    """
    check_choice("kind", kind, KINDS, "no such kind of adapter")
    check_choice("activation", activation, ACTIVATIONS, "unknown activation")
    check_range("dropout", dropout, low=0, below=1, what="not a probability")
    check_range("scale", scale, above=0, what="the adapter would add nothing")
    modules = modules_at(model, match)
    if kind == "houlsby":
        modules = {path: part for block in modules.items() for path, part in _transformer_sublayers(*block).items()}
    parallel = kind == "parallel"
    sizes = {
        path: _adapter_sizes(path, module, width=width, reduction=reduction, parallel=parallel)
        for path, module in modules.items()
    }
    known = list(model.parameters())
    for path, module in modules.items():
        adapter = Adapter(
            path,
            sizes[path],
            reference_tensor(path, module),
            first=channels_first(module),
            activation=activation,
            dropout=dropout,
            scale=scale,
            parallel=parallel,
        )
        attach(model, path, "adapter", adapter)
        module.register_forward_hook(_add_adapter, with_kwargs=True)
    return new_parameter_names(model, known)


def _add_adapter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Add the adapter's part to the output of its block (forward hook)."""
    adapter: Adapter = block.adapter  # type: ignore[assignment]
    y = first_tensor(output, adapter.path, "output")
    x = first_tensor(first_input(args, kwargs), adapter.path, "input") if adapter.parallel else y
    return replace_first_output(output, y + adapter.delta(x, y))


def _linear(x: Tensor, weight: Tensor, bias: Tensor, axis: int) -> Tensor:
    """Apply a linear layer to one dimension, the second or the last."""
    if axis == -1 or x.dim() == 2:
        return F.linear(x, weight, bias)
    return CONVOLUTION[x.dim()](x, weight.view(*weight.shape, *(1 for _ in x.shape[2:])), bias)


def _downsample(x: Tensor, y: Tensor) -> Tensor:
    """Take every second (or third, ...) position of the input of a block with strides, as many as its output has."""
    for dim in range(2, min(x.dim(), y.dim())):
        step = round(x.shape[dim] / max(1, y.shape[dim]))
        if step > 1:
            x = x[(slice(None),) * dim + (slice(None, None, step),)]
            x = x.narrow(dim, 0, min(x.shape[dim], y.shape[dim]))
    return x


def _transformer_sublayers(path: str, block: nn.Module) -> dict[str, nn.Module]:
    """Return the attentions and the feed-forward part of a transformer block by path."""
    attentions, feed_forward = sublayers(block)
    if not attentions or feed_forward is None:
        raise UserError(
            f"{path} has no attention and feed-forward part that can be told",
            argument="kind",
            received=f"houlsby, in a {type(block).__name__}",
            choices=KINDS,
            fix="finetune.adapter.kind=pfeiffer puts one adapter at the end of any block",
        )
    return {f"{path}.{name}".lstrip("."): block.get_submodule(name) for name in (*attentions, feed_forward)}


def _adapter_sizes(
    path: str, module: nn.Module, *, width: int | None, reduction: int, parallel: bool
) -> tuple[int, int, int]:
    """Return the features of the input, of the bottleneck and of the output of an adapter for a module."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        received, fix = type(module).__name__, f"name what is in it: {path}.*"
        raise UserError(f"{path} is a list of modules, not a block", argument="match", received=received, fix=fix)
    outputs = output_dim(module)
    inputs = input_dim(module) if parallel else outputs
    if inputs is None or outputs is None:
        raise UserError(
            f"{path} has no layer in it, so its width is unknown",
            argument="match",
            expected="a module with a linear layer, a convolution, an attention or a norm",
            received=type(module).__name__,
            fix="match the blocks and nothing inside of them; * stands for dots too: `blocks.?`, `re:^blocks\\.\\d+$`",
        )
    bottleneck = width if width is not None else (outputs // reduction if reduction >= 1 else 0)
    if not 1 <= bottleneck <= outputs:
        argument = "reduction" if width is None else "width"
        what, expected = f"no width for the bottleneck in {path}, which is {outputs} wide", f"1 to {outputs}"
        raise UserError(what, argument=argument, expected=expected, received=reduction if width is None else width)
    return inputs, bottleneck, outputs
