"""Which parameters compute the outputs of a network, read from the autograd graph of a forward pass.

Going back from the outputs on every way, the first product of data with weights belongs to the output layer: a matrix
product, a convolution, a lookup, a table of distances. So do norms, biases and scales after it. A product whose result
goes into another of these products too is no part of it: so is the stream of a residual network passed by. What is data
and what is made of weights alone is told from the leaves of the graph, so that weights may be normalised or transposed
on their way, and need not lie in a layer.
"""

from __future__ import annotations

import copy
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightkit.common.failures import in_short

Forward = Callable[[nn.Module], Tensor]
"""Runs a network on some sample, and gives the outputs that the loss takes."""

_PRODUCT = re.compile(
    r"_?(Addmm|Mm|Bmm|Baddbmm|Addbmm|Mv|Addmv|Dot|Linear|Trilinear|EuclideanDist|Cdist|MkldnnRnn|CudnnRnn)|\w*(Convolution|Conv\d)"
)
_VECTOR = re.compile(r"_?(Mv|Addmv|Dot)Backward")
_ELEMENTWISE = re.compile(r"_?(Sub|Rsub|Add|Mul|Div)Backward")
_LOOKUP = re.compile(r"_?(Embedding|Index|IndexSelect|Gather)")
_NORM = re.compile(r"\w*(BatchNorm|LayerNorm|GroupNorm|RmsNorm)")


class ForwardTrace(NamedTuple):
    """What a forward pass tells, in names of parameters."""

    products: tuple[tuple[str, ...], ...]
    """For each product that computes outputs, the latest first, what it multiplies the data with and its biases.

    There are several where their results are added up or put side by side.
    """
    after: tuple[str, ...]
    """Those of the operations after the products: scales, norms, other biases."""
    used: frozenset[str]
    """All that the outputs depend on."""
    shape: tuple[int, ...]
    """Of the outputs, the batch too."""


