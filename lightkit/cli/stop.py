"""`lightkit stop` and `lightkit wait`: ending runs from elsewhere, and waiting for their end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from lightkit.cli.arguments import Parser
from lightkit.cli.live import Hint
from lightkit.cli.terminal import complain, say
from lightkit.runs.catalog import path_from, project

_POLL_SECONDS = 2.0


def stop(args: list[str]) -> int:
    """Ask runs to end, and wait until they have."""
    options = Parser("stop", "run+").read(args)
    from lightkit.detached.folders import is_sweep

    folders = _without_sweep_jobs(options.run, now=options.now)
    alone = [folder for folder in folders if not is_sweep(folder)]
    asked = [folder for folder in alone if _ask(folder, now=options.now)]
    for folder in folders:
        if is_sweep(folder):
            _stop_sweep(folder, now=options.now)
    try:
        for folder in asked:
            _wait_for_end(folder)
    except KeyboardInterrupt:
        named = shlex.join(options.run)
        complain(f"what was asked to end still saves and ends; to wait for it:  lightkit wait {named}")
        raise
    return 0


def _without_sweep_jobs(typed: Sequence[str], *, now: bool) -> list[Path]:
    """Find what is meant, let sweeps end those that are jobs of theirs, and return the folders of the others."""
    from lightkit.cli.stop_job import find_sweep_job, stop_job
    from lightkit.detached.folders import find_folder

    found = [find_sweep_job(text, project()) for text in typed]
    folders = [find_folder(text, project(), one_alive=True) for text, job in zip(typed, found) if job is None]
    alone = [record.jobs[name].folder for record, name in filter(None, found) if not stop_job(record, name, now=now)]
    return [*folders, *alone]


def wait(args: list[str]) -> int:
    """Wait until runs have ended."""
    options = Parser("wait", "run+").read(args)
    from lightkit.detached.ending import exit_status
    from lightkit.detached.folders import find_folder
    from lightkit.detached.liveness import ALIVE, look, wait_until_free

    root, codes = project(), list[int]()
    for folder in [find_folder(text, root) for text in options.run]:
        wait_until_free(folder)
        while (standing := look(folder)).state in ALIVE:  # gone on with at once, or in a queue
            wait_until_free(folder)
            time.sleep(_POLL_SECONDS)
        complain(standing.describe(root))
        codes.append(exit_status(standing))
    return next(filter(None, codes), 0)


def _ask(folder: Path, *, now: bool) -> bool:
    """Ask a run to end; tells whether it is alive."""
    from lightkit.detached.ending import ask_to_end
    from lightkit.detached.liveness import ALIVE, look

    standing = look(folder)
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
    from lightkit.detached.ending import forget_request
    from lightkit.detached.folders import is_sweep
    from lightkit.detached.liveness import look, wait_until_free

    hint = Hint(f"lightkit stop --now {path_from(project(), folder)}")
    if not wait_until_free(folder, hint.left):
        hint.tell_when_due()
        wait_until_free(folder)
    forget_request(folder)
    standing, root = look(folder), project()
    words = ["lightkit", *(["sweep"] if is_sweep(folder) else []), "resume", *(["-d"] if standing.detached else [])]
    again = f"; go on with:  {shlex.join([*words, path_from(root, folder)])}"
    say(standing.describe(root) + ("" if standing.state == "finished" else again))


def _stop_sweep(folder: Path, *, now: bool) -> None:
    """Let the jobs of a sweep save, or kill it with them."""
    if not now:
        from lightkit.cli.sweep_actions import stop_sweep

        stop_sweep(folder)
        return
    from lightkit.detached.liveness import look, wait_until_free
    from lightkit.runs.catalog import runs_below
    from lightkit.sweep.state import is_locked

    # Its own process first, which would start again what has died.
    alive = [each for each in [folder, *runs_below(folder)] if is_locked(each)]
    for each in alive:
        if _ask(each, now=True):
            wait_until_free(each)
    for each in reversed(alive):  # as long as one of its jobs lives, a sweep does
        _wait_for_end(each)
    if not alive:
        say(f"nothing to stop: {look(folder).describe(project())}")
