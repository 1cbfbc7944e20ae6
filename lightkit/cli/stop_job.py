"""Ending one job of a sweep, by the process that runs the sweep: so it knows that the job is not to be tried again."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from lightkit.cli.live import Hint
from lightkit.cli.terminal import say
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import FAILED
from lightkit.runs.catalog import path_from, places_of, project
from lightkit.runs.folder import unwritable
from lightkit.runs.lock import lock_holder
from lightkit.sweep.build import survives
from lightkit.sweep.journal import Record, read_journal
from lightkit.sweep.limits import ask_job, forget_request, read_request
from lightkit.sweep.plan import find_sweep
from lightkit.sweep.received import counting_options
from lightkit.sweep.state import ENDED, look

_POLL_SECONDS = 0.1
_NOT_BEGUN = ("waiting", *ENDED)


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
    head, _, name = text.partition("/")
    while name:
        with suppress(UserError):
            record = read_journal(find_sweep(head, root))
            if name in record.jobs:
                return record, name
        more, _, name = name.partition("/")
        head = f"{head}/{more}"
    return None


def stop_job(record: Record, name: str, *, now: bool) -> bool:
    """Let one job of a sweep save and end, or kill it; the sweep goes on without it.

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
    job = record.jobs[name]
    before = look(job, record, controlled=is_run)
    if before.status in _NOT_BEGUN:
        say(f"nothing to stop: {name} is {before.status}")
        return True
    if record.head.get("at_once"):
        what, fix = "this job trains at once with others, in one process", f"lightkit stop {record.folder} ends all"
        raise UserError(what, key=str(job.folder), fix=fix, exit_code=FAILED)
    try:
        is_new = ask_job(job.folder, now=now)
    except OSError as error:
        raise unwritable(job.folder, error) from error
    if is_run:
        asked = "to be killed" if now else "to save and to end"
        say(f"asked for {name} {asked}" if is_new else f"{name} was asked before; waiting for it")
        _wait(record, name, now=now)
    else:
        from lightkit.cli.multirun import go_on

        try:
            go_on(record.folder, {}, only=name)
        finally:
            forget_request(job.folder)
    _tell(record.folder, name)
    return True


def _wait(record: Record, name: str, *, now: bool) -> None:
    """Wait until the sweep has taken note of the end of a job."""
    folder = record.jobs[name].folder
    hint = Hint(f"lightkit stop --now {path_from(project(), folder)}")
    while read_request(folder) and lock_holder(record.folder) is not None:
        if not now:
            hint.tell_when_due()
        time.sleep(_POLL_SECONDS)


def _tell(sweep: Path, name: str) -> None:
    """Say what became of the job, of the sweep, and how to go on."""
    record, root = read_journal(sweep), project()
    state = look(record.jobs[name], record)
    step = f" at step {state.step}" if state.step else ""
    say(f"{path_from(root, state.job.folder)} {state.status}{step}")
    short = path_from(root, sweep)
    if lock_holder(sweep) is not None:
        say(f"the other jobs of the sweep go on; to end them, too:  lightkit stop {short}")
    if state.status == "stopped":
        say(f"to go on with this job once the sweep has ended:  lightkit sweep resume {short} --stopped")
