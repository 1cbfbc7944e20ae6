"""A traceback that a user hands in, as a file, as words or by standard input, and what is known of it."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from lightkit.cli.terminal import json_text, say, width
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import DONE, FAILED

_TABLES = (".csv", ".tsv")
_TABLE = "lightkit doctor data=csv"
_PIPE_SECONDS = 1.0
"""How long a pipe that nobody asked to read may be silent before it is left alone."""


def handed_in(words: Sequence[str], *, dash: bool) -> str | None:
    """Return the text of a traceback that was handed in by a file or standard input; None where there is none.

    Args:
        words: Arguments of the command.
        dash: Whether `-` is one of them: standard input is read, however long it takes.

    Raises:
        UserError: The file is a table.
    """
    if len(words) == 1 and Path(words[0]).is_file():
        if Path(words[0]).suffix in _TABLES:
            what, fix = "this is a table, not a traceback", f"{_TABLE} data.dataset.path={words[0]}"
            raise UserError(what, received=words[0], fix=f"{fix} data.dataset.target=COLUMN")
        content = Path(words[0]).read_bytes()
        marked = content[:2] in (b"\xff\xfe", b"\xfe\xff")  # as Windows writes what is redirected to a file
        return content.decode("utf-16" if marked else "utf-8", errors="replace")
    if dash:
        return sys.stdin.read()
    if words or sys.stdin is None or sys.stdin.closed:
        return None
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return None
    silent = stat.S_ISFIFO(mode) and not select.select([sys.stdin], [], [], _PIPE_SECONDS)[0]
    if silent or not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        return None
    return sys.stdin.read() or ("" if stat.S_ISREG(mode) else None)


def explain_traceback(text: str, *, as_json: bool) -> int:
    """Print what is known of a traceback; returns the exit status.

    Args:
        text: The traceback, or any text with one in it.
        as_json: Print it as JSON.
    """
    from lightkit.doctor.traceback import explain
    from lightkit.doctor.traceback import lines as lines_of

    found = explain(text)
    if as_json:
        say(json_text(found.to_json()))
    else:
        for line in lines_of(found, width() or 110):
            say(line)
    return DONE if found.known else FAILED
