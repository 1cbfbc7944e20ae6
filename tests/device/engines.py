"""Engines as the assembly makes them: the process first."""

from __future__ import annotations

from typing import Any

from lightkit.device import Engine, configure_process

_OF_THE_PROCESS = ("gpus", "threads")
_SHARED = ("precision", "switches", "ranks", "deterministic", "seed")


def configured(name: str = "cpu", **options: Any) -> Engine:
    """Configure the process, and make an engine for it."""
    shared = {key: value for key, value in options.items() if key in _SHARED}
    own = {key: options.pop(key) for key in _OF_THE_PROCESS if key in options}
    return Engine(configure_process(name, **own, **shared), **options)
