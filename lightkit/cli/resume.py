"""`lightkit resume`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from lightkit.cli.arguments import Parser
from lightkit.cli.detach import carry_out, leave_session
from lightkit.cli.ranks import start
from lightkit.cli.terminal import say
from lightkit.cli.train import finished, train
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import of_process
from lightkit.common.patterns import named
from lightkit.processes.children import Child, lightkit_command
from lightkit.runs.catalog import all_runs, find_run, has_members, no_project_note, project, status


def resume(args: list[str]) -> int:
    """Go on with a stopped run."""
    parser = Parser("resume", "run?", "overrides*")
    options = parser.read(args)
    if options.detach:
        leave_session("resume", args)
    if options.all_lost and (options.run is not None or not options.detach):
        what, fix = "all runs that were lost go on beside each other", "lightkit resume -d --all-lost"
        raise UserError(what, key="--all-lost", fix=fix, family="wrong-command")
    if options.all_lost:
        return _resume_all_lost()
    if options.run is None:
        parser.error("the following arguments are required: run")
    if Path(options.run).is_file():
        path = str(Path(options.run).absolute()).replace("\\", "\\\\").replace("'", "\\'")
        return train([*options.overrides, f"resume.file='{path}'", *(["-d"] if options.detach else [])])
    try:
        folder = find_run(options.run, project())
    except UserError:
        _refuse_sweep(options.run, detached=options.detach)
        raise
    return _resume(folder, options)


def _refuse_sweep(text: str, *, detached: bool) -> None:
    """Tell whoever means a sweep which command goes on with it."""
    from lightkit.detached.folders import find_folder, is_sweep

    try:
        folder = find_folder(text, project())
    except UserError:
        return
    if is_sweep(folder):
        fix = f"lightkit sweep resume {'-d ' if detached else ''}{text}"
        raise UserError("this is a sweep", received=text, fix=fix, family="wrong-command")


def _resume_all_lost() -> int:
    """Go on, detached, with all runs and sweeps of the project that ended with the machine they ran on.

    Returns:
        0, or the exit status of the first that could not be gone on with.
    """
    from lightkit.detached.liveness import look
    from lightkit.sweep.plan import all_sweeps

    sweeps = all_sweeps(project(), everywhere=True)
    runs = [run for run in all_runs(project()) if not any(sweep in run.parents for sweep in sweeps)]
    commands: dict[Path, tuple[str, ...]] = {run: ("resume", "-d", str(run)) for run in runs}
    commands |= {sweep: ("sweep", "resume", "-d", str(sweep)) for sweep in sweeps}  # with all of its jobs
    lost = [folder for folder in commands if look(folder).state == "lost"]
    if not lost:
        say("no run has ended with its machine")
        if note := no_project_note():  # after a reboot one is easily in another folder
            say(note)
    sys.stdout.flush()
    # Each in a process of its own: what is wrong with one does not concern the others.
    codes = [Child(lightkit_command(*commands[folder]), own_session=False).wait() for folder in lost]
    return next((of_process(code) for code in codes if code), 0)


def _resume(folder: Path, options: argparse.Namespace) -> int:
    from lightkit.runs.reading import read_run, read_run_unchanged

    composed = read_run(folder, options.overrides)
    # Of an earlier `resume.override` another value that is typed now wants its own.
    given, keys = composed.cfg.resume.override, [text.lstrip("+~").partition("=")[0] for text in options.overrides]
    allowed = [pattern for pattern in given if not any(named(key, (pattern,)) for key in keys)]
    if allowed != given and "resume.override" not in keys:
        quoted = ",".join(f"'{pattern}'" for pattern in allowed)
        composed = read_run(folder, [*options.overrides, f"resume.override=[{quoted}]"])
    # Of an ensemble that has finished, a member may be damaged: its run looks after that.
    if (
        status(folder) == "finished"
        and not has_members(folder)
        and (not options.overrides or composed.cfg == read_run_unchanged(folder, options.overrides).cfg)
    ):
        return finished(folder)
    work = partial(start, composed.cfg, folder, overrides=options.overrides, resume=True)
    return carry_out(work, folder, detached=options.detach, on_end=composed.cfg.on_end)
