"""`python FILE` in a process that is forked, and so has imported torch already."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    """Run a file as the program.

    Args:
        args: The file, and what the program is given.
    """
    sys.argv = [*args]
    sys.path.insert(0, str(Path(args[0]).resolve().parent))
    runpy.run_path(args[0], run_name="__main__")
    return 0
