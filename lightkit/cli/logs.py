"""`lightkit logs`: show the end of a run's log, and follow it."""

from __future__ import annotations

import sys
from contextlib import suppress

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import complain, say
from lightkit.common.errors import UserError
from lightkit.runs.catalog import project


def logs(args: list[str]) -> int:
    """Show the end of a log, and go on with it where that is asked for."""
    options = Parser("logs", "run", lines="50").read(args)
    last = None
    if options.lines != "all":
        what, expected = "not a number of lines", "a whole number, or all"
        last = whole_number("--lines", options.lines, what=what, expected=expected)
    if options.log and options.output:
        raise UserError("one of them at a time", key="lightkit logs", received="--log --output")
    from lightkit.detached.folders import find_folder
    from lightkit.detached.following import Lines, follow, log_of

    folder = find_folder(options.run, project())
    path = log_of(folder, output=options.output if options.output or options.log else None)
    lines = Lines(path, last=last)
    if not options.follow:
        if not path.exists():
            complain(f"nothing is written yet: there is no {path}")
        _print(lines.new(torn=True))
        return 0
    with suppress(KeyboardInterrupt):
        for new in follow(folder, lines):
            _print(new)
    return 0


def _print(lines: list[str]) -> None:
    for line in lines:
        say(line)
    sys.stdout.flush()
