"""Adapters: a narrow layer that learns what to add to the output of a frozen block.

Every adapter is `scale · up(dropout(activation(down(x))))` and is added to an output. `up` starts at zero, so that the
network computes exactly what it did before. Three kinds say where:

- `pfeiffer` (https://arxiv.org/abs/2005.00247): at the end of a block, from the block's output. Any module with a
  tensor as output can be such a block.
- `houlsby` (https://arxiv.org/abs/1902.00751): in a transformer block, from the output of each attention and of the
  feed-forward part, before the shortcut is added.
- `parallel` (https://arxiv.org/abs/2110.04366): beside a block or sublayer, from its input.

The layers work on the features of each position: a linear layer where they come last, `(B, N, D)` or `(B, H, W, D)`,
a convolution of width 1 for images and signals, `(B, C, H, W)` and `(B, C, L)`. The width is told from the block's own
layers. An adapter is a submodule `adapter` of its block, which a forward hook uses.

Shapes: B samples, N positions, D width, C channels, H rows, W columns, L length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.blocks import sublayers
from lightkit.finetune.peft.feature_dims import channels_first, feature_axis, input_width, output_width
from lightkit.finetune.peft.hooks import (
    find_hosts,
    first_tensor,
    give,
    keep_padding,
    new_names,
    sample_of,
    with_first_output,
)
from lightkit.finetune.peft.injected import Injected
from lightkit.finetune.peft.masks import first_input

Kind = Literal["houlsby", "pfeiffer", "parallel"]
KINDS: tuple[Kind, ...] = ("houlsby", "pfeiffer", "parallel")
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
_CONVOLVE: dict[int, Callable[..., Tensor]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


class Adapter(Injected):
    """The two layers of an adapter.

    Args:
        path: Of the block, for errors.
        sizes: Widths of what goes in, of the bottleneck, and of what comes out.
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
        """`x` itself: a sequence of layers also runs the adapter that it has got, as if it were one of them."""
        return x

    def added(self, x: Tensor, y: Tensor) -> Tensor:
        """What is added to the output `y`, told from `x`.

        Raises:
            UserError: They are not of the widths that the block's layers tell, or not of the same positions.
        """
        axis = self._axis(x, self.sizes[0])
        if self._axis(y, self.sizes[2]) == axis == 1:
            x = _thinned(x, y)
        low = ACTIVATIONS[self.activation](_mix(x, self.down_weight, self.down_bias, axis))
        new = _mix(self.dropout(low), self.up_weight, self.up_bias, axis)
        if new.shape != y.shape:
            raise self._misfit("its input and output have other positions", f"{tuple(y.shape)}", tuple(new.shape))
        return self.scale * new

    def _axis(self, x: Tensor, width: int) -> int:
        axis = feature_axis(x, width, self.first)
        if axis is None:
            what = "features are not as many as its layers tell"
            raise self._misfit(what, f"{width} in the last or second dimension", tuple(x.shape))
        return axis

    def _misfit(self, what: str, expected: str, received: object) -> UserError:
        what = f"the adapter does not fit {self.path}: {what}"
        return UserError(what, key="finetune.adapter.match", expected=expected, received=received)

    def extra_repr(self) -> str:
        """Widths, activation and scale."""
        return f"{' → '.join(map(str, self.sizes))}, {self.activation}, scale={self.scale:g}"


@dataclass(frozen=True)
class _Site:
    """Where an adapter goes."""

    path: str
    host: nn.Module
    sizes: tuple[int, int, int]


def inject_adapters(
    model: nn.Module,
    paths: Sequence[str],
    *,
    kind: Kind = "pfeiffer",
    width: int | None = None,
    reduction: int = 8,
    activation: str = "gelu",
    dropout: float = 0.0,
    scale: float = 1.0,
    key: str = "finetune.adapter",
) -> list[str]:
    """Put adapters into blocks. What the network computes, and what of it trains, stays as it is.

    Args:
        model: The network; changed in place.
        paths: Paths of the blocks.
        kind: `pfeiffer`, `houlsby` or `parallel`, see above.
        width: Width of the bottleneck; None divides that of the block by `reduction`.
        reduction: Width of the block relative to that of the bottleneck.
        activation: Name of the activation in the bottleneck.
        dropout: Probability of dropping a feature of the bottleneck in training, 0 to below 1.
        scale: Factor on what the adapter adds, above 0.
        key: Where the options stand in the configuration, for errors.

    Returns:
        Names of the new parameters, in the order of the network.

    Raises:
        UserError: An option is out of its range, a block's width cannot be told, or it has no such sublayers.
    """
    _check_options(kind=kind, activation=activation, dropout=dropout, scale=scale, key=key)
    hosts = find_hosts(model, paths, key=key)
    if kind == "houlsby":
        hosts = {path: part for block in hosts.items() for path, part in _sublayers(*block, key).items()}
    sites = [
        _site(*host, width=width, reduction=reduction, parallel=kind == "parallel", key=key) for host in hosts.items()
    ]
    known = list(model.parameters())
    options: dict[str, Any] = {
        "activation": activation,
        "dropout": dropout,
        "scale": scale,
        "parallel": kind == "parallel",
    }
    for site in sites:
        like, first = sample_of(site.path, site.host, key=key), channels_first(site.host)
        give(site.path, site.host, "adapter", Adapter(site.path, site.sizes, like, first=first, **options), key=key)
        site.host.register_forward_hook(_add, with_kwargs=True)
    keep_padding(model, hosts)
    return new_names(model, known)


