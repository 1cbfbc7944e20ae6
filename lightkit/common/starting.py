"""Starting lightkit in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

_WITHOUT_HERE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from runpy import run_module; run_module('lightkit', run_name='__main__', alter_sys=True)"
)


def lightkit_command(*args: str) -> list[str]:
    """The command that runs lightkit, for a process that finds modules in the same places as this one.

    `python -m` looks into the working directory first, which may be a folder that came from elsewhere.

    Args:
        *args: Arguments of lightkit.
    """
    here = Path.cwd()
    is_searched = any(Path(entry).resolve() == here for entry in sys.path)
    return [sys.executable, *(["-m", "lightkit"] if is_searched else ["-c", _WITHOUT_HERE]), *args]
