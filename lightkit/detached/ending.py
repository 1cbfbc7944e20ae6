"""Ending a run from elsewhere, and the exit status of one that has ended."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import DONE, FAILED, INTERRUPTED, of_signal
from lightkit.detached.liveness import ALIVE, Standing, look
from lightkit.runs.reading import read_result

_SIGNAL_IN_REASON = re.compile(r"\b(SIG[A-Z0-9]+)\b")


def ask_to_end(standing: Standing, *, now: bool = False) -> bool:
    """Ask the process of a run to save and to end, or kill it.

    A second request changes nothing: the run would take a second signal as the wish to end at once, without saving.

    Args:
        standing: The run.
        now: Kill it; what it learnt since its last checkpoint is lost.

    Returns:
        Whether it was asked; False where that had been done before, and where it has ended meanwhile.

    Raises:
        UserError: It runs on another machine, it belongs to another user, or nobody knows which process it is.
    """
    folder, mark = standing.folder, standing.folder / run_files.SWEEP_STOP
    if standing.host not in (None, socket.gethostname()):
        fix = f"there: lightkit stop {folder}"
        raise UserError(f"it runs on another machine, {standing.host}", key=str(folder), fix=fix, exit_code=FAILED)
    if standing.pid is None:
        what = "it is not known which process runs there"
        raise UserError(what, key=str(folder), fix="end it where it was started", exit_code=FAILED)
    if not now and _is_asked(mark, folder):
        return False
    number = signal.SIGKILL if now else signal.SIGTERM
    if not now:
        with suppress(OSError):  # a full disk: then a second request is not known as one
            mark.unlink(missing_ok=True)  # a link of that name is not written through
            mark.touch()
    try:
        return _send(standing, number)
    except PermissionError as error:
        what = f"process {standing.pid} belongs to another user"
        raise UserError(what, key=str(folder), exit_code=FAILED) from error


def forget_request(folder: Path) -> None:
    """Take away the note that a run was asked to end."""
    with suppress(OSError):
        (folder / run_files.SWEEP_STOP).unlink(missing_ok=True)


def exit_status(standing: Standing) -> int:
    """Return the status that the process of a run has ended with, as far as that is known.

    Args:
        standing: A run or a sweep that is not alive.
    """
    if standing.state in ("finished", "paused", "pruned"):
        return DONE
    result = read_result(standing.folder)
    known = result.get("exit_status")
    if standing.state in ("failed", "interrupted") and type(known) is int and 0 <= known <= 255:
        return known
    if standing.state != "interrupted":
        return FAILED
    found = _SIGNAL_IN_REASON.search(str(result.get("reason") or ""))
    number = getattr(signal, found[1], None) if found else None
    return of_signal(number) if isinstance(number, signal.Signals) else INTERRUPTED


def _is_asked(mark: Path, folder: Path) -> bool:
    """Tell whether the process that runs in a folder now was asked to end before."""
    with suppress(OSError):
        return mark.stat().st_mtime >= max(
            (folder / name).stat().st_mtime for name in (run_files.LOCK, run_files.JOB_LOCK) if (folder / name).exists()
        )
    return False


def _send(standing: Standing, number: signal.Signals) -> bool:
    """Send a signal to the process that holds the lock, and to no other that has its number by now."""
    pid = standing.pid
    assert pid is not None, "checked"
    try:
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    except OSError:  # an old kernel
        handle = None
    try:
        # The process of this number is held; if the run still is this process, no other can come between.
        again = look(standing.folder)
        if again.state not in ALIVE or again.pid != pid:
            return False
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True
