"""LoRA, adapters, prefixes and prompts, put where the options of a fine-tuning want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.names import Names
from lightkit.finetune.peft.adapter import inject_adapters
from lightkit.finetune.peft.lora import SUPPORTED, inject_lora
from lightkit.finetune.peft.lora_targets import least_side
from lightkit.finetune.peft.prefix import inject_prefixes
from lightkit.finetune.peft.prompt import inject_prompts

Targets = dict[str, Any]


def targets(names: Names, options: Mapping[str, Any]) -> Targets:
    """What is put in where: ranks by path for `lora`, paths for `adapter` and `prefix`.

    Raises:
        UserError: A pattern matches nothing that can be used.
    """
    lora, attention = options["lora"], names.group("@attention")
    paths = _large_enough(names, lora)
    prefix, prompt = options["prefix"], options["prefix"]["kind"] == "prompt"
    return {
        "lora": _ranks(names, paths, lora),
        "adapter": names.modules(options["adapter"]["match"], key="finetune.adapter.match"),
        "prefix": names.modules(
            prefix["match"], key="finetune.prefix.match", kinds=None if prompt else (), paths=attention
        ),
    }


def inject(model: nn.Module, where: Targets, options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Put them in.

    Args:
        model: The network; changed in place. It computes what it did before, but for prefixes and prompts.
        where: From `targets`.
        options: The group `finetune`.

    Returns:
        Names of the new parameters by what brought them in: `lora`, `adapter`, `prefix`, `peft`.

    Raises:
        UserError: A layer is not supported, or a size does not fit it.
    """
    new: dict[str, list[str]] = {}
    if options["peft"] is not None:
        from lightkit.finetune.peft.peft_bridge import inject_peft

        if where["lora"]:
            raise UserError("LoRA twice", key="finetune.peft and finetune.lora.match", fix="finetune.lora.match=[]")
        new["peft"] = inject_peft(model, options["peft"])
    if where["lora"]:
        new["lora"] = inject_lora(model, where["lora"], **_some(options["lora"], "alpha", "dropout", "rslora", "impl"))
    if where["adapter"]:
        chosen = _some(options["adapter"], "kind", "width", "reduction", "activation", "dropout", "scale")
        new["adapter"] = inject_adapters(model, where["adapter"], **chosen)
    if where["prefix"]:
        prompt, sizes = options["prefix"]["kind"] == "prompt", ("length", "init_std")
        chosen = _some(options["prefix"], *sizes, *(() if prompt else ("softmax",)))
        new["prefix"] = (inject_prompts if prompt else inject_prefixes)(model, where["prefix"], **chosen)
    return new


def _large_enough(names: Names, lora: Mapping[str, Any]) -> list[str]:
    """Layers for LoRA; of those that only a label stands for, the ones that are not smaller than the rank."""
    key, rank = "finetune.lora.match", lora["rank"]
    named = [pattern for pattern in lora["match"] if not pattern.startswith("@")]
    chosen = names.modules(named, key=key, kinds=SUPPORTED)
    every = names.modules(lora["match"], key=key, kinds=SUPPORTED)
    found = [path for path in every if path in chosen or least_side(names.module(path)) >= rank]
    if every and not found:
        largest = max(least_side(names.module(path)) for path in every)
        expected = f"at most {largest}, the most that any of these layers can take"
        raise UserError("no layer is large enough", key="finetune.lora.rank", received=rank, expected=expected)
    return found


def _ranks(names: Names, paths: list[str], lora: Mapping[str, Any]) -> dict[str, int]:
    ranks = dict.fromkeys(paths, int(lora["rank"]))
    for pattern, rank in lora["ranks"].items():
        hits = names.modules([pattern], key="finetune.lora.ranks", kinds=SUPPORTED)
        if not set(hits) & set(ranks):
            what = "a rank for layers that get no LoRA"
            raise UserError(what, key="finetune.lora.ranks", received=pattern, choices=list(ranks))
        ranks |= dict.fromkeys((path for path in hits if path in ranks), int(rank))
    return ranks


def _some(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names}
