"""All patterns of a fine-tuning: tried on a network at once, and what each of them stands for there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.modules import inside
from lightkit.common.patterns import Matched
from lightkit.finetune.names import Names
from lightkit.finetune.peft.inject import Targets, targets


def check_patterns(names: Names, options: Mapping[str, Any]) -> None:
    """Try every pattern.

    Args:
        names: The names of the network, before anything is injected.
        options: The group `finetune`.

    Raises:
        UserError: One matches nothing or nothing that can be used; several in one report.
    """
    each = [(key, pattern) for key, pattern in _of_parameters(options) if not pattern.startswith("@")]
    attempts: list[Callable[[], object]] = [partial(names.covered, pattern, key=key) for key, pattern in each]
    attempts.append(partial(targets, names, options))
    errors = []
    for attempt in attempts:
        try:
            attempt()
        except UserError as error:
            errors.append(error)
    if errors:
        raise UserErrors(errors) if len(errors) > 1 else errors[0]


def matched(names: Names, options: Mapping[str, Any], where: Targets) -> list[Matched]:
    """What each pattern and label stands for, by the names before anything was injected.

    Args:
        names: The names of the network.
        options: The group `finetune`.
        where: What was put in where; of the modules that a pattern fits, those count that got it.
    """
    found = [
        Matched(key, pattern, tuple(name for name in (*names.aliases, *names.tuned) if name in hits))
        for key, pattern in _of_parameters(options)
        for hits in [names.covered(pattern, key=key)]
    ]
    for key, pattern in _of_modules(options):
        part, hits = key.split(".")[1], names.paths(pattern, key=key)
        within = part == "lora" and names.group(pattern)
        chosen = tuple(p for p in where[part] if p in hits or (within and any(inside(p, hit) for hit in hits)))
        found.append(Matched(key, pattern, chosen, modules=True))
    return found


def _of_parameters(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Patterns of parameters, each with the place of the list it is in."""
    lists = {"freeze": options["freeze"], "train": options["train"]}
    for index, entry in enumerate(options["schedule"]):
        lists |= {f"schedule[{index}].{name}": entry.get(name) or [] for name in ("unfreeze", "freeze")}
    for index, rule in enumerate(options["rules"]):
        lists[f"rules[{index}].match"] = [rule["match"]] if isinstance(rule["match"], str) else rule["match"]
    return [(f"finetune.{key}", pattern) for key, patterns in lists.items() for pattern in patterns]


def _of_modules(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same of modules."""
    lists = {f"{part}.match": options[part]["match"] for part in ("lora", "adapter", "prefix")}
    lists["lora.ranks"] = list(options["lora"]["ranks"])
    return [(f"finetune.{key}", pattern) for key, patterns in lists.items() for pattern in patterns]