def trace(model: nn.Module, forward: Forward) -> ForwardTrace:
    """Run a network once, in eval mode, and find the parameters that compute its outputs.

    A copy is run that shares the parameters: buffers, modes and whatever a network keeps of its inputs stay.

    Args:
        model: The network.
        forward: Runs it on a sample; inputs that need a gradient are known as data.

    Raises:
        Exception: Whatever the copying or the forward pass raises.
    """
    parameters = dict(model.named_parameters())
    model_copy = shared_copy(model)
    requires_grad = {name: parameter.requires_grad for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.requires_grad_(parameter.is_floating_point())
        with torch.enable_grad():
            output = forward(model_copy)
        names = {id(parameter): name for name, parameter in parameters.items()}
        ndims = {name: parameter.ndim for name, parameter in parameters.items()}
        for loose in (False, True):
            graph = _AutogradGraph(output, names, ndims, loose=loose)
            products, after = graph.last_weights()
            if products:
                break
        return ForwardTrace(products, after, graph.used(), tuple(output.shape))
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(requires_grad[name])


def shared_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a network in eval mode that has the same parameters, and buffers of its own."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).eval()


class _AutogradGraph:
    """The autograd graph behind an output.

    Args:
        output: The output.
        names: Identity of each parameter of the network → its name.
        ndims: Name of a parameter → its number of dimensions.
        loose: Take every constant for data, and not only those in products, lookups and norms.
    """

    def __init__(self, output: Tensor, names: Mapping[int, str], ndims: Mapping[str, int], *, loose: bool) -> None:
        self._root: Any = output.grad_fn
        self._names, self._ndims, self._loose = names, ndims, loose
        self._has_data: dict[Any, bool] = {}
        """Whether a node depends on the data; all nodes are held here, as they are told apart by identity."""
        for node in _inputs_first(self._root):
            self._has_data[node] = self._depends_on_data(node)

    def used(self) -> frozenset[str]:
        """Return the names of all parameters in the graph."""
        leaves = (id(getattr(node, "variable", None)) for node in self._has_data)
        return frozenset(self._names[leaf] for leaf in leaves if leaf in self._names)

    def last_weights(self) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
        """Return the products that are met first on each way back from the output, and the parameters after them."""
        waiting, seen, products, passed = [(0, 0, self._root)], {self._root}, dict[Any, list[str]](), list[Any]()
        while waiting:
            node = heapq.heappop(waiting)[2]
            names = self._multiplied_parameters(node)
            if names:
                products[node] = names
                continue
            passed.append(node)
            for child in _children(node):
                if self._has_data[child] and child not in seen:
                    seen.add(child)
                    # When a node was made; a leaf comes before all.
                    time = -1 if hasattr(child, "variable") else int(child._sequence_nr())
                    heapq.heappush(waiting, (-time, len(seen), child))
        before = self._before(products)
        last = dict.fromkeys(tuple(names) for node, names in products.items() if node not in before)
        after = dict.fromkeys(name for node in passed if node not in before for name in self._own_parameters(node))
        return tuple(last), tuple(name for name in after if all(name not in names for names in last))

    def _before(self, nodes: Iterable[Any]) -> set[Any]:
        """Return all data that nodes are computed from."""
        waiting, before = [child for node in nodes for child in _children(node)], set[Any]()
        while waiting:
            node = waiting.pop()
            if node not in before and self._has_data[node]:
                before.add(node)
                waiting += _children(node)
        return before

    def _depends_on_data(self, node: Any) -> bool:
        variable = getattr(node, "variable", None)
        if variable is not None:
            return id(variable) not in self._names
        constant = any(child is None for child, _ in node.next_functions)
        reads = _LOOKUP.match(node.name()) or (constant and (self._loose or _matches(node, _PRODUCT, _NORM)))
        return bool(reads) or any(self._has_data[child] for child in _children(node))

    def _multiplied_parameters(self, node: Any) -> list[str]:
        """Return the names of the parameters that a node multiplies data with."""
        own = self._own_parameters(node)
        if not self._has_data[node] or not own or not self._is_product(node):
            return []
        least = 1 if _matches(node, _VECTOR) else 2
        return own if any(self._ndims[name] >= least for name in own) else []

    def _own_parameters(self, node: Any) -> list[str]:
        """Return the names of the parameters that go into a node without any data."""
        names: dict[str, None] = {}
        for child in _children(node):
            if not self._has_data[child]:
                leaves = (getattr(below, "variable", None) for below in _inputs_first(child))
                names |= dict.fromkeys(self._names[id(leaf)] for leaf in leaves if leaf is not None)
        return list(names)

    def _is_product(self, node: Any) -> bool:
        """Tell whether a node is a product or a lookup, or compares all of one thing with all of another."""
        if isinstance(node, BackwardCFunction) or _matches(node, _PRODUCT, _LOOKUP):
            return True
        if not _matches(node, _ELEMENTWISE):
            return False
        data = [child for child in _children(node) if self._has_data[child]]
        return bool(data) and all(_numel(child) < _numel(node) for child in data if _numel(child))


def _numel(node: Any) -> int:
    """Return the number of elements of what a node has computed; 0 where that is not known."""
    metadata = getattr(node, "_input_metadata", None) or ()
    return torch.Size(metadata[0].shape).numel() if metadata else 0


def _inputs_first(root: Any) -> list[Any]:
    """Return a node and all below it, each after what it is computed from."""
    done, ordered, waiting = set(), list[Any](), [(root, False)]
    while waiting:
        node, ready = waiting.pop()
        if ready:
            ordered.append(node)
        elif node is not None and node not in done:
            done.add(node)
            waiting += [(node, True), *((child, False) for child in _children(node))]
    return ordered


def _children(node: Any) -> list[Any]:
    return [child for child, _ in node.next_functions if child is not None]


def _matches(node: Any, *patterns: re.Pattern[str]) -> bool:
    return any(pattern.match(node.name()) for pattern in patterns)


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
    recordings, why = list[_Recorder](), "no sample of the inputs is known" if not forwards else ""
    for forward in forwards:
        try:
            recordings.append(_record(model, forward))
        except Exception as error:  # whatever a network may raise on inputs that are not its own
            why = why or f"a forward pass fails: {in_short(error)}"
        if len(recordings) == _RUNS:
            break
    if not recordings:
        return None, why
    uses = {name: tuple(moments) for name, moments in recordings[0].uses.items()}
    return RunningOrder(
        uses, frozenset(recordings[0].products), frozenset(_unsteady([each.uses for each in recordings]))
    ), ""


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
