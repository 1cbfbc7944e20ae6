"""The patterns of a fine-tuning on a network, and LoRA, adapters and prefixes put where they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from lightkit.common.errors import Problems, UserError, keys_under
from lightkit.common.modules import inside
from lightkit.common.patterns import Matched
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.peft.adapter import inject_adapters
from lightkit.finetune.peft.lora import SUPPORTED, inject_lora, largest_rank
from lightkit.finetune.peft.prefix import inject_prefixes

Targets = dict[str, Any]
"""Ranks by path for `lora`, paths for `adapter` and `prefix`."""


def find_targets(names: NetworkNames, options: Mapping[str, Any]) -> Targets:
    """Return the modules that LoRA, adapters and prefixes are to be put into.

    Args:
        names: The names of the network, before anything is injected.
        options: The group `finetune`.

    Raises:
        UserError: A pattern matches nothing that can be used.
    """
    lora = options["lora"]
    rank = int(lora["rank"])
    by_name = [pattern for pattern in lora["match"] if not pattern.startswith("@")]
    named = names.find_modules(by_name, argument="lora.match", kinds=SUPPORTED)
    matched = names.find_modules(lora["match"], argument="lora.match", kinds=SUPPORTED)
    # Of layers that only a label stands for, the large enough ones.
    ranks = {path: rank for path in matched if path in named or largest_rank(names.get_module(path)) >= rank}
    if matched and not ranks:
        largest = max(largest_rank(names.get_module(path)) for path in matched)
        expected = f"at most {largest}, the most that any of these layers can take"
        raise UserError("no layer is large enough", argument="lora.rank", received=lora["rank"], expected=expected)
    for pattern, other in lora["ranks"].items():
        layers = names.find_modules([pattern], argument="lora.ranks", kinds=SUPPORTED)
        if not set(layers) & set(ranks):
            what = "a rank for layers that get no LoRA"
            raise UserError(what, argument="lora.ranks", received=pattern, choices=list(ranks))
        ranks |= {path: int(other) for path in layers if path in ranks}
    return {
        "lora": ranks,
        "adapter": names.find_modules(options["adapter"]["match"], argument="adapter.match"),
        "prefix": names.find_modules(
            options["prefix"]["match"], argument="prefix.match", kinds=(), paths=names.get_group("@attention")
        ),
    }


def check_patterns(names: NetworkNames, options: Mapping[str, Any]) -> None:
    """Try every pattern on a network.

    Args:
        names: The names of the network, before anything is injected.
        options: The group `finetune`.

    Raises:
        UserError: One matches nothing or nothing that can be used; several in one report.
    """
    attempts: list[Callable[[], object]] = [
        partial(_matched, names, pattern, key)
        for key, pattern in _parameter_patterns(options)
        if not pattern.startswith("@")
    ]
    attempts.append(partial(find_targets, names, options))
    problems = Problems()
    for attempt in attempts:
        with problems.noted():
            attempt()
    problems.raise_any()


def resolve_patterns(names: NetworkNames, options: Mapping[str, Any], targets: Targets) -> list[Matched]:
    """Return what each pattern and label stands for, by the names before anything was injected.

    Args:
        names: The names of the network.
        options: The group `finetune`.
        targets: What was put in where; of the modules that a pattern fits, those count that got it.
    """
    resolved = []
    for key, pattern in _parameter_patterns(options):
        matched = _matched(names, pattern, key)
        ordered = tuple(name for name in (*names.aliases, *names.injected) if name in matched)
        resolved.append(Matched(key, pattern, ordered))
    modules = {f"{part}.match": options[part]["match"] for part in ("lora", "adapter", "prefix")}
    modules["lora.ranks"] = list(options["lora"]["ranks"])
    for argument, patterns in modules.items():
        part = argument.partition(".")[0]
        for pattern in patterns:
            matched = names.match_modules(pattern, argument=argument)
            within = part == "lora" and names.get_group(pattern)
            chosen = tuple(
                path
                for path in targets[part]
                if path in matched or (within and any(inside(path, module) for module in matched))
            )
            resolved.append(Matched(f"finetune.{argument}", pattern, chosen, modules=True))
    return resolved


def inject(model: nn.Module, targets: Targets, options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Put LoRA, adapters, prefixes and layers of peft into a network.

    Args:
        model: The network; changed in place. It computes what it did before.
        targets: From `find_targets`.
        options: The group `finetune`.

    Returns:
        Names of the new parameters by what brought them in: `lora`, `adapter`, `prefix`, `peft`.

    Raises:
        UserError: A layer is not supported, or a size does not fit it.
    """
    new: dict[str, list[str]] = {}
    lora, adapter, prefix = options["lora"], options["adapter"], options["prefix"]
    if options["peft"] is not None:
        from lightkit.finetune.peft.peft_bridge import inject_peft

        if targets["lora"]:
            fix = "finetune.lora.match=[]"
            raise UserError("LoRA twice", key="finetune.peft and finetune.lora.match", fix=fix, family="contradiction")
        new["peft"] = inject_peft(model, options["peft"])
    if targets["lora"]:
        chosen = {name: lora[name] for name in ("alpha", "dropout", "rslora", "impl")}
        with keys_under("finetune.lora"):
            new["lora"] = inject_lora(model, targets["lora"], **chosen)
    if targets["adapter"]:
        sizes = ("kind", "width", "reduction", "activation", "dropout", "scale")
        with keys_under("finetune.adapter"):
            new["adapter"] = inject_adapters(model, targets["adapter"], **{name: adapter[name] for name in sizes})
    if targets["prefix"]:
        with keys_under("finetune.prefix"):
            length, init_std = prefix["length"], prefix["init_std"]
            new["prefix"] = inject_prefixes(model, targets["prefix"], length=length, init_std=init_std)
    return new


def _parameter_patterns(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the patterns of parameters, each with the key it is in."""
    rules = [[rule["match"]] if isinstance(rule["match"], str) else rule["match"] for rule in options["rules"] or ()]
    lists = {f"optim.rules[{index}].match": patterns for index, patterns in enumerate(rules)}
    lists |= {f"finetune.{name}": options[name] for name in ("freeze", "train")}
    for index, entry in enumerate(options["schedule"]):
        lists |= {f"finetune.schedule[{index}].{name}": entry.get(name) or [] for name in ("unfreeze", "freeze")}
    return [(key, pattern) for key, patterns in lists.items() for pattern in patterns]


def _matched(names: NetworkNames, pattern: str, key: str) -> set[str]:
    """Return the parameters that a pattern stands for, at a key of the configuration."""
    group, _, argument = key.partition(".")
    with keys_under(group):
        return names.match_parameters(pattern, argument=argument)
