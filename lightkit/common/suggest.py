"""Nearest valid names for a mistyped one, and what other frameworks' names for keys mean here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache

from lightkit.common.reading import data_beside

_OPTIONS = {"gpu": "cuda"}
"""What other frameworks call options that have another name here."""
_ALIKE = 0.65
"""Likeness below which names have nothing to do with each other, from 0 to 1."""
_ENDS_ALIKE, _SHORT = 0.5, 2
"""Likeness of the last parts of dotted names, and the length up to which it does not count."""


def nearest(name: str, valid: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the valid names most like `name`, or that mean the same, best first; empty when none is close.

    A dotted name also matches on its last part, so `optim.learning_rate` still finds `optim.lr`.
    """
    pool = list(dict.fromkeys(valid))
    lowered = {candidate.lower(): candidate for candidate in reversed(pool)}
    head, _, last = name.lower().rpartition(".")
    meant = {_OPTIONS.get(last), own_name(last)} - {None}
    same = [c for c in pool if _last(c) in meant]
    same.sort(key=lambda candidate: candidate.rpartition(".")[0] != head)
    close = [lowered[hit] for hit in difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=_ALIKE)]
    if head:  # long names are alike by their first parts alone
        close = [hit for hit in close if "." not in hit or _ends_alike(last, _last(hit).lower())]
    hits = list(dict.fromkeys([*same, *close]))
    hits += [c for c in pool if _last(c).lower() == last and c not in hits]
    return hits[:count]


def _ends_alike(one: str, other: str) -> bool:
    """Tell whether last parts are alike; a number or a letter says nothing of that."""
    return min(len(one), len(other)) <= _SHORT or difflib.SequenceMatcher(None, one, other).ratio() >= _ENDS_ALIKE


def _last(key: str) -> str:
    return key.rpartition(".")[2]


@cache
def names_by(section: str) -> dict[str, str]:
    """Return what a foreign name means.

    Args:
        section: `keys` for the full key, or the overrides to type, that mean the same; `advice` for what is done here
            where there is no such key; `given_up` for what takes the place of what earlier versions had.
    """
    return {name: meant for meant, names in data_beside(__file__)[section].items() for name in names}


def meaning(key: str) -> str | None:
    """Say what a key of another framework means here.

    Args:
        key: As it was typed; its last part counts.

    Returns:
        The text of a fix; None for a name that is not known.
    """
    name = key.rpartition(".")[2].lower()
    if given_up := in_place_of(key):
        return given_up
    meant = names_by("keys").get(name)
    if meant is None:
        return names_by("advice").get(name)
    return f"did you mean {meant}?" if meant != key else None


def own_name(name: str) -> str | None:
    """Return the last part of the key that means the same as a name; None where there is no such key."""
    meant = names_by("keys").get(name.lower(), "").rpartition(" ")[2]
    key, _, value = meant.partition("=")
    is_option = value and "." not in key
    return None if is_option else key.rpartition(".")[2] or None


def in_place_of(former: str) -> str | None:
    """Say what to use in place of something that earlier versions had; None where it is no such thing.

    Args:
        former: A key, a key or group with a value, or a command with an option.
    """
    return names_by("given_up").get(former)
