"""Which line of the user's own code an exception came from."""

from __future__ import annotations

import site
import sysconfig
import traceback
from functools import cache
from pathlib import Path

from lightkit.config.origins import shown

_PACKAGE = Path(__file__).resolve().parents[1]
DEBUG = "LIGHTKIT_DEBUG=1 shows the traceback"


def own_line(error: BaseException) -> str | None:
    """`file:line` of the innermost frame outside lightkit, Python and installed packages; None when there is none."""
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
        return f"{shown(Path(error.filename))}:{error.lineno or 1}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    return f"{shown(Path(frames[-1].filename))}:{frames[-1].lineno}" if frames else None


def _is_own(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in _foreign())


@cache
def _foreign() -> tuple[Path, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return (_PACKAGE, *(Path(path).resolve() for path in paths if path))
