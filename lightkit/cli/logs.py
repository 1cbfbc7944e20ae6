"""`lightkit logs`, `attach`, `stop` and `wait`: what runs print, how far they are, and ending them from elsewhere."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import complain, say
from lightkit.common import run_files
from lightkit.common.errors import FAILED, UserError
from lightkit.detached import following
from lightkit.detached.detach import tidy
from lightkit.detached.folders import entry_of, find_folder, is_sweep
from lightkit.detached.following import ask_to_end, exit_status
from lightkit.detached.line import leave
from lightkit.detached.liveness import ALIVE, is_waiting, look, wait_until_free
from lightkit.loggers.console import ConsoleLogger
from lightkit.runs.catalog import path_from, places_of, project, runs_below
from lightkit.runs.folder import writing
from lightkit.runs.lock import lock_holder
from lightkit.runs.placement import discard_if_empty
from lightkit.sweep import limits
from lightkit.sweep.journal import Record, read_journal
from lightkit.sweep.plan import find_sweep, survives
from lightkit.sweep.received import counting_options
from lightkit.sweep.state import ENDED, is_locked
from lightkit.sweep.state import look as look_at_job

_POLL_SECONDS = 0.1
_RESUMED_SECONDS = 2.0
"""Seconds between two looks at a run that was gone on with at once."""
PATIENCE_SECONDS = 5.0
"""How long what was asked to end may take, before the way to kill it is told."""


def logs(args: list[str]) -> int:
    """Show the end of a log, and go on with it where that is asked for."""
    options = Parser("logs", "run", lines="50").read(args)
    last = None
    if options.lines != "all":
        what, expected = "not a number of lines", "a whole number, or all"
        last = whole_number("--lines", options.lines, what=what, expected=expected)
    if options.log and options.output:
        raise UserError("one of them at a time", key="lightkit logs", received="--log --output")
    folder = _found(options.run)
    path = following.log_of(folder, output=options.output if options.output or options.log else None)
    lines = following.Lines(path, last=last)
    if not options.follow and not path.exists():
        complain(f"nothing is written yet: there is no {path}")
    with suppress(KeyboardInterrupt):
        for new in following.follow(folder, lines) if options.follow else [lines.new(torn=True)]:
            for line in new:
                say(line)
            sys.stdout.flush()
    return 0


def attach(args: list[str]) -> int:
    """Show a run until it ends or Ctrl-C is pressed."""
    options = Parser("attach", "run").read(args)
    root, run = project(), shlex.quote(options.run)
    folder = _found(options.run)
    if (standing := look(folder)).state not in ALIVE:
        say(f"{standing.describe(root)}\nwhat it told:  lightkit logs {run}")
        return exit_status(standing)
    if standing.state == "starting":
        say(f"process {standing.pid or 'unknown'} builds data and model; it shows up here as soon as it trains")
    try:
        if is_sweep(folder):
            from lightkit.cli.sweep import watch_sweep

            watch_sweep(folder)
            standing = look(folder)
        else:
            standing = following.attach(folder, ConsoleLogger())
    except KeyboardInterrupt:
        say(f"detached, and it goes on; back to it:  lightkit attach {run}   to end it:  lightkit stop {run}")
        return 0
    complain(standing.describe(root))
    return exit_status(standing)


def _found(run: str) -> Path:
    """Find the folder of a run, and say it where the run waits in line."""
    folder = find_folder(run, project())
    if is_waiting(folder):
        complain(entry_of(folder).standing.describe(project()))
    return folder


def patiently(is_over: Callable[[], bool], kill: str) -> None:
    """Wait until what was asked to end is over, and say once how to kill it where that takes long.

    Args:
        is_over: Tells whether it is.
        kill: The command that kills it; empty where it is killed already.
    """
    due = time.monotonic() + PATIENCE_SECONDS
    while not is_over():
        if kill and time.monotonic() >= due:
            complain(f"it still saves, or hangs; to kill it, and lose what is not saved:  {kill}")
            kill = ""
        time.sleep(_POLL_SECONDS)


def stop(args: list[str]) -> int:
    """Ask runs to end, and wait until they have; sweeps end those that are jobs of theirs."""
    options = Parser("stop", "run+").read(args)
    root, now = project(), options.now
    jobs = [find_sweep_job(text, root) for text in options.run]
    folders = [find_folder(text, root, one_alive=True) for text, job in zip(options.run, jobs) if job is None]
    folders += [record.jobs[name].folder for record, name in filter(None, jobs) if not stop_job(record, name, now=now)]
    asked = [folder for folder in folders if not is_sweep(folder) and _ask(folder, now=now)]
    for folder in filter(is_sweep, folders):
        _stop_sweep(folder, now=now)
    try:
        for folder in asked:
            _wait_for_end(folder)
    except KeyboardInterrupt:
        named = shlex.join(options.run)
        complain(f"what was asked to end still saves and ends; to wait for it:  lightkit wait {named}")
        raise
    return 0


def wait(args: list[str]) -> int:
    """Wait until runs have ended."""
    options = Parser("wait", "run+").read(args)
    root, codes = project(), list[int]()
    for folder in [find_folder(text, root) for text in options.run]:
        wait_until_free(folder)
        while (standing := look(folder)).state in ALIVE:  # gone on with at once, or in a queue
            wait_until_free(folder)
            time.sleep(_RESUMED_SECONDS)
        complain(standing.describe(root))
        codes.append(exit_status(standing))
    return next(filter(None, codes), 0)


def _ask(folder: Path, *, now: bool) -> bool:
    """Ask a run to end; tells whether it is alive."""
    standing = look(folder)
    leave(folder)  # after a reboot nothing goes on with it
    if standing.state == "waiting" and standing.pid is None:
        return True
    if standing.state not in ALIVE:
        say(f"nothing to stop: {standing.describe(project())}")
        return False
    is_asked = ask_to_end(standing, now=now)
    if now:
        say(f"killed process {standing.pid}")
    elif is_asked:
        say(f"asked process {standing.pid} to save and to end")
    else:
        say(f"process {standing.pid} was asked before; waiting for it")
    return True


def _wait_for_end(folder: Path) -> None:
    """Wait until a run has ended, and say how to go on with it."""
    place = path_from(project(), folder)
    patiently(lambda: wait_until_free(folder, 0.0), f"lightkit stop --now {place}")
    limits.forget_request(folder)
    tidy(folder)
    discard_if_empty(folder, project())
    standing = look(folder)
    words = ["lightkit", *(["sweep"] if is_sweep(folder) else []), "resume", *(["-d"] if standing.detached else [])]
    again = "" if standing.state == "finished" else f"; go on with:  {shlex.join([*words, place])}"
    told = standing.describe(project()) + again
    say(told if folder.exists() else f"{place} is out of the line; it had not begun")


def _stop_sweep(folder: Path, *, now: bool) -> None:
    """Let the jobs of a sweep save, or kill it with them."""
    if not now:
        from lightkit.cli.sweep import stop_sweep

        stop_sweep(folder)
        return
    # Its own process first, which would start again what has died.
    alive = [each for each in [folder, *runs_below(folder)] if is_locked(each)]
    for each in alive:
        if _ask(each, now=True):
            wait_until_free(each)
    for each in reversed(alive):  # as long as one of its jobs lives, a sweep does
        _wait_for_end(each)
    if not alive:
        say(f"nothing to stop: {look(folder).describe(project())}")


def find_sweep_job(text: str, root: Path) -> tuple[Record, str] | None:
    """Find the sweep and the job that `SWEEP/JOB` means, by a path or by the name of the sweep.

    Args:
        text: What was typed.
        root: The project.

    Returns:
        The journal and the name of the job; None where the text means something else.
    """
    for place in places_of(text.rstrip("/"), root):
        for home in [path for path in place.absolute().parents if (path / run_files.SWEEP_JOURNAL).is_file()]:
            record, name = read_journal(home.resolve()), place.absolute().relative_to(home).as_posix()
            if name in record.jobs:
                return record, name
    for at in [at for at, sign in enumerate(text) if sign == "/" and text[at + 1 :]]:
        with suppress(UserError):
            record = read_journal(find_sweep(text[:at], root))
            if text[at + 1 :] in record.jobs:
                return record, text[at + 1 :]
    return None


def stop_job(record: Record, name: str, *, now: bool) -> bool:
    """Let one job of a sweep save and end, or kill it; the sweep goes on without it.

    The process that runs the sweep does so: so it knows that the job is not to be tried again.

    Args:
        record: The journal of the sweep.
        name: The job.
        now: Kill it.

    Returns:
        Whether that was up to the sweep; False where nobody runs it, so that the job is a run like any other.

    Raises:
        UserError: The jobs train at once, or the folder cannot be written.
    """
    is_run = lock_holder(record.folder) is not None
    if not is_run and not survives(counting_options(record, {})[0]):
        return False
    folder = record.jobs[name].folder
    before = look_at_job(record.jobs[name], record, controlled=is_run)
    if before.status in ("waiting", *ENDED):
        say(f"nothing to stop: {name} is {before.status}")
        return True
    if record.head.get("at_once"):
        what, fix = "this job trains at once with others, in one process", f"lightkit stop {record.folder} ends all"
        raise UserError(what, key=str(folder), fix=fix, exit_code=FAILED)
    with writing(folder):
        is_new = limits.ask_job(folder, now=now)
    if is_run:
        asked = "to be killed" if now else "to save and to end"
        say(f"asked for {name} {asked}" if is_new else f"{name} was asked before; waiting for it")
        kill = "" if now else f"lightkit stop --now {path_from(project(), folder)}"
        patiently(lambda: not limits.read_request(folder) or lock_holder(record.folder) is None, kill)
    else:
        from lightkit.cli.multirun import go_on

        try:
            go_on(record.folder, {}, only=name)
        finally:
            limits.forget_request(folder)
    _tell(record.folder, name)
    return True


def _tell(sweep: Path, name: str) -> None:
    """Say what became of the job, of the sweep, and how to go on."""
    record, root = read_journal(sweep), project()
    state = look_at_job(record.jobs[name], record)
    step = f" at step {state.step}" if state.step else ""
    say(f"{path_from(root, state.job.folder)} {state.status}{step}")
    short = path_from(root, sweep)
    if lock_holder(sweep) is not None:
        say(f"the other jobs of the sweep go on; to end them, too:  lightkit stop {short}")
    if state.status == "stopped":
        say(f"to go on with this job once the sweep has ended:  lightkit sweep resume {short} --stopped")
