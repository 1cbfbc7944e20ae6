"""What kind of failure an error is, and where in the user's own code it came from; torch is not imported for that."""

from __future__ import annotations

import logging
import site
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from lightkit.common.errors import FAILED, INTERRUPTED, OUT_OF_MEMORY, UserError

_PACKAGE = Path(__file__).resolve().parents[1]
DEBUG = "LIGHTKIT_DEBUG=1 shows the traceback"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "_alloc_failed")
"""The last one is how NVIDIA's libraries say it: CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED, ..."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out, of the GPU or of the machine."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # PyTorch's allocator of the CPU has no error class of its own.
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY)


def exit_status(error: BaseException) -> int:
    """Return the status that the command line ends with where this error ends it."""
    if isinstance(error, UserError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return OUT_OF_MEMORY if is_out_of_memory(error) else FAILED


@contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Leave it to the caller to tell what fails inside: a logger of this name says nothing of it."""
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def is_dead_worker(error: BaseException) -> bool:
    """Tell whether a `torch.utils.data.DataLoader` noticed that a worker process of its own is gone.

    PyTorch may raise this from a signal handler, in the middle of anything: it says nothing about what was being done.
    """
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")


def user_frame(error: BaseException) -> str | None:
    """Return `file:line` of the deepest frame outside of lightkit and of what is installed; None where there is none.

    Causes are looked at too: the error at the bottom of a chain is the one that happened in the user's code.
    """
    place: str | None = None
    current: BaseException | None = error
    while current is not None:
        place = _last_own_frame(current) or place
        current = current.__cause__
    return place


def _last_own_frame(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return f"{_shown(error.filename)}:{error.lineno or 1}"
    place, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_own(file):
            place = f"{_shown(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _shown(file: str) -> str:
    path, here = Path(file).resolve(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def is_own(file: str) -> bool:
    """Tell whether a file is neither lightkit's, nor Python's, nor installed."""
    if "/site-packages/" in file:
        return False
    path = Path(file)
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or not path.is_file():
        return False  # installed, be it for another interpreter and put on PYTHONPATH
    return not any(path.resolve().is_relative_to(folder) for folder in _foreign())


@cache
def _foreign() -> tuple[Path, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    return (_PACKAGE, *(Path(path).resolve() for path in paths if path))


def in_short(error: BaseException) -> str:
    """Return type and message of an error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
