"""The output layer of a network: what computes its outputs, and another one in its place."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.common.modules import (
    HEADS,
    TransposedLinear,
    inside,
    parameter_aliases,
    parent_of,
    path_of,
    replace_submodule,
)
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


INIT = ("default", "zeros", "normal")


def outputs_of(model: nn.Module, path: str) -> int:
    """Return the number of outputs of a layer that can be replaced."""
    layer: Any = model.get_submodule(path)
    if isinstance(layer, TransposedLinear):
        return int(layer.nf)
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def has_outputs(model: nn.Module, head: Head, outputs: int) -> bool:
    """Tell whether an output layer has so many outputs, as far as that can be told."""
    layer = dict(model.named_modules(remove_duplicate=False)).get(head.path)
    if isinstance(layer, LAYERS) and not head.computed_by and not head.beside:
        return outputs_of(model, head.path) == outputs
    return head.output_shape is None or outputs in (head.output_shape or (1,))


def replace_head(model: nn.Module, head: Head, outputs: int, *, init: str = "default") -> list[str]:
    """Put a new output layer in the place of another: same inputs, other outputs, new weights.

    Where several layers make the outputs, all of them with that number of outputs are replaced.

    Args:
        model: The network; changed in place.
        head: From `find_head`.
        outputs: Number of outputs.
        init: `default`: as PyTorch starts such a layer; `zeros`: all outputs start equal; `normal`: standard deviation
            0.01, biases zero.

    Returns:
        The paths of the new layers.

    Raises:
        UserError: There is no such way to start it, or it is not known how such a layer is built.
    """
    check_choice("init", init, INIT, "no such way to start a layer")
    if head.computed_by:
        what = f"a new {head.path} would not change the outputs, which {head.computed_by} computes"
        fix = f"{KEY}={head.computed_by}, or finetune.head.replace=never"
        raise UserError(what, argument="name", received=head.path, fix=fix)
    sized = _sized_parts(model, head)
    reason = next(filter(None, (_why_not(model, path, outputs) for path in sized)), None)
    if not sized:
        shape = " × ".join(map(str, head.output_shape or ()))
        reason = f"its parts make {shape} outputs together, and how many each is to make is not known"
    if reason:
        raise UserError(
            f"the output layer cannot be replaced: {reason}",
            argument="replace",
            expected=f"a linear layer or a convolution, to be made anew for {outputs} outputs",
            received=head.describe(),
            fix="let the network's class take num_classes, which is then that of the data, and build itself for it",
        )
    for path in sized:
        old: Any = model.get_submodule(path)
        new = _make_like(old, outputs)
        new.to(device=old.weight.device, dtype=old.weight.dtype)
        new.train(old.training)
        _initialize(new, init)
        replace_submodule(model, path, new)
    for owner in (model, getattr(model, "config", None)):
        for size in ("num_classes", "num_labels"):
            if isinstance(getattr(owner, size, None), int):
                setattr(owner, size, outputs)
    return sized


def _sized_parts(model: nn.Module, head: Head) -> list[str]:
    """Return the parts of an output layer that depend on the number of outputs; none where each makes some of them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    counts = {part: outputs_of(model, part) for part in head.parts if isinstance(modules.get(part), LAYERS)}
    if not head.beside or not counts:
        return [head.path]
    known = head.output_shape or tuple(counts.values())
    count = next((number for number in counts.values() if number in known), None)

    def depends(part: str) -> bool:
        tensors = [model.get_parameter(part)] if part not in modules else list(modules[part].parameters())
        return counts[part] == count if part in counts else any(count in tensor.shape for tensor in tensors)

    return [part for part in head.parts if count is not None and depends(part)]


def _why_not(model: nn.Module, path: str, outputs: int) -> str | None:
    """Return why no layer like the one at `path` can be made."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if path not in modules:
        return f"{path} is a parameter that no layer holds alone"
    layer: Any = modules[path]
    kind = type(layer).__name__
    if not isinstance(layer, LAYERS):
        return f"{path} is a {kind}, and how one is built for another number of outputs is not known"
    if isinstance(layer, CONVOLUTIONS) and outputs % int(layer.groups):  # type: ignore[arg-type]
        return f"{path} has {layer.groups} groups, which cannot share {outputs} outputs"
    own: Iterable[tuple[str, Tensor]] = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    sized = [name for name, each in own if name not in ("weight", "bias") and outputs_of(model, path) in each.shape]
    if sized and type_before_parametrizations(layer) is not nn.Linear and not isinstance(layer, CONVOLUTIONS):
        return f"{path} is a {kind}, whose {sized[0]} depends on the number of outputs too"
    return None


def _initialize(layer: Any, init: str) -> None:
    if init == "zeros":
        nn.init.zeros_(layer.weight)
    elif init == "normal":
        nn.init.normal_(layer.weight, std=0.01)
    if init != "default" and layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _make_like(old: Any, outputs: int) -> Any:
    """Make a layer of the class and with the settings of another, but for the number of outputs."""
    if type_before_parametrizations(old) is nn.Linear:
        return nn.Linear(old.in_features, outputs, bias=old.bias is not None)
    if isinstance(old, CONVOLUTIONS):
        convolution: Any = old
        kind = next(kind for kind in CONVOLUTIONS if isinstance(old, kind))
        names = ["in_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
        names += ["output_padding"] if convolution.transposed else []
        settings = {name: getattr(old, name) for name in names}
        return kind(out_channels=outputs, bias=convolution.bias is not None, **settings)
    # A linear layer of a class of its own: a copy with other weights.
    new: Any = copy.deepcopy(old)
    transposed = isinstance(old, TransposedLinear)
    setattr(new, "nf" if transposed else "out_features", outputs)
    inputs = new.weight.shape[0 if transposed else 1]
    new.weight = nn.Parameter(new.weight.new_empty((inputs, outputs) if transposed else (outputs, inputs)))
    if new.bias is not None:
        new.bias = nn.Parameter(new.bias.new_zeros(outputs))
    if callable(getattr(new, "reset_parameters", None)):
        new.reset_parameters()
    else:
        nn.init.normal_(new.weight, std=0.02)
    return new
