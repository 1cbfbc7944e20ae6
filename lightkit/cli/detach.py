"""Starting what may outlive the terminal (`--detach`), and the user's command when it has ended (`on_end`)."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lightkit.cli.entry import guarded, launched
from lightkit.cli.ranks import follows
from lightkit.cli.terminal import complain, say
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.processes.children import lightkit_command
from lightkit.runs.catalog import find_run, path_from, project, run_name


def carry_out(work: Callable[[], int], folder: Path, options: Namespace, *, on_end: Sequence[str] = ()) -> int:
    """Train or sweep here, or in a process that outlives the terminal; then call the user's command.

    Args:
        work: Returns an exit status.
        folder: Where it writes.
        options: Of the command, as `leave_session` has left them. A detached process never comes back from here.
        on_end: Words of the command; of several processes that train together, one calls it.

    Returns:
        The exit status; of what is detached, 0 once it has begun.
    """
    if on_end and not follows():
        work = partial(_with_on_end, work, folder, list(on_end))
    if not options.detach:
        return work()
    from lightkit.detached.line import in_turn, join

    def in_line() -> int:
        if not options.has_place:
            join(folder, options.queue or "", options.after, _again(options, folder))
        return in_turn(folder, partial(guarded, work))

    return _carry_out_detached(in_line if options.has_place or options.queue or options.after else work, folder)


def _again(options: Namespace, folder: Path) -> list[str]:
    """Return the words that start the same again in its folder, or go on with it, whatever `last` is by then."""
    typed = vars(options)
    named = {str(typed.get("run", typed.get("sweep"))): str(folder)}
    if source := typed.get("source"):
        named |= {f"{flag}{source}": f"{flag}{find_run(source, project())}" for flag in ("", "--from=")}
    place = f"hydra.{'sweep' if typed.get('multirun') else 'run'}.dir={quoted(folder)}"
    return [named.get(word, word) for word in options.words] + ([place, "resume=auto"] if "multirun" in typed else [])


def quoted(path: Path) -> str:
    """Return a path as the value of an override."""
    escaped = str(path.absolute()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def leave_session(command: str, args: Sequence[str], options: Namespace) -> None:
    """Look whether the system lets a process outlive its terminal, and do what it takes, before anything is begun.

    Where systemd ends everything of a session at logout, this process becomes one that runs the same command in a scope
    of the user's own.

    Args:
        command: `train` or `resume`.
        args: Its arguments.
        options: What they say; the names of runs to wait for become folders. Nothing is done without `detach`, which
            follows from a place in the line.

    Raises:
        UserError: systemd would end the run at logout, and only a command of the user's can change that; or there is no
            such run to wait for, or the queue has no name.
    """
    options.words, options.detach = [command, *args], _detaches(options)
    if not options.detach:
        return
    if launched():
        what, fix = "torchrun waits for its processes, so none of them can leave", "device.nproc=N in place of torchrun"
        raise UserError(what, key="--detach", fix=fix, family="wrong-command")
    from lightkit.detached.detach import IN_LINE, LINGER, fate, scope_command
    from lightkit.detached.folders import find_folder

    found = fate()
    if found == "scope":
        words = scope_command(lightkit_command(command, *args))
        if words is not None:
            os.execvp(words[0], words)
        what = "systemd ends what is left of this login session, and `systemd-run --user --scope` does not work here"
        fix = "start it from a login of its own (ssh), or from a job of the cluster"
        raise UserError(what, key="--detach", fix=fix)
    if found == "killed":
        what = "systemd ends what is left of this login session at its end (KillUserProcesses=yes), detached or not"
        raise UserError(what, key="--detach", fix=f"{LINGER}    once; then again")
    if found == "killed with the last session":
        complain(f"note: systemd ends this when you log out everywhere; to let it go on:  {LINGER}")
    if "SLURM_JOB_ID" in os.environ:
        complain("note: Slurm ends everything of a job with the job, what is detached too")
    options.has_place = os.environ.pop(IN_LINE, "")
    options.after = [] if options.has_place else [find_folder(text, project()) for text in options.after]


def _detaches(options: Namespace) -> bool:
    if options.queue == "":  # such as of a variable that is not set
        raise UserError("the queue has no name", key="--queue", received="", fix="--queue NAME", family="wrong-command")
    return bool(options.detach or options.queue or options.after)


def _with_on_end(work: Callable[[], int], folder: Path, command: Sequence[str]) -> int:
    """Do work, then call the user's command; the exit status is that of the work."""
    from lightkit.runs.on_end import call_on_end

    code = guarded(work)
    if problem := call_on_end(command, folder, code):
        complain(f"on_end: {shlex.join(command)}: {problem}")
    return code


def _carry_out_detached(work: Callable[[], int], folder: Path) -> int:
    """Do work in another process, and say how to come back to it."""
    from lightkit.detached.detach import detach, tidy
    from lightkit.detached.line import leave

    log = folder / run_files.OUTPUT_LOG

    def slow() -> None:
        if sys.stderr.isatty():
            complain(f"it has not begun yet, data or model take their time; what it prints:  {_shown(log)}")

    try:
        begun = detach(folder, work, guard=guarded, slow=slow)
    except KeyboardInterrupt:
        leave(folder)
        tidy(folder)
        raise
    if begun.code is None:
        _explain(folder, begun.pid)
        return 0
    if begun.said:
        (complain if begun.code else say)(begun.said)
    elif begun.code:
        complain(f"error: the process has ended before it had begun (process {begun.pid}); nothing was trained")
    tidy(folder)
    return begun.code


def _explain(folder: Path, pid: int | None) -> None:
    from lightkit.detached.folders import entry_of
    from lightkit.detached.line import find, survive_reboot

    name, waits = shlex.quote(_name(folder)), entry_of(folder).standing.waits
    goes_on = "sweep resume" if (folder / run_files.SWEEP_JOURNAL).is_file() else "resume"
    end = "take it out of the line" if waits else f"let it save and end; then  lightkit {goes_on} -d {name}"
    does = f"waits ({waits}) and goes on" if waits else "goes on"
    say(f"{name} {does} without this terminal: process {pid}, folder {_shown(folder)}")
    lines = {
        "lightkit ps": "what runs, and how the others ended",
        f"lightkit logs -f {name}": "what it prints",
        f"lightkit attach {name}": "how far it is; Ctrl-C leaves it alone",
        f"lightkit stop {name}": end,
    }
    width = max(map(len, lines))
    for line, meaning in lines.items():
        say(f"  {line:<{width}}  {meaning}")
    if find(folder) and (note := survive_reboot()):
        complain(note)


def _name(folder: Path) -> str:
    """Return what other commands call a run: its name where no other has it, else its folder."""
    from lightkit.detached.folders import all_folders

    if not folder.is_relative_to(project() / run_files.OUTPUTS):
        return _shown(folder)
    others = [other for other in all_folders(project()) if other != folder]
    taken = {name for other in others for name in (run_name(other), other.name)}
    return next((name for name in (run_name(folder), folder.name) if name not in taken), _shown(folder))


def _shown(path: Path) -> str:
    """Return a path as one would type it here."""
    return path_from(Path.cwd(), path)
