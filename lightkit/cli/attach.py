"""`lightkit attach`: a run that goes on elsewhere, as if it had been started here."""

from __future__ import annotations

import shlex

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, say
from lightkit.runs.catalog import project


def attach(args: list[str]) -> int:
    """Show a run until it ends or Ctrl-C is pressed."""
    options = Parser("attach", "run").read(args)
    from lightkit.detached.ending import exit_status
    from lightkit.detached.folders import find_folder, is_alive, is_sweep
    from lightkit.detached.following import attach as show
    from lightkit.detached.liveness import look
    from lightkit.loggers.console import ConsoleLogger

    root = project()
    folder = find_folder(options.run, root)
    if not is_alive(folder):
        standing = look(folder)
        say(f"{standing.describe(root)}\nwhat it told:  lightkit logs {shlex.quote(options.run)}")
        return exit_status(standing)
    if (standing := look(folder)).state == "starting":
        say(f"process {standing.pid or 'unknown'} builds data and model; it shows up here as soon as it trains")
    try:
        if is_sweep(folder):
            from lightkit.cli.sweep_actions import watch_sweep

            watch_sweep(folder)
            standing = look(folder)
        else:
            standing = show(folder, ConsoleLogger())
    except KeyboardInterrupt:
        run = shlex.quote(options.run)
        say(f"detached, and it goes on; back to it:  lightkit attach {run}   to end it:  lightkit stop {run}")
        return 0
    complain(standing.describe(root))
    return exit_status(standing)
