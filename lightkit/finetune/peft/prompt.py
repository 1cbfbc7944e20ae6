"""Prompt tuning: learnt positions in front of the sequence that a part of a network works on.

They go in with the sequence and are taken off at the end of the part, so that what follows (a class token in front, a
mean over positions, a head for every position) sees the positions it knows. In front of a whole encoder this is
https://arxiv.org/abs/2104.08691; one prompt for every block is the deep form of https://arxiv.org/abs/2203.12119.

The part is a block or an encoder with attention inside, or a list or sequence of blocks: learnt positions then go into
the first block and are taken off after the last, whoever runs them. Prompts take attention away from the sequence from
the first step on, so the network cannot start as the plain one: it starts near it.

Shapes: B samples, N positions, L learnt positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.attention import is_supported, takes_more_positions
from lightkit.finetune.peft.blocks import is_attention
from lightkit.finetune.peft.feature_dims import input_width
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
from lightkit.finetune.peft.masks import argument_names, first_input, in_front, sequence, with_first_input, with_room


class Prompt(Injected):
    """Learnt positions.

    Args:
        length: How many, L.
        width: D.
        like: Gives device and type.
        std: Standard deviation they start with.
    """

    label = "prompt"

    def __init__(self, length: int, width: int, like: Tensor, *, std: float) -> None:
        super().__init__()
        self.tokens = nn.Parameter(like.new_empty(length, width).normal_(std=std))

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        """`x` itself: a sequence of layers also runs the prompt that it has got, as if it were one of them."""
        return x

    def extra_repr(self) -> str:
        """Number and width of positions."""
        return f"length={self.tokens.shape[0]}, width={self.tokens.shape[1]}"


@dataclass(frozen=True)
class _Before:
    """Forward pre-hook: masks that know of the learnt positions, and in the first block these positions themselves."""

    length: int
    axis: int
    arguments: tuple[str, ...]
    first: bool

    def __call__(
        self, host: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = with_room(args, kwargs, self.arguments, self.length)
        if not self.first:
            return args, kwargs
        x = sequence(first_input(args, kwargs), "a prompt")
        return with_first_input(args, kwargs, in_front(host.prompt.tokens, x, self.axis))


@dataclass(frozen=True)
class _After:
    """Forward hook of the last block: the positions of the sequence alone."""

    path: str
    length: int
    axis: int

    def __call__(self, host: Any, args: tuple[Any, ...], output: Any) -> Any:
        y = first_tensor(output, self.path, "output")
        axis = self.axis if y.dim() > 2 else 0
        if y.shape[axis] <= self.length:
            what = f"a prompt does not fit {self.path}, whose output has fewer positions than its input"
            raise UserError(what, key="finetune.prefix.match", received=tuple(y.shape))
        return with_first_output(output, y.narrow(axis, self.length, y.shape[axis] - self.length))


def inject_prompts(
    model: nn.Module,
    paths: Sequence[str],
    *,
    length: int = 16,
    init_std: float | None = None,
    key: str = "finetune.prefix",
) -> list[str]:
    """Put learnt positions in front of the sequences of parts of a network.

    Args:
        model: The network; changed in place.
        paths: Paths of blocks, of encoders, or of lists of blocks; each gets positions of its own.
        length: Number of learnt positions.
        init_std: Standard deviation they start with; None takes 0.02.
        key: Where the options stand in the configuration, for errors.

    Returns:
        Names of the new parameters, in the order of the network.

    Raises:
        UserError: An option is out of its range, or a module has no attention that can take more positions.
    """
    std = 0.02 if init_std is None else init_std
    if length < 1:
        raise UserError("a prompt needs positions", key=f"{key}.length", expected="1 or more", received=length)
    if not std > 0:
        raise UserError("all positions would stay equal", key=f"{key}.init_std", expected="above 0", received=std)
    hosts = find_hosts(model, paths, key=key)
    widths = {path: _checked_width(path, host, key) for path, host in hosts.items()}
    known = list(model.parameters())
    for path, host in hosts.items():
        blocks = _blocks(path, host)
        first, *_ = blocks
        prompt = Prompt(length, widths[path], sample_of(path, host, key=key), std=std)
        give(first, blocks[first], "prompt", prompt, key=key)
        _hook(blocks, length, _axis(host))
    keep_padding(model, hosts)
    return new_names(model, known)


def _hook(blocks: dict[str, nn.Module], length: int, axis: int) -> None:
    """Let the learnt positions in at the first of some blocks and out at the last."""
    first, last = next(iter(blocks)), list(blocks)[-1]
    for path, block in blocks.items():
        before = _Before(length, axis, argument_names(block), first=path == first)
        block.register_forward_pre_hook(before, with_kwargs=True)
    blocks[last].register_forward_hook(_After(last, length, axis))


def _blocks(path: str, host: nn.Module) -> dict[str, nn.Module]:
    """The elements of a list or sequence by path, or the module alone."""
    if not isinstance(host, nn.ModuleList) and type(host).forward is not nn.Sequential.forward:
        return {path: host}
    children = {f"{path}.{name}": child for name, child in host.named_children()}
    return {name: child for name, child in children.items() if not isinstance(child, Injected)}


def _axis(host: nn.Module) -> int:
    """Which dimension of a batch holds the positions: the first in attentions of PyTorch unless they say otherwise."""
    attentions = [module for module in host.modules() if isinstance(module, nn.MultiheadAttention)]
    return 0 if attentions and not attentions[0].batch_first else -2


def _checked_width(path: str, host: nn.Module, key: str) -> int:
    """Width D of the sequences of a part that can take more positions."""
    inside = {f"{path}.{name}": part for name, part in host.named_modules() if name}
    attentions = {name: part for name, part in inside.items() if is_attention(name.rpartition(".")[2], part)}
    attentions |= {path: host} if is_supported(host) else {}
    width = input_width(host)
    if not attentions or not _blocks(path, host) or width is None:
        raise UserError(
            f"{path} is no part of a network that works on a sequence by attention",
            key=f"{key}.match",
            expected="a transformer block, an encoder, or a list of blocks",
            received=type(host).__name__,
        )
    stuck = [name for name, part in attentions.items() if not takes_more_positions(part)]
    own = [f"{path}.{name}" for name, each in host.named_parameters(recurse=False) if _is_table(each, width)]
    if stuck or own or isinstance(host, nn.MultiheadAttention):
        raise UserError(
            f"{path} can take no more positions",
            key=f"{key}.match",
            expected="blocks, or an encoder, without a table of positions of its own",
            received=(*stuck, *own, path)[0],
            fix=f"name the list of its blocks, or take {key}.kind=prefix",
        )
    return width


def _is_table(parameter: nn.Parameter, width: int) -> bool:
    """Whether a parameter holds a vector for every position."""
    return parameter.ndim > 1 and parameter.shape[-1] == width and parameter.shape[-2] > 1
