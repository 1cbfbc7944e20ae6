"""LoRA: layers learn a low-rank change of their weights (https://arxiv.org/abs/2106.09685).

Every weight W of an adapted layer gets two matrices, `lora_A` at its inputs and `lora_B` at its outputs, and the layer
computes with `W + scale · B A`. B is zero at the start, so that the network computes what it did before. There are two
ways to do it, which learn the same and merge to the same weights:

- `parametrize` changes the weight itself, and so is right however a network uses its weight. W goes on as
  `fc.parametrizations.weight.original`, beside `fc.parametrizations.weight.0.lora_A`.
- `wrap` adds `B A x` to the output of the layer. It is faster for large layers with few tokens, keeps all names
  (`fc.lora.lora_A` is new), and adds small changes to weights of low precision without rounding them away. A network
  that reads `fc.weight` without calling `fc` does not see it.

`nn.MultiheadAttention` never calls its layers and is always parametrized. Its q, k and v get matrices of their own,
also where their weights are packed into one, and so does its output projection. What dropout means is said at
`LowRankWeight` and `LowRankPath`; embeddings have none. After weight norm, spectral norm and other parametrizations
the product is added to what they make (see `lightkit.finetune.peft.lowrank`): only the part below is normed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import Problems, UserError
from lightkit.common.modules import TransposedLinear
from lightkit.finetune.peft.injected import join_names, new_parameter_names
from lightkit.finetune.peft.lowrank import (
    LowRank,
    LowRankPath,
    LowRankWeight,
    add_path,
    effective_weight,
    matrix_shape,
    parametrizations,
    source_parameters,
)


def inject_lora(
    model: nn.Module,
    ranks: Mapping[str, int],
    *,
    alpha: float,
    dropout: float = 0.0,
    rslora: bool = False,
    impl: Impl = "parametrize",
    generator: torch.Generator | None = None,
) -> list[str]:
    """Put low-rank matrices beside weights. What the network computes, and what of it trains, stays as it is.

    A weight that several layers share is adapted for all of them with the same matrices, so that it stays one weight:
    LoRA on a tied embedding also adapts the output layer that is tied to it, as training the embedding would.

    Args:
        model: The network; changed in place.
        ranks: Path of a layer → rank of its matrices. An attention's `out_proj` may have an entry of its own.
        alpha: Scale times rank: the product of the matrices is multiplied by `alpha / rank`.
        dropout: Probability of dropping an input of the low-rank product in training, 0 to below 1.
        rslora: Multiply by `alpha / √rank`, so that a high rank does not learn slower (https://arxiv.org/abs/2312.03732).
        impl: `parametrize` or `wrap`, see above.
        generator: Draws the matrices; None takes the global generator.

    Returns:
        Names of the new parameters, in the order of the network.

    Raises:
        UserError: A layer cannot be adapted, a rank is larger than the layer, or there is no layer.
    """
    check_range("alpha", alpha, above=0, what="LoRA needs a scale")
    check_range("dropout", dropout, low=0, below=1, what="not a probability")
    check_choice("impl", impl, get_args(Impl), "no such way to do LoRA")
    targets = find_lora_targets(model, ranks, impl=impl)
    known = list(model.parameters())
    by_weight: dict[object, LowRank] = {}
    for target in targets:
        kind = LowRankPath if target.wrapped else LowRankWeight
        is_embedding = isinstance(target.layer, nn.Embedding)
        by_weight[target.identity] = lora = kind(
            target.weight,
            target.rank,
            scale=alpha / (target.rank**0.5 if rslora else target.rank),
            dropout=0.0 if is_embedding else dropout,
            parts=target.parts,
            transposed=isinstance(target.layer, TransposedLinear),
            normal=is_embedding,
            generator=generator,
            share_with=by_weight.get(target.identity),
        )
        if target.wrapped:
            target.layer.add_module("lora", lora.train(target.layer.training))
            target.layer.register_forward_hook(add_path, with_kwargs=True)
        else:
            # `unsafe` only leaves out a trial run; the weight keeps its shape and type.
            parametrize.register_parametrization(target.layer, target.tensor, lora, unsafe=True)
            _make_picklable(target.layer)
    return new_parameter_names(model, known)


def lora_b_names(model: nn.Module) -> list[str]:
    """Return the names of the matrices B, which start at zero and may learn faster.

    LoRA+ (https://arxiv.org/abs/2402.12354) trains them with a higher learning rate than the matrices A.
    """
    matrices = {id(module.lora_B) for module in model.modules() if isinstance(module, LowRank)}
    return [name for name, parameter in model.named_parameters() if id(parameter) in matrices]


def _make_picklable(module: nn.Module) -> None:
    """Let a module with parametrizations be pickled, which PyTorch refuses since its class is made on the spot.

    Args:
        module: The module; its class is its own, and gets a way to be made again.
    """
    type(module).__reduce_ex__ = _reduce  # type: ignore[assignment]


def _reduce(module: nn.Module, protocol: Any) -> tuple[Any, ...]:
    kind = parametrize.type_before_parametrizations(module)
    tensors = tuple(module.parametrizations)  # type: ignore[arg-type]
    return _restore, (kind, tensors), module.__dict__


def _restore(kind: type[nn.Module], tensors: tuple[str, ...]) -> nn.Module:
    """Make a module of the right class; unpickling then gives it its contents."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name in tensors:
        module.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
    _make_picklable(module)
    return module


Impl = Literal["parametrize", "wrap"]
SUPPORTED: tuple[type[nn.Module], ...] = (
    nn.Linear,
    TransposedLinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.Embedding,
    nn.MultiheadAttention,
)
"""Layers that can be adapted."""
_SUPPORTED_NAMES = ", ".join(kind.__name__ for kind in SUPPORTED)
_NEVER_CALLED = (nn.MultiheadAttention, NonDynamicallyQuantizableLinear)
"""Attentions and their output projections: paths beside these would not be taken."""


@dataclass(frozen=True)
class LoraTarget:
    """One weight that is to be adapted."""

    path: str
    """Of the layer that holds it."""
    layer: nn.Module
    """The layer."""
    tensor: str
    """What the layer calls the weight."""
    parts: int
    """Matrices stacked in it."""
    rank: int
    """Of its low-rank change."""
    wrapped: bool
    """Whether the change is a path beside the layer."""

    @property
    def name(self) -> str:
        """Full name of the weight."""
        return join_names(self.path, self.tensor)

    @property
    def weight(self) -> Tensor:
        """The weight itself, or what the layer makes it of its parameters."""
        return effective_weight(self.layer, self.tensor)

    @property
    def identity(self) -> object:
        """Equal for the same weight in several layers."""
        own = self.layer._parameters.get(self.tensor)
        return (id(self.layer), self.tensor) if own is None else id(own)

    @property
    def place(self) -> tuple[int, str]:
        """Layer and name of the weight, for this layer alone."""
        return id(self.layer), self.tensor


def largest_rank(layer: nn.Module) -> int:
    """Return the largest rank a layer can take: the shorter side of the smallest of its matrices."""
    sides = [min(matrix_shape(effective_weight(layer, name), parts)) for name, parts in _own_weights(layer).items()]
    return min(sides, default=0)


def find_lora_targets(model: nn.Module, ranks: Mapping[str, int], *, impl: Impl) -> list[LoraTarget]:
    """Return the weights of layers, and of all layers that share one of them.

    Args:
        model: The network.
        ranks: Path of a layer → rank.
        impl: How they are to be adapted; attentions are parametrized in any case.

    Raises:
        UserError: A layer cannot be adapted, a rank is larger than the layer, or there is no layer.
    """
    # Output projections of attentions: their weights are read, but they are never called.
    uncalled = {id(module.out_proj) for module in model.modules() if isinstance(module, nn.MultiheadAttention)}
    chosen = _targets_asked_for(model, ranks, impl, uncalled)
    _check_sources(model, chosen)
    by_weight = {target.identity: target for target in reversed(chosen)}
    targets = {target.place: target for target in chosen}
    for path, module, tensor, parameter in _parameters_of_modules(model):
        if (target := by_weight.get(id(parameter))) is not None:
            wrapped = target.wrapped and id(module) not in uncalled
            other = replace(target, path=path, layer=module, tensor=tensor, wrapped=wrapped)
            other = targets.setdefault(other.place, other)
            if _own_weights(module).get(tensor) != target.parts:
                what = f"LoRA cannot adapt {target.name}: it is also {other.name}, in a {type(module).__name__}"
                raise UserError(what, argument="match", expected=_SUPPORTED_NAMES)
            if other.rank != target.rank:
                what = f"two ranks for one weight, {target.name} and {other.name}"
                raise UserError(what, argument="ranks", received=f"{target.rank} and {other.rank}")
            if error := _impl_error(other):
                raise error
    return list(targets.values())


def _targets_asked_for(model: nn.Module, ranks: Mapping[str, int], impl: Impl, uncalled: set[int]) -> list[LoraTarget]:
    """Return the weights of the layers asked for.

    Raises:
        UserError: Everything that is wrong with them, in one report.
    """
    if not ranks:
        raise UserError("there is no layer for LoRA", argument="match", expected=_SUPPORTED_NAMES, family="pattern")
    chosen: dict[tuple[int, str], LoraTarget] = {}
    errors = Problems()
    for path, rank in ranks.items():
        layer = model.get_submodule(path)
        if not isinstance(layer, SUPPORTED):
            kind = type(layer).__name__
            what = f"LoRA cannot adapt {path}"
            errors.append(UserError(what, argument="match", expected=_SUPPORTED_NAMES, received=kind))
            continue
        is_attention = isinstance(layer, nn.MultiheadAttention)
        wrapped = impl == "wrap" and id(layer) not in uncalled and not is_attention
        targets = [LoraTarget(path, layer, name, parts, rank, wrapped) for name, parts in _own_weights(layer).items()]
        if isinstance(layer, nn.MultiheadAttention):
            output = f"{path}.out_proj".removeprefix(".")
            targets.append(LoraTarget(output, layer.out_proj, "weight", 1, rank, wrapped=False))
        for target in targets:
            if target.path == path or target.path not in ranks:
                chosen.setdefault(target.place, target)
    errors += [error for target in chosen.values() if (error := _target_error(target))]
    errors.raise_any()
    return list(chosen.values())


def _own_weights(layer: nn.Module) -> dict[str, int]:
    """Return the weights that a layer holds itself, and how many matrices are stacked in each."""
    if not isinstance(layer, nn.MultiheadAttention):
        return {"weight": 1} if isinstance(layer, SUPPORTED) else {}
    if layer._qkv_same_embed_dim:
        return {"in_proj_weight": 3}
    return dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"), 1)


def _target_error(target: LoraTarget) -> UserError | None:
    """Return why a weight cannot be adapted so, or None."""
    changes, why = list(parametrizations(target.layer, target.tensor) or ()), None
    if hasattr(target.layer, "lora") or any(isinstance(part, LowRank) for part in changes):
        why = "it has LoRA already"
    elif not changes and not isinstance(getattr(target.layer, target.tensor, None), Tensor):
        why = "it is not a tensor"
    elif isinstance(target.weight, nn.parameter.UninitializedParameter):
        why = "it has no size yet"
    if why is not None:
        return UserError(
            f"LoRA cannot adapt {target.name}: {why}",
            argument="match",
            expected="a layer that knows its size and has no LoRA",
            received=type(target.layer).__name__,
        )
    rows, columns = matrix_shape(target.weight, target.parts)
    if not 1 <= target.rank <= min(rows, columns):
        return UserError(
            f"the rank does not fit {target.name}, a matrix of {rows} × {columns}",
            argument="rank",
            expected=f"1 to {min(rows, columns)}",
            received=target.rank,
            fix="a rank of its own: finetune.lora.ranks",
        )
    return _impl_error(target)


def _impl_error(target: LoraTarget) -> UserError | None:
    """Return why one of the two ways cannot adapt a weight although the other can, or None."""
    layer, why = target.layer, None
    if not target.wrapped:
        if target.tensor not in layer._parameters and not parametrizations(layer, target.tensor):
            why = "a hook makes its weight anew before each pass"
        elif isinstance(layer, nn.Embedding) and layer.sparse:
            why = "its gradients are sparse"
    elif isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
        why = "it limits the norm of its rows, or divides their gradients by how often they are used"
    elif not isinstance(layer, TransposedLinear) and not any(type(layer).forward is kind.forward for kind in SUPPORTED):
        why = f"{type(layer).__name__} computes in a way of its own"
    if why is None:
        return None
    impl, other = ("wrap", "parametrize") if target.wrapped else ("parametrize", "wrap")
    fix = f"finetune.lora.impl={other}"
    if not target.wrapped and isinstance(layer, _NEVER_CALLED):
        fix = "one of torch.nn.utils.parametrizations in the model, in place of the hook"
    what = f"{target.path} cannot be adapted by impl={impl}: {why}"
    return UserError(what, argument="impl", received=impl, fix=fix)


def _check_sources(model: nn.Module, targets: list[LoraTarget]) -> None:
    """Refuse a weight that its layer makes of parameters which another one also makes its own of.

    Raises:
        UserError: There is one.
    """
    sources = {
        id(parameter): target for target in targets for parameter in source_parameters(target.layer, target.tensor)
    }
    seen: dict[int, str] = {}
    for path, _, tensor, parameter in _parameters_of_modules(model):
        name, target = f"{path}.{tensor}", sources.get(id(parameter))
        if target is not None and seen.setdefault(id(parameter), name) != name:
            what = f"LoRA cannot adapt {target.name}: {seen[id(parameter)]}, of which it is made, is also {name}"
            raise UserError(what, argument="match", fix="a layer that shares nothing, or both without LoRA")


def _parameters_of_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter | None]]:
    """Yield every parameter with each of the modules that hold it."""
    for path, module in model.named_modules():
        yield from ((path, module, tensor, parameter) for tensor, parameter in module._parameters.items())
