"""What counts as a layer, rates that differ from layer to layer, and which parameters take no weight decay."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from lightkit.common.errors import UserError, keys_under
from lightkit.common.modules import inside, is_bias, is_norm
from lightkit.optim.rules import Settings, check_rate

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def without_decay(model: nn.Module, aliases: Mapping[str, str]) -> set[str]:
    """Find the first names of the parameters that weight decay does not suit.

    These are parameters with at most one dimension (biases, scales), biases of any shape by their name, everything in a
    norm layer (PyTorch's, or any class whose name ends in Norm, Norm2d, NormAct and the like) and what the model lists
    in `no_weight_decay()`, under its name or the one in `aliases`.
    """
    own_list: Any = getattr(model, "no_weight_decay", None)
    listed = set(own_list()) if callable(own_list) else set()
    spared = {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim <= 1 or is_bias(name) or not listed.isdisjoint((name, aliases.get(name, name)))
    }
    for path, module in model.named_modules():
        if is_norm(module):
            spared |= {f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters(recurse=False)}
    return spared


def layer_depths(model: nn.Module, order: Order | None = None) -> dict[str, int]:
    """Number the layer that each parameter belongs to, 0 at the input.

    timm's models tell by themselves (`group_matcher`). For every other model a layer is

    - a child of an `nn.Sequential`, `nn.ModuleList` or `nn.ModuleDict`, except that a stage which itself is, or holds,
      a list of equal blocks counts block by block;
    - outside of those, a child of the model, or of a module that mostly consists of such containers;
    - where the order is known, a parameter that no layer holds and that data are multiplied with.

    Layers are numbered as they first run. Where that is not known, the order in which modules were created stands for
    it.

    A layer with one-dimensional parameters only (a norm) belongs to the one before it. Parameters a module holds
    directly (class token, positions) belong to its first layer, or where they are used elsewhere to the layer that
    they follow. A shared parameter belongs to the layer in which it occurs first.

    Args:
        model: The network.
        order: When it uses its parameters; None where that is not known.
    """
    if hasattr(model, "group_matcher"):
        helper = importlib.import_module("timm.models").group_parameters
        groups: dict[int, list[str]] = helper(model, model.group_matcher(coarse=False))  # type: ignore[operator]
        numbers = {layer: number for number, layer in enumerate(sorted(groups))}
        return {name: numbers[layer] for layer, names in groups.items() for name in names}
    depths: dict[str, int] = {}
    depth, layers = -1, _defined(model)
    for layer in layers if order is None else in_order(layers, order):
        if depth < 0 or layer.heavy:
            depth += 1
        for name in (*layer.held, *layer.own):
            depths.setdefault(name, depth)
    return {name: depths[name] for name, _ in model.named_parameters()}


def order_notes(model: nn.Module, order: Order | None, why: str = "") -> list[str]:
    """Say for which layers `layer_depths` cannot tell the order from how they ran.

    Args:
        model: The network.
        order: When it uses its parameters; None where that is not known.
        why: Why it is not.
    """
    if hasattr(model, "group_matcher"):
        return []
    if order is None:
        return [f"order of the layers: that of their definition, as {why}"] if why else []
    return notes_on_order(_defined(model), order)


def depth_of(depths: Mapping[str, int], name: str) -> int:
    """Find the layer of a parameter that came into a model after `layer_depths` had looked at it.

    It belongs to the innermost module around it that has a place in `depths`: to its first layer, if that has several,
    as parameters do that a module holds directly.

    Args:
        depths: Layer by parameter name.
        name: Dotted name of the parameter, one of `depths` or another.
    """
    path = name
    while path:
        near = [depth for known, depth in depths.items() if f"{known}.".startswith(f"{path}.")]
        if near:
            return min(near)
        path = path.rpartition(".")[0]
    return min(depths.values(), default=0)


def _held_directly(module: nn.Module, path: str) -> list[str]:
    """List a module's own parameters, parametrized ones included, which are below a child called so."""
    own = [name for name, _ in module.named_parameters(recurse=False)]
    if is_parametrized(module):
        own += [f"parametrizations.{name}" for name, _ in module.parametrizations.named_parameters()]  # type: ignore[union-attr]
    return [f"{path}.{name}".lstrip(".") for name in own]


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a module is made of, by name, without parametrizations of its own parameters."""
    hidden = "parametrizations" if is_parametrized(module) else None
    return ((name, child) for name, child in module.named_children() if name != hidden)


def _defined(model: nn.Module) -> list[NetworkLayer]:
    """List the layers of a model in the order of their definition."""
    found, held, firsts = list[NetworkLayer](), _held_directly(model, ""), dict(model.named_parameters())
    for path, module, extra in _layers(model, ""):
        own = {f"{path}.{name}": parameter for name, parameter in module.named_parameters()}
        kept = NetworkLayer(
            path,
            tuple(own),
            held=(*held, *extra),
            heavy=any(parameter.ndim > 1 for parameter in own.values()),
            is_list=isinstance(module, (nn.ParameterList, nn.ParameterDict)),
            shared=firsts.keys().isdisjoint(own),
        )
        found.append(kept)
        held = []
    return found if not held else [NetworkLayer("", (), tuple(held), heavy=False)]


def _layers(module: nn.Module, path: str, *, inside: bool = False) -> Iterator[tuple[str, nn.Module, list[str]]]:
    """Yield path, module and names of the parameters its parents hold directly, layer by layer."""
    extra: list[str] = []
    for name, child in _children(module):
        child_path = f"{path}.{name}".lstrip(".")
        if not any(True for _ in child.parameters()):
            continue
        held = isinstance(module, _CONTAINERS)
        if not _is_made_of_layers(child, inside=held or inside):
            yield child_path, child, extra
            extra = []
            continue
        extra += _held_directly(child, child_path)
        for layer_path, layer, more in _layers(child, child_path, inside=held or inside):
            yield layer_path, layer, [*extra, *more]
            extra = []


def _is_made_of_layers(module: nn.Module, *, inside: bool) -> bool:
    """Tell whether a module is a list of layers and not one layer."""
    if type(module) in _CONTAINERS:
        return True
    if inside:
        return _is_repeated(module) or any(_is_repeated(child) for _, child in _children(module))
    total = sum(parameter.numel() for parameter in module.parameters())
    return 2 * sum(_held(child) for _, child in _children(module)) > total


def _held(module: nn.Module) -> int:
    """Count the parameter elements below containers."""
    if isinstance(module, _CONTAINERS):
        return sum(parameter.numel() for parameter in module.parameters())
    return sum(_held(child) for _, child in _children(module))


def _is_repeated(module: nn.Module) -> bool:
    """Tell whether a container holds equal blocks, each made of several layers."""
    if not isinstance(module, _CONTAINERS):
        return False
    kinds = {type_before_parametrizations(child) for child in module.children()}
    kind = next(iter(kinds), nn.Sequential)
    if len(kinds) != 1 or issubclass(kind, _CONTAINERS):
        return False
    return all(any(_children(child)) for child in module.children())


@dataclass(frozen=True)
class LayerRates:
    """A factor on the rate of each layer; none without a setting.

    Raises:
        UserError: A factor is out of its range, or both settings are given.
    """

    decay: float | None
    """Factor per layer counted from the output."""
    slices: tuple[float, ...]
    """Factor for each of as many consecutive slices of the layers, from input to output."""
    decay_key: str = field(kw_only=True)
    """Configuration key of `decay`."""
    slices_key: str = field(kw_only=True)
    """Configuration key of `slices`."""

    def __post_init__(self) -> None:
        if self.decay is not None and not 0.0 < self.decay <= 1.0:
            expected = "above 0, at most 1"
            raise UserError("not a factor per layer", key=self.decay_key, expected=expected, received=self.decay)
        if self.decay is not None and self.slices:
            raise UserError(
                f"the rates of the layers are given twice, here and in {self.slices_key}",
                key=self.decay_key,
                fix=f"set {self.decay_key}=null or {self.slices_key}=[]",
                family="contradiction",
            )
        for index, factor in enumerate(self.slices):
            with keys_under(f"{self.slices_key}[{index}]"):
                check_rate(factor, "")

    @property
    def asked(self) -> bool:
        """Tell whether there is a factor to apply."""
        return self.decay is not None or bool(self.slices)

    def applied(
        self, settings: Mapping[str, Settings], depths: Mapping[str, int], aliases: Mapping[str, str]
    ) -> dict[str, Settings]:
        """Return the settings with the factor of each parameter's layer.

        Args:
            settings: Settings by parameter name.
            depths: Layer by parameter name, of the whole model.
            aliases: The name that `depths` has for some parameters.

        Raises:
            UserError: There are more slices than layers.
        """
        count, pieces = 1 + max(depths.values()), len(self.slices)
        if pieces > count:
            raise UserError(
                "more slices than layers",
                key=self.slices_key,
                expected=f"at most {count} slices, one for each layer of the model",
                received=f"{pieces} slices {list(self.slices)}",
            )
        if self.decay is None:
            key, numbers = self.slices_key, [layer * pieces // count for layer in range(count)]
            factors = [(_numbered("slice", n, pieces), self.slices[n]) for n in numbers]
        else:
            key = self.decay_key
            factors = [(_numbered("layer", n, count), self.decay ** (count - 1 - n)) for n in range(count)]
        found = {name: factors[depth_of(depths, aliases.get(name, name))] for name in settings}
        return {name: base.in_layer(*found[name], key=key) for name, base in settings.items()}


def _numbered(kind: str, number: int, count: int) -> str:
    """Name one of several such that names sort by number: `layer_03` of 12."""
    return f"{kind}_{number:0{len(str(count - 1))}d}"


_SHOWN = 3


class Order(Protocol):
    """When a network uses its parameters: see `lightkit.finetune.tracing.RunningOrder`."""

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
        ([path for path in again if path not in unsteady], "used again after later layers, so placed where first used"),
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
