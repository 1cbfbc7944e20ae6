"""In which order a network uses its parameters, as forward passes show it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightkit.common.failures import in_short
from lightkit.finetune.tracing import Forward, shared_copy

_PRODUCTS = re.compile(r"(add|b|badd)?m[mv]|dot|linear|convolution|embedding|_cdist_forward")
"""Operations of PyTorch that make a layer of a parameter which no layer holds."""
_RUNS = 2
"""Forward passes that are compared."""


class RunningOrder(NamedTuple):
    """What forward passes tell of the order of a network."""

    uses: dict[str, tuple[int, ...]]
    """Name of a parameter → when it is used, as numbers of operations."""
    products: frozenset[str] = frozenset()
    """Names of the parameters that data are multiplied with."""
    unsteady: frozenset[str] = frozenset()
    """Names of those whose place in the order is not the same with other samples."""


def running_order(model: nn.Module, forwards: Sequence[Forward]) -> tuple[RunningOrder | None, str]:
    """Run a network in eval mode, and write down when it uses which parameter.

    Args:
        model: The network; a copy is run.
        forwards: Ways to run it on a sample, of which the first two that succeed tell.

    Returns:
        What they tell, or None and the reason.
    """
    found, why = list[_Recorder](), "no sample of the inputs is known" if not forwards else ""
    for forward in forwards:
        try:
            found.append(_record(model, forward))
        except Exception as error:  # whatever a network may raise on inputs that are not its own
            why = why or f"a forward pass fails: {in_short(error)}"
        if len(found) == _RUNS:
            break
    if not found:
        return None, why
    uses = {name: tuple(moments) for name, moments in found[0].uses.items()}
    return RunningOrder(uses, frozenset(found[0].products), frozenset(_unsteady([each.uses for each in found]))), ""


def _record(model: nn.Module, forward: Forward) -> _Recorder:
    recorder = _Recorder({id(parameter): name for name, parameter in model.named_parameters()})
    with torch.enable_grad(), recorder:
        forward(shared_copy(model))
    return recorder


def _unsteady(runs: Sequence[Mapping[str, Sequence[int]]]) -> Iterator[str]:
    """Yield what only some of the runs use, and what they use in another order."""
    always = set(runs[0]).intersection(*runs[1:])
    yield from set(runs[0]).union(*runs[1:]) - always
    orders = [sorted(always, key=lambda name: uses[name][0]) for uses in runs]
    for names in zip(*orders):
        yield from names if len(set(names)) > 1 else ()


class _Recorder(TorchDispatchMode):
    """Counts operations, and writes down those that take a parameter, or what was made of one parameter alone."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names, self._count = dict(names), 0
        self._made = list[Tensor]()
        """What was made of a parameter, kept as it is told apart by identity."""
        self.uses: dict[str, list[int]] = {}
        self.products: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        self._count += 1
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        taken = {id(tensor): name for tensor in tensors if (name := self._names.get(id(tensor)))}
        for name in dict.fromkeys(taken.values()):
            self.uses.setdefault(name, []).append(self._count)
        if _PRODUCTS.fullmatch(func.overloadpacket.__name__):  # biases go along in some
            self.products |= {taken[id(tensor)] for tensor in tensors if id(tensor) in taken and tensor.ndim > 1}
        if len(set(taken.values())) == 1 and all(id(tensor) in taken for tensor in tensors):
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and id(leaf) not in self._names]
            self._made += made
            self._names |= dict.fromkeys(map(id, made), next(iter(taken.values())))
        return result
