"""Layers in the order in which a network runs them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lightkit.common.modules import inside

_SHOWN = 3


class Order(Protocol):
    """When a network uses its parameters: see `lightkit.finetune.running_order.RunningOrder`."""

    @property
    def uses(self) -> Mapping[str, Sequence[int]]:
        """Name of a parameter → the moments of a forward pass at which it is used."""

    @property
    def products(self) -> Collection[str]:
        """Names of the parameters that data are multiplied with."""

    @property
    def unsteady(self) -> Collection[str]:
        """Names of those whose place in the order is not the same with other samples."""


@dataclass(frozen=True)
class NetworkLayer:
    """A layer of a network, or a parameter that is one by itself."""

    path: str
    """Where it is."""
    own: tuple[str, ...]
    """Names of its parameters."""
    held: tuple[str, ...] = ()
    """Names of those that modules around it hold directly; it is the first layer in these."""
    heavy: bool = True
    """Whether a parameter has several dimensions; a layer without one, such as a norm, belongs to the one before it."""
    is_list: bool = False
    """Whether it is a list of parameters."""
    shared: bool = False
    """Whether all its parameters are those of a layer that is defined before."""

    def start(self, uses: Mapping[str, Sequence[int]]) -> int | None:
        """Return when it first runs; None if it does not."""
        names = [name for name in self.own if name in uses]
        if self.own and not names:  # it has been replaced
            names = [name for name in uses if inside(name, self.path)]
        return min((uses[name][0] for name in names), default=None)


def in_order(layers: Sequence[NetworkLayer], order: Order) -> list[NetworkLayer]:
    """Sort layers by when they first run; one that does not run follows the one that is defined before it.

    Args:
        layers: In the order of their definition.
        order: When the network uses its parameters.
    """
    timed, last = list[tuple[int, bool, NetworkLayer]](), -1
    for layer in _with_singles(layers, order.products):
        start = layer.start(order.uses)
        last = last if start is None else start
        timed.append((last, start is not None, layer))
    timed.sort(key=lambda entry: entry[0])
    starts = [start if runs else None for start, runs, _ in timed]
    return _with_held_in_place([layer for *_, layer in timed], starts, order.uses)


def notes_on_order(layers: Sequence[NetworkLayer], order: Order) -> list[str]:
    """Say where the order of the layers cannot be told from how they ran.

    Args:
        layers: In the order of their definition.
        order: When the network uses its parameters.
    """
    known = [layer for layer in _with_singles(layers, order.products) if layer.heavy and not layer.shared]
    starts = {layer.path: layer.start(order.uses) for layer in known}
    moments = sorted(start for start in starts.values() if start is not None)
    idle = [layer.path for layer in known if starts[layer.path] is None]
    unsteady = [layer.path for layer in known if not set(layer.own).isdisjoint(order.unsteady)]
    again = [layer.path for layer in known if layer.path not in unsteady and _runs_again(layer, moments, order.uses)]
    found = (
        (idle, "not used in a forward pass, so placed behind the layer that is defined before"),
        (unsteady, "run in an order that depends on the samples, so placed as the first of them tell"),
        (
            [path for path in again if path not in unsteady],
            "used again after later layers, so placed where first used",
        ),
    )
    return [f"order of the layers: {_shown(paths)}: {what}" for paths, what in found if paths]


def _runs_again(layer: NetworkLayer, starts: Sequence[int], uses: Mapping[str, Sequence[int]]) -> bool:
    """Tell whether another layer starts between two uses of the same parameter."""
    moments = [uses[name] for name in layer.own if name in uses]
    return any(each[0] < start < each[-1] for each in moments for start in starts)


def _with_singles(layers: Iterable[NetworkLayer], products: Collection[str]) -> Iterator[NetworkLayer]:
    """Take parameters that no layer holds, and that data are multiplied with, as layers of their own."""
    carried: tuple[str, ...] = ()
    for layer in layers:
        loose = (*layer.held, *(layer.own if layer.is_list else ()))
        singles = [name for name in loose if name in products]
        yield from (NetworkLayer(name, (name,)) for name in singles)
        own = tuple(name for name in layer.own if name not in singles)
        held = (*carried, *(name for name in layer.held if name not in singles))
        carried = () if own else held
        if own:
            whole = len(own) == len(layer.own)  # what is left of a list are biases and scales
            yield replace(layer, own=own, held=held, heavy=layer.heavy and whole)
    if carried:
        yield NetworkLayer("", (), carried, heavy=False)


def _with_held_in_place(
    layers: Sequence[NetworkLayer], starts: Sequence[int | None], uses: Mapping[str, Sequence[int]]
) -> list[NetworkLayer]:
    """Move parameters that modules hold directly, and that are used far from their layer, to the one they follow."""
    held = [list[str]() for _ in layers]
    for index, layer in enumerate(layers):
        for name in layer.held:
            moment = uses[name][0] if name in uses else -1
            begun = [number for number, start in enumerate(starts) if start is not None and start <= moment]
            before = begun[-1] if begun else 0
            near = name not in uses or index in (before, before + 1)
            held[index if near else before].append(name)
    return [replace(layer, held=tuple(names)) for layer, names in zip(layers, held)]


def _shown(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
