"""What the memory of a training step is made of: whose activations are kept for the backward pass.

The step is done again without memory: with tensors that have a shape, a type and a device but no values (PyTorch's fake
tensors). Nothing is allocated, on whatever device.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from lightkit.common.failures import unlogged
from lightkit.common.modules import tensors
from lightkit.device.recompute import recompute, recomputes
from lightkit.finetune.tables import state_sizes

T = TypeVar("T")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class Origin:
    """Memory by where it comes from."""

    name: str
    """Name of a module; `*` stands for the numbers of several alike."""
    bytes: int
    """All of them together."""
    count: int = 1
    """How many modules."""


def bytes_of(value: Any) -> int:
    """Count the bytes of the tensors of a nesting; what several share counts once."""
    seen: dict[int, int] = {}
    for tensor in tensors(value):
        seen[id(tensor)] = tensor.numel() * tensor.element_size()
    return sum(seen.values())


def state_bytes(model: nn.Module, optimizer: Optimizer, average: Any = None) -> dict[str, int | None]:
    """Count the bytes of training that do not depend on the batch.

    Args:
        model: The network; what of it needs a gradient now counts as trained.
        optimizer: Over its parameters; the state counts that it will have after a step.
        average: State of the average of the weights.

    Returns:
        Bytes of `weights` with buffers, `gradients`, `optimizer` and `average`; None where nobody can tell.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sizes = state_sizes(optimizer, trained)
    return {
        "weights": bytes_of([*model.state_dict(keep_vars=True).values()]),
        "gradients": bytes_of([*trained.values()]),
        "optimizer": None if sizes is None else sum(sizes.values()),
        "average": bytes_of(average),
    }


