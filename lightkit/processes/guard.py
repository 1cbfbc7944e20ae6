"""Run a command that is told to save and end when what started it is killed, on Linux; a script, run by its path.

The kernel sends SIGTERM to a process whose parent dies, if the process has asked for it. A job does not ask, as it is a
training like any other; this process between does.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
KILL = signal.SIGQUIT
"""Signal at which this process kills the command, which a kill of this process would only ask to end."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _tied() -> None:
    """Ask for SIGTERM when the parent dies, and take all signals again, which a parent may have blocked or ignored."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(command: list[str]) -> int:
    """Run a command and return its exit status, as shells count it.

    Args:
        command: The program and its arguments.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    job = subprocess.Popen(command, start_new_session=True, preexec_fn=_tied)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: job.send_signal(number))
    signal.signal(KILL, lambda _number, _: job.kill())
    code = job.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
