"""All patterns of a fine-tuning: tried on a network at once, and what each of them stands for there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.modules import inside
from lightkit.common.patterns import Matched
from lightkit.finetune.inject import Targets, find_targets
from lightkit.finetune.names import NetworkNames


def check_patterns(names: NetworkNames, options: Mapping[str, Any]) -> None:
    """Try every pattern on a network.

    Args:
        names: The names of the network, before anything is injected.
        options: The group `finetune`.

    Raises:
        UserError: One matches nothing or nothing that can be used; several in one report.
    """
    attempts: list[Callable[[], object]] = [
        partial(names.match_parameters, pattern, argument=argument)
        for argument, pattern in _parameter_patterns(options)
        if not pattern.startswith("@")
    ]
    attempts.append(partial(find_targets, names, options))
    errors = []
    for attempt in attempts:
        try:
            attempt()
        except UserError as error:
            errors.append(error)
    if errors:
        raise UserErrors(errors) if len(errors) > 1 else errors[0]


def resolve_patterns(names: NetworkNames, options: Mapping[str, Any], targets: Targets) -> list[Matched]:
    """Return what each pattern and label stands for, by the names before anything was injected.

    Args:
        names: The names of the network.
        options: The group `finetune`.
        targets: What was put in where; of the modules that a pattern fits, those count that got it.
    """
    resolved = []
    for argument, pattern in _parameter_patterns(options):
        found = names.match_parameters(pattern, argument=argument)
        ordered = tuple(name for name in (*names.aliases, *names.injected) if name in found)
        resolved.append(Matched(f"finetune.{argument}", pattern, ordered))
    modules = {f"{part}.match": options[part]["match"] for part in ("lora", "adapter", "prefix")}
    modules["lora.ranks"] = list(options["lora"]["ranks"])
    for argument, patterns in modules.items():
        part = argument.partition(".")[0]
        for pattern in patterns:
            found = names.match_modules(pattern, argument=argument)
            within = part == "lora" and names.get_group(pattern)
            chosen = tuple(
                path
                for path in targets[part]
                if path in found or (within and any(inside(path, module) for module in found))
            )
            resolved.append(Matched(f"finetune.{argument}", pattern, chosen, modules=True))
    return resolved


def _parameter_patterns(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the patterns of parameters, each with the option it is in."""
    lists = {"freeze": options["freeze"], "train": options["train"]}
    for index, entry in enumerate(options["schedule"]):
        lists |= {f"schedule[{index}].{name}": entry.get(name) or [] for name in ("unfreeze", "freeze")}
    for index, rule in enumerate(options["rules"]):
        lists[f"rules[{index}].match"] = [rule["match"]] if isinstance(rule["match"], str) else rule["match"]
    return [(argument, pattern) for argument, patterns in lists.items() for pattern in patterns]
