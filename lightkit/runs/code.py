"""The code of one's own that a run has imported, by its content: so that a resume can say what has changed."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.common.failures import is_own

_DIGITS = 16
_PYTHON = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
"""Where most modules lie: to look at each of their paths takes long."""


def own_modules() -> dict[str, str]:
    """Return the checksum of each imported module that is neither installed nor lightkit's, by its name."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(_PYTHON) and is_own(file):
            with suppress(OSError):
                found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:_DIGITS]
    return found


def changed_code(before: Mapping[str, Any], now: Mapping[str, Any], plain: Any) -> list[str]:
    """Say which modules differ from those of an earlier part of the run, and which keys name something in them.

    Args:
        before: What `environment.json` said of modules.
        now: What it says now.
        plain: The configuration as plain values.
    """
    lines = []
    for name in sorted(set(before) & set(now)):
        if before[name] != now[name]:
            keys = [key for key, target in _targets(plain) if target.startswith(f"{name}.")]
            of = f" ({', '.join(keys)})" if keys else ""
            lines.append(f"the code of {name}{of} has changed since the earlier part of the run")
    return lines


def _targets(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and text of each `_target_` in a configuration."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        if name == "_target_" and isinstance(item, str):
            yield key, item
        else:
            yield from _targets(item, f"{key}.{name}" if key else str(name))
