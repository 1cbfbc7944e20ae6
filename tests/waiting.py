"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 240
"""How long to wait for what takes seconds on an idle machine."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until something is true; returns it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.01)
    return found
