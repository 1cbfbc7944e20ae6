"""Prompt tuning: learnt positions in front of the sequence that a part of a network works on.

They go in with the sequence and are taken off at the end of the part, so that what follows (a class token in front, a
mean over positions, a head for every position) sees the positions it knows. In front of a whole encoder this is
https://arxiv.org/abs/2104.08691; one prompt for every block is the deep form of https://arxiv.org/abs/2203.12119.

The part is a block or an encoder with attention inside, or a list or sequence of blocks: learnt positions then go into
the first block and are taken off after the last, whoever runs them. Prompts take attention away from the sequence from
the first step on, so the network cannot start as the plain one: it starts near it.

Shapes: B samples, N positions, L learnt positions, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.finetune.peft import calls
from lightkit.finetune.peft.attention import is_supported, takes_more_positions
from lightkit.finetune.peft.blocks import is_attention
from lightkit.finetune.peft.feature_dims import input_dim
from lightkit.finetune.peft.injected import Injected, attach, modules_at, new_parameter_names, reference_tensor
from lightkit.finetune.peft.masks import check_sequence, extend_masks, prepend


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
        """Return `x` itself: a sequence of layers also runs the prompt it was given, as if it were one of them."""
        return x

    def extra_repr(self) -> str:
        """Describe the number and width of positions."""
        return f"length={self.tokens.shape[0]}, width={self.tokens.shape[1]}"


@dataclass(frozen=True)
class _AddPositions:
    """Forward pre-hook: extends masks by the learnt positions, and in the first block adds these positions."""

    length: int
    axis: int
    arguments: tuple[str, ...]
    is_first: bool

    def __call__(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> calls.Call:
        args, kwargs = extend_masks(args, kwargs, self.arguments, self.length)
        if not self.is_first:
            return args, kwargs
        x = check_sequence(calls.first_input(args, kwargs), "a prompt")
        return calls.replace_first_input(args, kwargs, prepend(block.prompt.tokens, x, self.axis))


@dataclass(frozen=True)
class _RemovePositions:
    """Forward hook of the last block: returns the positions of the sequence alone."""

    path: str
    length: int
    axis: int

    def __call__(self, block: Any, args: tuple[Any, ...], output: Any) -> Any:
        y = calls.first_tensor(output, self.path, "output")
        axis = self.axis if y.dim() > 2 else 0
        if y.shape[axis] <= self.length:
            what = f"a prompt does not fit {self.path}, whose output has fewer positions than its input"
            # The key is named here, as no caller of a forward pass knows it.
            raise UserError(what, key="finetune.prefix.match", received=tuple(y.shape))
        return calls.replace_first_output(output, y.narrow(axis, self.length, y.shape[axis] - self.length))


def inject_prompts(
    model: nn.Module, match: Sequence[str], *, length: int = 16, init_std: float | None = None
) -> list[str]:
    """Put learnt positions in front of the sequences of parts of a network.

    Args:
        model: The network; changed in place.
        match: Paths of blocks, of encoders, or of lists of blocks; each gets positions of its own.
        length: Number of learnt positions.
        init_std: Standard deviation they start with; None takes 0.02.

    Returns:
        Names of the new parameters, in the order of the network.

    Raises:
        UserError: An option is out of its range, or a module has no attention that can take more positions.
    """
    std = 0.02 if init_std is None else init_std
    check_range("length", length, low=1, what="a prompt needs positions")
    check_range("init_std", std, above=0, what="all positions would stay equal")
    modules = modules_at(model, match)
    widths = {path: _sequence_width(path, module) for path, module in modules.items()}
    known = list(model.parameters())
    for path, module in modules.items():
        blocks = _elements(path, module)
        first, last = next(iter(blocks)), list(blocks)[-1]
        prompt = Prompt(length, widths[path], reference_tensor(path, module), std=std)
        attach(model, first, "prompt", prompt)
        # Attentions of PyTorch have the positions first unless they say otherwise.
        attentions = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
        axis = 0 if attentions and not attentions[0].batch_first else -2
        for name, block in blocks.items():
            add = _AddPositions(length, axis, calls.argument_names(block), is_first=name == first)
            block.register_forward_pre_hook(add, with_kwargs=True)
        blocks[last].register_forward_hook(_RemovePositions(last, length, axis))
    return new_parameter_names(model, known)


def _elements(path: str, module: nn.Module) -> dict[str, nn.Module]:
    """Return the elements of a list or sequence by path, or the module alone."""
    if not isinstance(module, nn.ModuleList) and type(module).forward is not nn.Sequential.forward:
        return {path: module}
    children = {f"{path}.{name}".lstrip("."): child for name, child in module.named_children()}
    return {name: child for name, child in children.items() if not isinstance(child, Injected)}


def _sequence_width(path: str, module: nn.Module) -> int:
    """Return the features D of the sequences of a part that can take more positions."""
    inside = {f"{path}.{name}": part for name, part in module.named_modules() if name}
    attentions = {name: part for name, part in inside.items() if is_attention(name.rpartition(".")[2], part)}
    attentions |= {path: module} if is_supported(module) else {}
    width = input_dim(module)
    if not attentions or not _elements(path, module) or width is None:
        raise UserError(
            f"{path} is no part of a network that works on a sequence by attention",
            argument="match",
            expected="a transformer block, an encoder, or a list of blocks",
            received=type(module).__name__,
        )
    fixed = [name for name, part in attentions.items() if not takes_more_positions(part)]
    fixed += [  # a table with a vector for every position
        f"{path}.{name}"
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1 and parameter.shape[-1] == width and parameter.shape[-2] > 1
    ]
    if fixed or isinstance(module, nn.MultiheadAttention):
        raise UserError(
            f"{path} can take no more positions",
            argument="match",
            expected="blocks, or an encoder, without a table of positions of its own",
            received=(*fixed, path)[0],
            fix="name the list of its blocks, or take finetune.prefix.kind=prefix",
        )
    return width
