"""`lightkit attach`: a run that goes on elsewhere, as if it had been started here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, say
from lightkit.runs.catalog import project

if TYPE_CHECKING:
    from lightkit.detached.liveness import Standing

HELP = {
    "attach": """\
usage: lightkit attach RUN

Show a run that goes on elsewhere as if it had been started here: its messages, and the live bar. Ctrl-C detaches, and
leaves the run alone. RUN is the folder of a run or a sweep, its name, or `last` for the newest.

The run need not have been started with -d: one of another terminal can be looked at as well.

examples:
  lightkit attach last
  lightkit attach digits_cnn

Exit status: that of the run where it ends while it is shown, or has ended before; 0 after Ctrl-C.""",
}


def attach(args: list[str]) -> int:
    """Show a run until it ends or Ctrl-C is pressed."""
    parser = Parser("attach")
    parser.add_argument("run")
    options = parser.read(args)
    from lightkit.detached.ending import exit_status
    from lightkit.detached.folders import find_folder, is_alive, is_sweep
    from lightkit.detached.following import attach as show
    from lightkit.detached.liveness import look
    from lightkit.loggers.console import ConsoleLogger

    folder = find_folder(options.run, project())
    if not is_alive(folder):
        standing = look(folder)
        say(f"{ended(standing)}\nwhat it told:  lightkit logs {options.run}")
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
        run = options.run
        say(f"detached, and it goes on; back to it:  lightkit attach {run}   to end it:  lightkit stop {run}")
        return 0
    complain(ended(standing))
    return exit_status(standing)


def ended(standing: Standing) -> str:
    """Say how a run has ended: `outputs/…/digits_cnn failed at step 310: CUDA error`."""
    step = "" if standing.step is None else f" at step {standing.step}"
    if standing.state == "finished":
        step = "" if standing.step is None else f" after {standing.step} steps"
    return f"{place_of(standing.folder)} {standing.state}{step}" + (f": {standing.error}" if standing.error else "")


def place_of(folder: Path) -> str:
    """Return a folder as one would type it: from the project, where it is in there."""
    root = project()
    return str(folder.relative_to(root) if folder.is_relative_to(root) else folder)
