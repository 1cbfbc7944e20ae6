"""A pause of Python's search for cycles of objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lightkit.common.signals import held


@contextmanager
def uncollected() -> Iterator[None]:
    """Make many objects that stay, without a search for cycles each time that there are some more."""
    then = gc.enable if gc.isenabled() else gc.disable
    gc.disable()
    try:
        yield
    finally:
        then()


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
