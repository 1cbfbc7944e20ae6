"""Public names of packages, which are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exporting(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make `__getattr__` and `__dir__` of a package (PEP 562), so that importing it costs nothing.

    Args:
        package: Its name.
        homes: The module below it that each public name is in.
    """
    vars(sys.modules[package])["__dir__"] = lambda: sorted({*vars(sys.modules[package]), *homes})

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
