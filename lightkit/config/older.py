"""Configurations as a run keeps them: the format they are written in, and older formats read as what they meant."""

from __future__ import annotations

import re
from typing import Any

from lightkit.config.labels import pattern_places
from lightkit.config.origins import Key

MARK = "# Format 2 of lightkit's configurations: a glob fits a whole name.\n"
"""A line of every configuration that is kept. Those of format 1 have none, and their globs fitted the ends of names."""
_FORMAT = re.compile(r"^# Format \d+ of lightkit's configurations", re.MULTILINE)


def as_meant(text: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a kept configuration with the meaning it had when it was written.

    Args:
        text: The file.
        tree: Its content as plain values; changed in place.
    """
    if _FORMAT.search(text):
        return tree
    for key, patterns, _ in list(pattern_places(tree)):
        if patterns and key[0] != "resume" and "ranks" not in key:
            holder = _at(tree, key[:-1])
            texts = [text for text in (patterns if isinstance(patterns, list) else [patterns]) if isinstance(text, str)]
            if key[:2] == ("finetune", "rules") and not holder.get("name"):  # or its group would get another name
                holder["name"] = "+".join(text.removeprefix("re:").lstrip("@") for text in texts)
            holder[key[-1]] = _widened(patterns)
    ranks = _at(tree, ("finetune", "lora", "ranks"))
    if isinstance(ranks, dict):
        tree["finetune"]["lora"]["ranks"] = {_widened(pattern): rank for pattern, rank in ranks.items()}
    return tree


def _at(tree: dict[str, Any], key: Key) -> Any:
    """Return the node at a key; None where there is none."""
    node: Any = tree
    for part in key:
        if isinstance(node, list) and isinstance(part, int):
            node = node[part]
        else:
            node = node.get(part) if isinstance(node, dict) else None
    return node


def _widened(patterns: Any) -> Any:
    if isinstance(patterns, list):
        return [_widened(pattern) for pattern in patterns]
    named = isinstance(patterns, str) and patterns and not patterns.startswith(("*", "@", "re:"))
    return f"*{patterns}" if named else patterns
