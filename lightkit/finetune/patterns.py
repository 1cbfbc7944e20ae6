"""All patterns of a fine-tuning tried on a network at once, so that one report names every one that matches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightkit.common.errors import UserError, UserErrors
from lightkit.finetune.inserted.inject import targets
from lightkit.finetune.names import Names


def check_patterns(names: Names, options: Mapping[str, Any]) -> None:
    """Try every pattern.

    Args:
        names: The names of the network, before anything is injected.
        options: The group `finetune`.

    Raises:
        UserError: One matches nothing or nothing that can be used; several in one report.
    """
    errors = []
    for attempt in _attempts(names, options):
        try:
            attempt()
        except UserError as error:
            errors.append(error)
    if errors:
        raise UserErrors(errors) if len(errors) > 1 else errors[0]


def _attempts(names: Names, options: Mapping[str, Any]) -> list[Callable[[], object]]:
    lists = {"finetune.freeze": options["freeze"], "finetune.train": options["train"]}
    for index, entry in enumerate(options["schedule"]):
        lists |= {f"finetune.schedule[{index}].{name}": entry.get(name) or [] for name in ("unfreeze", "freeze")}
    for index, rule in enumerate(options["rules"]):
        match = rule["match"]
        lists[f"finetune.rules[{index}].match"] = [match] if isinstance(match, str) else match
    each = [(key, pattern) for key, patterns in lists.items() for pattern in patterns if not pattern.startswith("@")]
    found: list[Callable[[], object]] = [partial(names.parameters, [pattern], key=key) for key, pattern in each]
    return [*found, partial(targets, names, options)]
