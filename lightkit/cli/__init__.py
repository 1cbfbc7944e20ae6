"""The command line: one file per command family, and one text per command in `help/`, which is its table of options."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status of the process.

    Args:
        argv: Arguments after the program's name; None takes those of the process.
    """
    from lightkit.cli.entry import launched, leave, run

    status = run(list(sys.argv[1:] if argv is None else argv))
    if launched():
        leave(status)
    if argv is None and "torch" not in sys.modules:  # taking apart what was imported takes as long as many a command
        leave(status, orderly=True)
    return status
