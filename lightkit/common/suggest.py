"""Nearest valid names for a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], *, count: int = 3) -> list[str]:
    """The valid names most like `name`, best first; empty when none is close.

    A dotted name also matches on its last part, so `optim.learning_rate` still finds `optim.lr_rate`.
    """
    pool = list(dict.fromkeys(valid))
    lowered = {candidate.lower(): candidate for candidate in reversed(pool)}
    hits = [lowered[hit] for hit in difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.6)]
    tail = name.rpartition(".")[2].lower()
    hits += [c for c in pool if c.rpartition(".")[2].lower() == tail and c not in hits]
    return hits[:count]
