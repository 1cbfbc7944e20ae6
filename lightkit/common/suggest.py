"""Nearest valid names for a mistyped one, and what other frameworks' names for keys mean here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from lightkit.common.reading import data_beside

_OPTIONS = {"gpu": "cuda"}
"""What other frameworks call options that have another name here."""
_ALIKE, _SHORT_ALIKE = 0.7, 0.65
"""Likeness below which names have nothing to do with each other, from 0 to 1, and that of names of three letters."""
_ENDS_ALIKE, _SHORT = 0.5, 2
"""Likeness of the last parts of dotted names, and the length up to which it does not count."""


def nearest(name: str, valid: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the valid names most like `name`, or that mean the same, best first; empty when none is close.

    A dotted name also matches on its last part, so `optim.learning_rate` still finds `optim.lr`.
    """
    import difflib

    pool = list(dict.fromkeys(valid))
    lowered = {candidate.lower(): candidate for candidate in reversed(pool)}
    head, _, last = name.lower().rpartition(".")
    meant = {_OPTIONS.get(last), own_name(last)} - {None}
    same = [c for c in pool if _last(c) in meant]
    same.sort(key=lambda candidate: candidate.rpartition(".")[0] != head)
    cutoff = _ALIKE if len(name) > _SHORT + 1 else _SHORT_ALIKE
    close = [lowered[hit] for hit in difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=cutoff)]
    if head:  # long names are alike by their first parts alone
        close = [hit for hit in close if "." not in hit or _ends_alike(last, _last(hit).lower())]
    hits = list(dict.fromkeys([*same, *close]))
    hits += [c for c in pool if _last(c).lower() == last and c not in hits]
    return hits[:count]


def _ends_alike(one: str, other: str) -> bool:
    """Tell whether last parts are alike; a number or a letter says nothing of that."""
    import difflib

    return min(len(one), len(other)) <= _SHORT or difflib.SequenceMatcher(None, one, other).ratio() >= _ENDS_ALIKE


def _last(key: str) -> str:
    return key.rpartition(".")[2]


@cache
def names_by(section: str) -> dict[str, str]:
    """Return what a foreign name means.

    Args:
        section: `keys` for the full key, or the overrides to type, that mean the same; `advice` for what is done here
            where there is no such key; `values` for the choice that means the same as `KEY=NAME`; `given_up` for what
            takes the place of what earlier versions had.
    """
    found = ((meant, name) for meant, names in data_beside(__file__)[section].items() for name in names)
    if section == "values":
        return {f"{meant.partition('=')[0]}={name}": meant for meant, name in found}
    return {name: meant for meant, name in found}


@cache
def _by_letters(section: str) -> dict[str, str]:
    """Return what foreign names mean by their letters alone: `maxEpochs` and `max-epochs` are `max_epochs`."""
    return {_letters(name): meant for name, meant in names_by(section).items()}


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _meant(section: str, name: str) -> str | None:
    """Look up a name as a whole, or by what is behind the double underscore of a nested one: `optimizer__lr`."""
    known = _by_letters(section)
    return known.get(_letters(name)) or known.get(_letters(name.rpartition("__")[2]))


def meaning(key: str) -> str | None:
    """Say what a key of another framework means here.

    Args:
        key: As it was typed; its last part counts.

    Returns:
        The text of a fix; None for a name that is not known.
    """
    name = key.rpartition(".")[2]
    if given_up := in_place_of(key):
        return given_up
    meant = _meant("keys", name)
    if meant is None:
        return _meant("advice", name)
    return f"did you mean {meant}?" if meant != key else None


def as_override(name: str, value: str) -> str | None:
    """Say what to type for an option of another program, such as `--learning-rate 0.1`; None for an unknown name."""
    if (meant := _meant("keys", name)) is None:
        return _meant("advice", name)
    return f"keys have no dashes: {meant}" + ("" if "=" in meant.rpartition(" ")[2] else f"={value}")


def own_name(name: str) -> str | None:
    """Return the last part of the key that means the same as a name; None where there is no such key."""
    meant = (_meant("keys", name) or "").rpartition(" ")[2]
    key, _, value = meant.partition("=")
    is_option = value and "." not in key
    return None if is_option else key.rpartition(".")[2] or None


def in_place_of(former: str) -> str | None:
    """Say what to use in place of something that earlier versions or other libraries have; None where it is neither.

    Args:
        former: A key, a key or group with a value, or a command with an option.
    """
    return names_by("given_up").get(former) or names_by("values").get(former.lower())
