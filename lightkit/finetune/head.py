"""The output layer of a network: what computes its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.common.modules import HEADS, TransposedLinear, inside, parameter_aliases, parent_of, path_of
from lightkit.finetune.tracing import Forward, ForwardTrace, trace

Found = Literal["named", "computed", "guessed"]
KEY = "finetune.head.name"
"""What users set to name another output layer."""
CONVOLUTIONS: tuple[type[nn.Module], ...] = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, *CONVOLUTIONS, TransposedLinear)
"""Layers that another one can be made like."""
_USUAL = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers that a guess goes by."""
_SHOWN = 5
"""Parts that are named one by one."""
_HOW = {
    "named": f"as {KEY} says",
    "computed": "found by a forward pass",
    "guessed": "guessed by the order of definition",
}


@dataclass(frozen=True)
class Head:
    """The output layer of a network."""

    path: str
    """Path of the layer, or name of the parameter where no layer holds it alone."""
    found: Found = "named"
    """How it was found."""
    why: str = ""
    """Why it had to be guessed."""
    beside: tuple[str, ...] = ()
    """Paths of further layers, and names of further parameters, that compute the outputs together with it."""
    output_shape: tuple[int, ...] | None = None
    """Shape of the outputs of one sample; None where no forward pass told."""
    computed_by: str = ""
    """What computes the outputs, where that is not the one that was named."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Paths of all its layers, and names of the parameters that no layer holds alone."""
        return (self.path, *self.beside)

    def describe(self) -> str:
        """Say what it is and how it was found: `fc (found by a forward pass); another one: finetune.head.name=PATH`."""
        how = _HOW[self.found] + (f", as {self.why}" if self.why else "")
        how += f"; a forward pass has its outputs from {self.computed_by}" if self.computed_by else ""
        shown = ", ".join(self.parts[:_SHOWN])
        shown += f" and {len(self.parts) - _SHOWN} more" if len(self.parts) > _SHOWN else ""
        how += "; together they make the outputs" if self.beside else ""
        return f"{shown} ({how})" + ("" if self.found == "named" else f"; another one: {KEY}=PATH")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"name": self.path, "found": self.found, "why": self.why, "beside": list(self.beside)}


def find_head(model: nn.Module, name: str | None = None, forwards: Sequence[Forward] = ()) -> Head | None:
    """Find the output layer.

    It is all that a forward pass computes the outputs with. Where that is several layers, the first of them is the one
    that a model of timm tells, one with a usual name, or the first that runs. Where no forward pass succeeds, it is
    guessed; see `guess_head`.

    Args:
        model: The network.
        name: Its path, or that of a part that ends in it; None looks for it.
        forwards: Ways to run the network on a sample, of which the first that succeeds tells.

    Returns:
        None where there is no such layer.

    Raises:
        UserError: There is nothing of the given name, or no output layer in it.
    """
    traced, why = _try_forwards(model, forwards)
    computed = None
    if traced and traced.products:
        parts, classifier = _parts(model, traced), _timm_classifier(model)
        usual = [part for part in parts if part == classifier]
        usual += [part for part in parts if not set(part.split(".")).isdisjoint(HEADS)]
        path = (*usual, *parts)[0]
        beside = tuple(part for part in parts if part != path)
        computed = Head(path, "computed", beside=beside, output_shape=traced.shape[1:])
    if name is not None:
        return _named_head(model, name, computed)
    return computed or guess_head(model, why)


def guess_head(model: nn.Module, why: str = "") -> Head | None:
    """Guess the output layer by what is known without running the network.

    timm's models tell it. Otherwise it is the last linear layer (or convolution) of the part with a usual name, or else
    the last linear layer of all.

    Args:
        model: The network.
        why: Why it has to be guessed.
    """
    path = _timm_classifier(model)
    path = path or next((path for usual in HEADS for path in _layers_in(model, usual, _USUAL)[-1:]), None)
    if path is None:
        path = next(reversed([path for path, module in model.named_modules() if isinstance(module, nn.Linear)]), None)
    return Head(path, "guessed", why) if path else None