def enlarged(batch: Any, samples: int, size: int) -> Any:
    """Make a batch of another size: tensors whose first dimension counts samples are repeated.

    Args:
        batch: A small batch.
        samples: Its samples.
        size: Samples that are wanted.
    """

    def one(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or not tensor.ndim or len(tensor) != samples:
            return tensor
        return tensor[:1].expand(size, *tensor.shape[1:]).clone()

    return tree_map(one, batch)


def activations(
    model: nn.Module,
    batch: Any,
    step: Callable[[nn.Module, Any], Any],
    *,
    samples: int,
    size: int,
    device: torch.device,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    recomputed: Sequence[str] = (),
    keeps: bool = True,
) -> dict[str, int]:
    """Count the bytes that a forward pass keeps for the backward pass, by the name of the module that made them.

    Args:
        model: The network without wrappers; nothing of it changes.
        batch: A small batch on the CPU.
        step: Computes the loss of a model and a batch.
        samples: Samples of the small batch.
        size: Samples of the batch that is meant.
        device: Where the step is computed.
        context: Of the forward pass, such as autocast.
        recomputed: Patterns of modules that compute their activations again; a copy of a model does not know.
        keeps: Whether anything is kept: False for an evaluation, of which the largest outputs count.

    Raises:
        Exception: Whatever the step raises where it needs values; see `measured`.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copied = twin(model, mode.from_tensor)
    recompute(copied, recomputed)
    own = {_storage(tensor) for tensor in (*copied.parameters(), *copied.buffers())}
    # What fails is for the caller to tell: PyTorch would write it to the terminal too.
    with unlogged("torch._subclasses.fake_tensor"), mode:
        fake = tree_map(lambda t: mode.from_tensor(t).to(device) if isinstance(t, Tensor) else t, batch)
        large = enlarged(fake, samples, size)
        own |= {_storage(tensor) for tensor in _leaves(large)}
        with context():
            return _kept(copied, large, step, own=own, keeps=keeps)


def measured(
    model: nn.Module,
    batch: Any,
    step: Callable[[nn.Module, Any], Any],
    *,
    samples: int,
    size: int,
    recomputed: Sequence[str] = (),
    keeps: bool = True,
) -> dict[str, int]:
    """Count the same by a real step with the small batch on the CPU, taken times as many samples; see `activations`.

    Raises:
        Exception: Whatever the step raises.
    """
    copied = twin(model, lambda tensor: tensor.detach().to("cpu", copy=True).requires_grad_(tensor.requires_grad))
    recompute(copied, recomputed)
    own = {_storage(tensor) for tensor in (*copied.parameters(), *copied.buffers(), *_leaves(batch))}
    found = _kept(copied, batch, step, own=own, keeps=keeps)
    return {name: count * size // max(1, samples) for name, count in found.items()}


def twin(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> nn.Module:
    """Copy the model with other tensors in it; its own are not copied.

    Args:
        model: The network; nothing of it changes.
        convert: Makes a tensor of the copy from one of the model: a parameter, a buffer, or what else a module keeps.
    """
    kept = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers(), *kept):
        other = convert(tensor)
        if isinstance(tensor, nn.Parameter) and not isinstance(other, nn.Parameter):
            other = nn.Parameter(other.detach(), requires_grad=tensor.requires_grad)
        memo[id(tensor)] = other
    return copy.deepcopy(model, memo)


def on_meta(model: nn.Module) -> nn.Module:
    """Copy the model with meta tensors, which take no memory."""
    return twin(model, lambda tensor: tensor.detach().to("meta").requires_grad_(tensor.requires_grad))


def on_copy(
    model: nn.Module, inputs: Any, use: Callable[[nn.Module, Any, str], T], real: Any = None, *, values: bool = True
) -> T:
    """Use a copy of a model on meta tensors, which take no memory; where it looks at values, one on real tensors.

    Args:
        model: The network; nothing of it changes.
        inputs: What it gets.
        use: Takes the copy, the inputs for it, and the name of the device, `meta` or `cpu`.
        real: What it gets where values are needed; None for the inputs.
        values: Whether it may be used on real tensors at all.

    Raises:
        Exception: Whatever it raises with values, or without where there are to be none.
    """
    try:
        copied = on_meta(model)
        given = tree_map(lambda value: value.to("meta") if isinstance(value, Tensor) else value, inputs)
        with torch.device("meta"):
            return use(copied, given, "meta")
    except Exception:  # it looks at values, or has tensors that nobody knows of
        if not values:
            raise
        with torch.random.fork_rng(devices=[]):
            return use(copy.deepcopy(model), inputs if real is None else real, "cpu")


def _kept(
    model: nn.Module, batch: Any, step: Callable[[nn.Module, Any], Any], *, own: set[int], keeps: bool
) -> dict[str, int]:
    book = _Book(own)
    for name, module in model.named_modules():
        module.register_forward_pre_hook(partial(book.enter, name, keeps), prepend=True)
        module.register_forward_hook(partial(book.leave, keeps), always_call=True)
    if not keeps:
        model.eval()
        with torch.no_grad():
            step(model, batch)
        return book.found
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(book.pack, lambda packed: packed):
        step(model, batch)
    return book.found


class _Book:
    """Counts every storage once, for the module in which it is kept first."""

    def __init__(self, own: set[int]) -> None:
        self.found: dict[str, int] = {}
        self._seen, self._inside, self._alive = set(own), [""], list[Tensor]()

    def enter(self, name: str, keeps: bool, module: nn.Module, inputs: Any) -> None:
        self._inside.append(name)
        for tensor in _leaves(inputs) if keeps and recomputes(module) else ():
            self._count(tensor)

    def leave(self, keeps: bool, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not keeps:
            for tensor in _leaves(output):
                self._count(tensor)
        self._inside.pop()

    def pack(self, tensor: Tensor) -> Tensor:
        self._count(tensor)
        return tensor.detach()

    def _count(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage not in self._seen:
            self._seen.add(storage)
            self._alive.append(tensor.detach())  # or another storage might take its number
            name = self._inside[-1]
            self.found[name] = self.found.get(name, 0) + tensor.untyped_storage().nbytes()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _leaves(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def origins(kept: Mapping[str, int]) -> list[Origin]:
    """Add bytes up by module, with modules alike taken together (`layers.*.attention`), the largest first."""
    grouped: dict[str, list[int]] = {}
    for name, count in kept.items():
        grouped.setdefault(_NUMBER.sub("*", name), []).append(count)
    merged = [Origin(name, sum(counts), len(counts)) for name, counts in grouped.items()]
    return sorted(merged, key=lambda origin: -origin.bytes)


def repeated_blocks(model: nn.Module, found: Mapping[str, int]) -> str | None:
    """Return a pattern of the repeated modules that keep most (`layers.*`); None where there are none."""
    sums: dict[str, dict[str, int]] = {}
    for name, count in found.items():
        parts = name.split(".")
        number = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
        if number is None:
            continue
        block = ".".join(parts[: number + 1])
        if next(model.get_submodule(block).children(), None) is not None:
            blocks = sums.setdefault(".".join([*parts[:number], "*"]), {})
            blocks[block] = blocks.get(block, 0) + count
    several = {pattern: sum(blocks.values()) for pattern, blocks in sums.items() if len(blocks) > 1}
    return max(several, key=lambda pattern: several[pattern], default=None)
