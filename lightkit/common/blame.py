"""Where in the user's own code an error came from."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def blame(error: BaseException) -> str | None:
    """`file:line` of the deepest frame outside of lightkit and of what is installed; None where there is none.

    Causes are looked at too: the error at the bottom of a chain is the one that happened in the user's code.
    """
    place: str | None = None
    current: BaseException | None = error
    while current is not None:
        place = _last_own_frame(current) or place
        current = current.__cause__
    return place


def _last_own_frame(error: BaseException) -> str | None:
    place, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(("<", *_INSTALLED)) and _PACKAGE not in Path(file).parents:
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def in_short(error: BaseException) -> str:
    """Type and message of an error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
