"""The exit statuses of the command line, each once; `docs/reference/exit-status.md` tells users the same.

Any module may end a run with one of them (`UserError(..., exit_code=...)`), so they are in the lowest layer.
"""

from __future__ import annotations

DONE = 0
"""All went well."""
FAILED = 1
"""Something else failed: a full disk, a loader process that died, an error in code; `doctor` found an error."""
WRONG_INPUT = 2
"""Configuration, data or command line are wrong; what a `UserError` has that names no other."""
NOT_FINITE = 3
"""The loss is no longer finite."""
OUT_OF_MEMORY = 4
"""Memory ran out, on the GPU or the host."""
UNREADABLE = 5
"""A checkpoint or file of weights cannot be read."""
AUDIT_FAILED = 6
"""The audit of a fine-tuning found that it does not train what it says."""
LOST_RANK = 7
"""This process ended because another one of its run did, or does not answer."""
IN_USE = 75
"""Another process runs in the folder: the same command may do in a while (EX_TEMPFAIL of sysexits.h)."""
INTERRUPTED = 130
"""Ctrl-C, which is signal 2."""
BROKEN_PIPE = 141
"""Who reads the output has gone (`| head`), which is signal 13."""


def of_signal(number: int) -> int:
    """Return the status of a process that a signal ended, as shells count it."""
    return 128 + number


def of_process(code: int) -> int:
    """Return the status of a child process as shells count it.

    Args:
        code: As `subprocess` gives it: negative where a signal ended the process.
    """
    return of_signal(-code) if code < 0 else code
