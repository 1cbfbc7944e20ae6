"""Which tensors belong together, told by their names: those of one layer are loaded together or not at all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_MADE = re.compile(r"parametrizations\.([^.]+)\.[^.]+$")
_ROLE = re.compile(r"weight|bias")


def torn(names: Iterable[str], fitting: Iterable[str], *, unfit: Collection[str]) -> dict[str, str]:
    """Find tensors that fit, in layers of which another does not.

    Args:
        names: Names of all tensors of the model.
        fitting: Names of those that fit.
        unfit: Names of those that do not.

    Returns:
        Name of each that fits → the first of its layer that does not.
    """
    layers = _layers(names)
    first: dict[str, str] = {}
    for name in unfit:
        first.setdefault(layers[name], name)
    return {name: first[layers[name]] for name in fitting if layers[name] in first}


def _layers(names: Iterable[str]) -> dict[str, str]:
    """Find the layer of each tensor: its module, if that holds no others, or what it has in common with its bias.

    The class token of a transformer and its positions are no layer, `in_proj_weight` and `in_proj_bias` are one.
    """
    plain = {name: _MADE.sub(r"\1", name) for name in names}
    modules = {own.rpartition(".")[0] for own in plain.values()}
    holding = {above for module in modules for above in _above(module)}
    found = {}
    for name, own in plain.items():
        module, _, last = own.rpartition(".")
        found[name] = f"{module}.{_ROLE.sub('', last)}" if module in holding else module
    return found


def _above(path: str) -> list[str]:
    """List the paths above a module, with the empty one of the network."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts))]
