"""What is known of an error: how it is recognised, what causes it, how it is mended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from lightkit.common.reading import data_beside


@dataclass(frozen=True)
class Known:
    """An error of PyTorch, CUDA or the system below them."""

    name: str
    """What it is, in a few words."""
    pattern: str
    """Regular expression that is searched for in a text; its named groups stand in braces in `cause` and `fix`."""
    cause: str
    """What usually causes it."""
    fix: str
    """How to mend it, in PyTorch."""
    key: str = ""
    """What does so in lightkit, where there is something: a key with a value, or a command."""
    beside: str = ""
    """Regular expression that has to be in the text as well."""
    unless: str = ""
    """Regular expression that must not be in the text."""


@dataclass(frozen=True)
class Recognised:
    """A known error that was found in a text."""

    name: str
    """See `Known`."""
    says: str
    """The line in which it was found."""
    cause: str
    """What usually causes it, with the numbers of this one."""
    fix: str
    """How to mend it, in PyTorch."""
    key: str = ""
    """What does so in lightkit."""


@cache
def known_errors() -> tuple[Known, ...]:
    """Return all known errors, which `known.yaml` lists."""
    return tuple(Known(**each) for each in data_beside(__file__)["errors"])