def _add(host: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Forward hook of a block with an adapter."""
    adapter: Adapter = host.adapter  # type: ignore[assignment]
    y = first_tensor(output, adapter.path, "output")
    x = first_tensor(first_input(args, kwargs), adapter.path, "input") if adapter.parallel else y
    return with_first_output(output, y + adapter.added(x, y))


def _mix(x: Tensor, weight: Tensor, bias: Tensor, axis: int) -> Tensor:
    """A linear layer over one dimension, the second or the last."""
    if axis == -1 or x.dim() == 2:
        return F.linear(x, weight, bias)
    return _CONVOLVE[x.dim()](x, weight.view(*weight.shape, *(1 for _ in x.shape[2:])), bias)


def _thinned(x: Tensor, y: Tensor) -> Tensor:
    """Every second (or third, ...) position of an image that a block makes smaller, as a stride takes them."""
    for dim in range(2, min(x.dim(), y.dim())):
        step = round(x.shape[dim] / max(1, y.shape[dim]))
        if step > 1:
            x = x[(slice(None),) * dim + (slice(None, None, step),)]
            x = x.narrow(dim, 0, min(x.shape[dim], y.shape[dim]))
    return x


def _sublayers(path: str, block: nn.Module, key: str) -> dict[str, nn.Module]:
    """Attentions and feed-forward part of a transformer block, by path."""
    attentions, feed_forward = sublayers(block)
    if not attentions or feed_forward is None:
        raise UserError(
            f"{path} has no attention and feed-forward part that can be told",
            key=f"{key}.kind",
            received=f"houlsby, in a {type(block).__name__}",
            choices=KINDS,
            fix=f"{key}.kind=pfeiffer puts one adapter at the end of any block",
        )
    return {f"{path}.{name}": block.get_submodule(name) for name in (*attentions, feed_forward)}


def _site(path: str, host: nn.Module, *, width: int | None, reduction: int, parallel: bool, key: str) -> _Site:
    if isinstance(host, nn.ModuleList | nn.ModuleDict):
        received, fix = type(host).__name__, f"name what is in it: {path}.*"
        raise UserError(f"{path} is a list of modules, not a block", key=f"{key}.match", received=received, fix=fix)
    outputs = output_width(host)
    inputs = input_width(host) if parallel else outputs
    if inputs is None or outputs is None:
        raise UserError(
            f"{path} has no layer in it, so its width is unknown",
            key=f"{key}.match",
            expected="a module with a linear layer, a convolution, an attention or a norm",
            received=type(host).__name__,
            fix="match the blocks and nothing inside of them; * stands for dots too: `blocks.?`, `re:^blocks\\.\\d+$`",
        )
    return _Site(path, host, (inputs, _bottleneck(path, outputs, width, reduction, key), outputs))


def _bottleneck(path: str, block: int, width: int | None, reduction: int, key: str) -> int:
    found = width if width is not None else (block // reduction if reduction >= 1 else 0)
    if 1 <= found <= block:
        return found
    name, received = ("reduction", reduction) if width is None else ("width", width)
    what = f"no width for the bottleneck in {path}, which is {block} wide"
    raise UserError(what, key=f"{key}.{name}", expected=f"1 to {block}", received=received)


def _check_options(*, kind: str, activation: str, dropout: float, scale: float, key: str) -> None:
    if kind not in KINDS:
        raise UserError("no such kind of adapter", key=f"{key}.kind", received=kind, choices=KINDS)
    if activation not in ACTIVATIONS:
        raise UserError("unknown activation", key=f"{key}.activation", received=activation, choices=ACTIVATIONS)
    if not 0 <= dropout < 1:
        raise UserError("not a probability", key=f"{key}.dropout", expected="0 to below 1", received=dropout)
    if not scale > 0:
        raise UserError("the adapter would add nothing", key=f"{key}.scale", expected="above 0", received=scale)
