"""The output layer of a network: what computes its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.common.modules import HEADS, TransposedLinear, inside, parameter_aliases, parent_of, path_of
from lightkit.finetune.tracing import Forward, Trace, Weights, trace

Found = Literal["named", "computed", "guessed"]
KEY = "finetune.head.name"
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
    """Names of the parameters that belong to it and are not below `path`."""
    sizes: tuple[int, ...] | None = None
    """Shape of the outputs of one sample; None where no forward pass told."""

    other: str = ""
    """What computes the outputs, where that is not the one that was named."""

    def describe(self) -> str:
        """`fc (found by a forward pass); another one: finetune.head.name=PATH`."""
        how = _HOW[self.found] + (f", as {self.why}" if self.why else "")
        how += f"; a forward pass has its outputs from {self.other}" if self.other else ""
        return f"{self.path} ({how})" + ("" if self.found == "named" else f"; another one: {KEY}=PATH")

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"name": self.path, "found": self.found, "why": self.why, "beside": list(self.beside)}


def find_head(model: nn.Module, name: str | None = None, forwards: Sequence[Forward] = ()) -> Head | None:
    """The output layer.

    It is what a forward pass computes the outputs with. Where that is several layers, it is the one that a model of
    timm tells, one with a usual name, or the last. Where no forward pass succeeds, it is guessed; see `guess_head`.

    Args:
        model: The network.
        name: Its path, or that of a part that ends in it; None looks for it.
        forwards: Ways to run the network on a sample, of which the first that succeeds tells.

    Returns:
        None where there is no such layer.

    Raises:
        UserError: There is nothing of the given name, or no output layer in it.
    """
    traced, why = _traced(model, forwards)
    computed = _computed(model, traced) if traced and traced.layers else None
    if name is not None:
        return _named(model, name, computed)
    return computed or guess_head(model, why)


def guess_head(model: nn.Module, why: str = "") -> Head | None:
    """The output layer by what is known without running the network.

    timm's models tell it. Otherwise it is the last linear layer (or convolution) of the part with a usual name, or else
    the last linear layer of all.

    Args:
        model: The network.
        why: Why it has to be guessed.
    """
    path = _told(model) or next((path for usual in HEADS for path in _layers(model, usual, _USUAL)[-1:]), None)
    if path is None:
        path = next(reversed([path for path, module in model.named_modules() if isinstance(module, nn.Linear)]), None)
    return Head(path, "guessed", why) if path else None


def _traced(model: nn.Module, forwards: Sequence[Forward]) -> tuple[Trace | None, str]:
    """What the first forward pass that succeeds tells, or why none did."""
    why = "no sample of the inputs is known" if not forwards else ""
    if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        return None, "its layers don't know their sizes yet"
    for forward in forwards:
        try:
            return trace(model, forward), "nothing in the network is multiplied with its inputs"
        except Exception as error:  # whatever a network may raise on inputs that are not its own
            why = why or f"a forward pass fails: {in_short(error)}"
    return None, why


def _computed(model: nn.Module, traced: Trace) -> Head:
    """The output layer out of those that a forward pass found."""
    told, every = _told(model), [_held(model, weights) for weights in traced.layers]
    usual = [head for head in every if head[0] == told]
    usual += [head for head in every if not set(head[0].split(".")).isdisjoint(HEADS)]
    path, beside = (*usual, *every)[0]
    return Head(path, "computed", beside=beside, sizes=traced.shape[1:])


def _held(model: nn.Module, weights: Weights) -> tuple[str, tuple[str, ...]]:
    """Path of the layer that holds some weights, or the name of the largest and those of the others."""
    names, modules = parameter_aliases(model), dict(model.named_modules(remove_duplicate=False))
    sizes = {name: parameter.numel() * (parameter.ndim > 1) for name, parameter in model.named_parameters()}
    largest = max(weights.names, key=sizes.__getitem__)
    holders = [_holder(name) for name in names[largest]]
    path = next((path for path in holders if isinstance(modules[path], LAYERS)), holders[0])
    own = {_holder(name) for name, _ in modules[path].named_parameters(prefix=path)}
    if path and own == {path}:
        return path, ()
    others = (name for name in (*weights.names, *weights.after) if _holder(name) == path and name != largest)
    return largest, tuple(others)


def _holder(name: str) -> str:
    """Path of the module that a parameter belongs to, also where something parametrizes it."""
    layer, _, parametrized = name.partition(".parametrizations.")
    return layer if parametrized else parent_of(name)


def _named(model: nn.Module, name: str, computed: Head | None) -> Head:
    modules = {path: module for path, module in model.named_modules(remove_duplicate=False) if path}
    holding = [path for path, module in modules.items() if any(True for _ in module.parameters(recurse=False))]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if computed and inside(computed.path, name):
        return replace(computed, found="named")
    rest: dict[str, Any] = {"sizes": computed.sizes, "other": computed.path} if computed else {}
    if name in parameters:
        return Head(name, **rest)
    if name not in modules:
        choices = [*holding, *(name for name in parameters if not parent_of(name))]
        raise UserError("the network has no such module", key=KEY, received=name, choices=choices)
    last = _layers(model, name, LAYERS) or [path for path in holding if inside(path, name)]
    if not last:
        received = f"{name} ({type(modules[name]).__name__})"
        expected = "a linear layer or convolution, a part that ends in one, or another layer with weights"
        raise UserError("not an output layer", key=KEY, received=received, expected=expected, choices=holding)
    return Head(last[-1], **rest)


def _layers(model: nn.Module, part: str, kinds: tuple[type[nn.Module], ...]) -> list[str]:
    return [path for path, module in model.named_modules() if inside(path, part) and isinstance(module, kinds)]


def _told(model: nn.Module) -> str | None:
    """What a model of timm says its classifier is."""
    tell = getattr(model, "get_classifier", None)
    classifier: Any = tell() if callable(tell) else None
    if isinstance(classifier, Sequence):
        classifier = classifier[0] if classifier else None
    if not isinstance(classifier, nn.Module):
        return None
    path = path_of(model, classifier)
    if path is None:
        return None
    layers = _layers(model, path, _USUAL)
    return layers[-1] if layers else None
