"""A pause of Python's search for cycles of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Make many objects that stay, without a search for cycles each time that there are some more."""
    then = gc.enable if gc.isenabled() else gc.disable
    gc.disable()
    try:
        yield
    finally:
        then()