def _try_forwards(model: nn.Module, forwards: Sequence[Forward]) -> tuple[ForwardTrace | None, str]:
    """Return what the first forward pass that succeeds tells, or why none did."""
    why = "no sample of the inputs is known" if not forwards else ""
    if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        return None, "its layers don't know their sizes yet"
    for forward in forwards:
        try:
            return trace(model, forward), "nothing in the network is multiplied with its inputs"
        except Exception as error:  # whatever a network may raise on inputs that are not its own
            why = why or f"a forward pass fails: {in_short(error)}"
    return None, why


def _parts(model: nn.Module, traced: ForwardTrace) -> list[str]:
    """Return the paths of the layers that compute the outputs, and the names of the parameters that none holds alone.

    Those that multiply the data come first, in the order in which they run, of one product the largest.
    """
    aliases, modules = parameter_aliases(model), dict(model.named_modules(remove_duplicate=False))
    first = {name: own for own, names in aliases.items() for name in names}
    sizes = {name: parameter.numel() * (parameter.ndim > 1) for name, parameter in model.named_parameters()}
    ordered = [
        name for names in reversed(traced.products) for name in sorted(names, key=sizes.__getitem__, reverse=True)
    ]
    ordered += traced.after
    rest = traced.used - set(ordered)

    def part_of(name: str) -> str:
        owners = [_owner(alias) for alias in aliases[name]]
        path = next((path for path in owners if isinstance(modules[path], LAYERS)), owners[0])
        if not path or isinstance(modules[path], (nn.ParameterList, nn.ParameterDict)):
            return name
        within = [own for own, _ in modules[path].named_parameters(prefix=path, remove_duplicate=False)]
        alone = {_owner(own) for own in within} == {path} and rest.isdisjoint(first[own] for own in within)
        return path if alone else name

    return list(dict.fromkeys(part_of(name) for name in ordered))


def _owner(name: str) -> str:
    """Return the path of the module that a parameter belongs to, also where something parametrizes it."""
    layer, _, parametrized = name.partition(".parametrizations.")
    return layer if parametrized else parent_of(name)


def _named_head(model: nn.Module, name: str, computed: Head | None) -> Head:
    """Return the output layer of a given name, which may be that of a part that ends in it."""
    if computed and any(inside(part, name) for part in computed.parts):
        return _chosen(model, computed, name)
    modules = {path: module for path, module in model.named_modules(remove_duplicate=False) if path}
    with_parameters = [path for path, module in modules.items() if any(True for _ in module.parameters(recurse=False))]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    facts: dict[str, Any] = {"output_shape": computed.output_shape, "computed_by": computed.path} if computed else {}
    if name in parameters:
        return Head(name, **facts)
    if name not in modules:
        choices = [*with_parameters, *(name for name in parameters if not parent_of(name))]
        raise UserError(
            "the network has no such module", argument="name", received=name, choices=choices, family="pattern"
        )
    layers = _layers_in(model, name, LAYERS) or [path for path in with_parameters if inside(path, name)]
    if not layers:
        raise UserError(
            "not an output layer",
            argument="name",
            received=f"{name} ({type(modules[name]).__name__})",
            expected="a linear layer or convolution, a part that ends in one, or another layer with weights",
            choices=with_parameters,
        )
    return Head(layers[-1], **facts)


def _chosen(model: nn.Module, computed: Head, name: str) -> Head:
    """Return what is in a part of the output layer, with the parameters beside one that no layer holds alone."""
    within = [part for part in computed.parts if inside(part, name)]
    parameters = dict(model.named_parameters(remove_duplicate=False)) if name == within[0] else {}
    more = [part for part in computed.parts if part in parameters and part not in within]
    bare = [part for part in more if parent_of(part) == parent_of(name) and name in parameters]
    return replace(computed, path=within[0], beside=(*within[1:], *bare), found="named")


def _layers_in(model: nn.Module, part: str, kinds: tuple[type[nn.Module], ...]) -> list[str]:
    return [path for path, module in model.named_modules() if inside(path, part) and isinstance(module, kinds)]


def _timm_classifier(model: nn.Module) -> str | None:
    """Return the path of the layer that a model of timm calls its classifier; None where it does not tell."""
    get_classifier = getattr(model, "get_classifier", None)
    classifier: Any = get_classifier() if callable(get_classifier) else None
    if isinstance(classifier, Sequence):
        classifier = classifier[0] if classifier else None
    path = path_of(model, classifier) if isinstance(classifier, nn.Module) else None
    layers = [] if path is None else _layers_in(model, path, _USUAL)
    return layers[-1] if layers else None
