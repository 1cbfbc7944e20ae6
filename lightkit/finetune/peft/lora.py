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
the product is added to what they make (see `lightkit.finetune.peft.normed`): only the part below is normed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.utils import parametrize

from lightkit.common.errors import UserError
from lightkit.common.modules import TransposedLinear
from lightkit.finetune.peft.lora_targets import IMPLS, SUPPORTED, Impl, Site, find_sites
from lightkit.finetune.peft.lowrank import LowRank, LowRankPath, LowRankWeight, add_path
from lightkit.finetune.peft.pickling import make_picklable

__all__ = ["IMPLS", "SUPPORTED", "Impl", "inject_lora", "lora_b_names"]


def inject_lora(
    model: nn.Module,
    ranks: Mapping[str, int],
    *,
    alpha: float,
    dropout: float = 0.0,
    rslora: bool = False,
    impl: Impl = "parametrize",
    key: str = "finetune.lora",
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
        key: Where the options stand in the configuration, for errors.
        generator: Draws the matrices; None takes the global generator.

    Returns:
        Names of the new parameters, in the order of the network.

    Raises:
        UserError: A layer cannot be adapted, a rank is larger than the layer, or there is no layer.
    """
    _check_options(alpha=alpha, dropout=dropout, impl=impl, key=key)
    sites = find_sites(model, ranks, impl=impl, key=key)
    known = {id(parameter) for parameter in model.parameters()}
    twins: dict[object, LowRank] = {}
    for site in sites:
        kind = LowRankPath if site.wrapped else LowRankWeight
        embeds = isinstance(site.host, nn.Embedding)
        twins[site.identity] = low = kind(
            site.weight,
            site.rank,
            scale=alpha / (site.rank**0.5 if rslora else site.rank),
            dropout=0.0 if embeds else dropout,
            parts=site.parts,
            transposed=isinstance(site.host, TransposedLinear),
            normal=embeds,
            generator=generator,
            twin=twins.get(site.identity),
        )
        _attach(site, low)
    return [name for name, parameter in model.named_parameters() if id(parameter) not in known]


def lora_b_names(model: nn.Module) -> list[str]:
    """Names of the matrices B, which start at zero and may learn faster (LoRA+, https://arxiv.org/abs/2402.12354)."""
    found = {id(module.lora_B) for module in model.modules() if isinstance(module, LowRank)}
    return [name for name, parameter in model.named_parameters() if id(parameter) in found]


def _attach(site: Site, low: LowRank) -> None:
    if not site.wrapped:
        # `unsafe` only leaves out a trial run; the weight keeps its shape and type.
        parametrize.register_parametrization(site.host, site.tensor, low, unsafe=True)
        make_picklable(site.host)
        return
    site.host.add_module("lora", low.train(site.host.training))
    site.host.register_forward_hook(add_path, with_kwargs=True)


def _check_options(*, alpha: float, dropout: float, impl: str, key: str) -> None:
    if not alpha > 0:
        raise UserError("LoRA needs a scale", key=f"{key}.alpha", expected="above 0", received=alpha)
    if not 0 <= dropout < 1:
        raise UserError("not a probability", key=f"{key}.dropout", expected="0 to below 1", received=dropout)
    if impl not in IMPLS:
        raise UserError("no such way to do LoRA", key=f"{key}.impl", received=impl, choices=IMPLS)
