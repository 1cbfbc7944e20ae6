"""Nearest valid names for a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lightkit.common.foreign_names import own_name

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
