"""A pause of Python's search for cycles of objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lightkit.common.signals import held

_WAS_ON = list[bool]()
"""Of each pause that there is, maybe in other threads, whether the search goes on after it."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Make many objects that stay, without a search for cycles each time that there are some more."""
    _WAS_ON.append(gc.isenabled() or any(_WAS_ON))
    gc.disable()
    try:
        yield
    finally:
        (gc.enable if _WAS_ON.pop() and not _WAS_ON else gc.disable)()


@contextmanager
def importing() -> Iterator[None]:
    """Import much that stays, PyTorch for one, in a process of our own: signals wait, and no search looks at it again.

    With PyTorch each search would take a fifth of a second, also those that Python makes at its end.
    """
    before = len(sys.modules)
    with held(), uncollected():
        yield
        if len(sys.modules) - before > 100:  # fewer are not worth it
            gc.freeze()
