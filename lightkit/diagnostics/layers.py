"""The layers of a model as they run: what each takes, gives and holds (by torchinfo)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from lightkit.common.modules import tensors
from lightkit.diagnostics.footprint import on_copy

Shape = tuple[int, ...]
_NUMBER = re.compile(r"\d+")
_DEEPEST = 1000


@dataclass(frozen=True)
class Call:
    """How a model is called."""

    args: tuple[Any, ...] = ()
    """Arguments by place."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments by name."""

    def run(self, model: nn.Module) -> Any:
        """Call a model."""
        return model(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Layer:
    """A module of a model, with those below it."""

    name: str
    """Its path; empty for the model."""
    kind: str
    """Its class."""
    parameters: int
    """Numbers in it and below."""
    trainable: int
    """Those of them that train."""
    input: Shape | None = None
    """Shape of its first input; None where it does not run by itself."""
    output: Shape | None = None
    """Shape of its first output, likewise."""
    calls: int = 1
    """How often it runs in a pass."""
    flops: int = 0
    """Operations in it and below, of all calls."""
    children: tuple[Layer, ...] = ()
    """The layers in it, in the order in which they run."""

    @property
    def label(self) -> str:
        """Return the last part of its name."""
        return self.name.rpartition(".")[2]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Layer]]:
        """Return this layer and all below it with their depths."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def counted(self, flops: Mapping[str, int]) -> Layer:
        """Return the same with operations by name."""
        children = tuple(child.counted(flops) for child in self.children)
        below = sum(child.flops for child in children) if self.output is None else 0
        return replace(self, flops=flops.get(self.name, below), children=children)

    def is_like(self, other: Layer) -> bool:
        """Tell whether another layer differs in nothing but the numbers in its name."""
        mine, theirs = (
            (one.kind, one.parameters, one.trainable, one.input, one.output, one.calls, one.flops, len(one.children))
            for one in (self, other)
        )
        return mine == theirs and all(
            one.label == two.label and one.is_like(two) for one, two in zip(self.children, other.children)
        )


def layers_of(model: nn.Module, call: Call) -> Layer:
    """List the layers of a model in the order in which they run.

    Args:
        model: The network; nothing of it changes.
        call: How to call it.

    Raises:
        Exception: Whatever the model raises.
    """
    return on_copy(model, (call.args, dict(call.kwargs)), lambda copied, given, _device: _traced(copied, Call(*given)))


def _traced(model: nn.Module, call: Call) -> Layer:
    """Let torchinfo run the model."""
    import torchinfo

    # It takes neither None nor an argument by a name that it has itself: it gets the tensors, and the model the rest.
    model.register_forward_pre_hook(lambda *_: (call.args, dict(call.kwargs)), with_kwargs=True, prepend=True)
    outputs: dict[int, Shape] = {}

    def note(module: nn.Module, _inputs: Any, output: Any) -> None:
        first = next(tensors(output), None)  # torchinfo takes the last of several
        if first is not None:
            outputs[id(module)] = tuple(first.shape)

    for module in model.modules():
        module.register_forward_hook(note)
    found = torchinfo.summary(
        model,
        input_data=[*tensors((call.args, dict(call.kwargs)))] or [torch.empty(0)],
        depth=_DEEPEST,
        col_names=("input_size", "output_size", "num_params"),
        cache_forward_pass=False,
        mode="eval",
        verbose=0,
    )
    return _tree(found.summary_list, 0, len(found.summary_list), 0, "", outputs)[0]


def _tree(
    found: Sequence[Any], begin: int, end: int, depth: int, above: str, outputs: Mapping[int, Shape]
) -> tuple[Layer, ...]:
    """Make layers of torchinfo's flat list, in which those below a layer come after it."""
    starts = [at for at in range(begin, end) if found[at].depth == depth]
    layers: dict[str, Layer] = {}
    for start, stop in pairwise([*starts, end]):
        info = found[start]
        name = "" if depth == 0 else f"{above}.{info.var_name}" if above else info.var_name
        if name in layers:
            layers[name] = replace(layers[name], calls=layers[name].calls + 1)
            continue
        layers[name] = Layer(
            name,
            info.class_name,
            info.num_params,
            info.trainable_params,
            _shape(info.input_size) if info.executed else None,
            outputs.get(info.layer_id),
            children=_tree(found, start + 1, stop, depth + 1, name, outputs),
        )
    return tuple(layers.values())


def _shape(sizes: Any) -> Shape | None:
    """Return a shape as torchinfo has it; None where it has none."""
    while isinstance(sizes, (list, tuple)) and sizes and isinstance(sizes[0], (list, tuple)):
        sizes = sizes[0]
    return tuple(int(size) for size in sizes) or None


def runs_of_alike(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Put neighbours together that differ in the numbers of their names only, as the blocks of a transformer do."""
    runs: list[list[Layer]] = []
    for layer in layers:
        if runs and _is_next(layer, runs[-1][-1]):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _is_next(layer: Layer, last: Layer) -> bool:
    """Tell whether a layer repeats the one before it; single ones, such as activations, stay for themselves."""
    pattern = _NUMBER.sub("*", layer.label)
    same = pattern != layer.label and pattern == _NUMBER.sub("*", last.label)
    return same and bool(layer.children) and layer.is_like(last)


class _Captured(Exception):
    """Ends a step as soon as the model is called."""


def first_call(model: nn.Module, step: Callable[[nn.Module], Any]) -> Call:
    """Find out how a step calls the model, without computing it.

    Args:
        model: The network.
        step: Uses the model.

    Raises:
        Exception: Whatever the step raises before it calls the model.
    """
    calls: list[Call] = []

    def stop(_module: nn.Module, args: Any, kwargs: Any) -> None:
        calls.append(Call(args, kwargs))
        raise _Captured

    with model.register_forward_pre_hook(stop, with_kwargs=True, prepend=True), suppress(_Captured):
        step(model)
    if not calls:
        raise RuntimeError("the step does not call the model")
    return calls[0]
