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
the product is added to what they make (see `lightkit.finetune.peft.parametrized`): only the part below is normed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import nn
from torch.nn.utils import parametrize

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.modules import TransposedLinear
from lightkit.finetune.peft.injected import new_parameter_names
from lightkit.finetune.peft.lora_targets import Impl, find_lora_targets
from lightkit.finetune.peft.lowrank import LowRank, LowRankPath, LowRankWeight, add_path


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
