"""What an unknown key was probably meant for."""

from __future__ import annotations

from typing import Any

from lightkit.common import foreign_names
from lightkit.common.suggest import nearest
from lightkit.common.text import plain_letters
from lightkit.config.fields import keys_named
from lightkit.config.origins import Key, dotted


def meant_by(name: str, value: Any, valid: list[str], key: Key) -> str | None:
    """Say what an unknown key was probably meant for: a name of another framework, a typing error, or another place.

    Args:
        name: Last part of the key.
        value: What is below it, whose names count first: `callbacks.early_stopping.patience`.
        valid: The keys that are known there.
        key: The node above.
    """
    way = [name]
    while isinstance(value, dict) and len(value) == 1:
        [(inner, value)] = value.items()
        way.append(str(inner))
    near = nearest(plain_letters(name), valid, count=1)
    beside = f"did you mean {dotted((*key, near[0]))}?" if near else None
    is_nested = len(key) > 1 and len(way) == 1
    if is_nested and near == [foreign_names.own_name(name)]:  # `lr` of a rule for `learning_rate` there
        return beside
    foreign = (foreign_names.meaning(dotted((*key, *way[:count]))) for count in range(len(way), 0, -1))
    namesakes = [other for other in keys_named(name) if other.count(".") <= 1]
    elsewhere = f"did you mean {namesakes[0]}?" if len(namesakes) == 1 else None
    return next(filter(None, foreign), None) or beside or elsewhere
