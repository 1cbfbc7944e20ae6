"""What `lightkit sweep` does: it shows a sweep, goes on with it, or ends it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightkit.cli.live import Hint, read_seconds
from lightkit.cli.sweep_table import TITLES, SweepDisplay, headline, job_labels, row_of, tell_stopped
from lightkit.cli.terminal import complain, json_text, say, table
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.shapes import TEXTS
from lightkit.runs.catalog import project
from lightkit.runs.folder import unwritable
from lightkit.runs.lock import lock_holder
from lightkit.sweep.build import survives
from lightkit.sweep.job import content_of
from lightkit.sweep.journal import Record, find_job, read_journal
from lightkit.sweep.plan import find_sweep
from lightkit.sweep.received import counting_options
from lightkit.sweep.state import look

_POLL_SECONDS = 0.2
_DONE = ("finished", "pruned", "stopped")
_AS_BEFORE: Mapping[str, Any] = MappingProxyType({})


def act(options: argparse.Namespace) -> int:
    """Look at a sweep, go on with it, or end it.

    Args:
        options: Those of `lightkit sweep`.
    """
    folder = find_sweep(options.sweep, project())
    if options.action == "resume":
        how = {"detached": options.detach, "trusted": options.trust, "again": options.stopped}
        return resume_sweep(folder, _given(options.overrides), **how)
    if options.overrides:
        raise UserError("one sweep at a time", key="lightkit sweep", received=" ".join(options.overrides))
    if options.action == "stop":
        return stop_sweep(folder)
    if options.watch is None:
        _show(read_journal(folder), as_json=options.json)
        return 0
    return watch_sweep(folder, read_seconds(options.watch), as_json=options.json)


def resume_sweep(
    folder: Path,
    options: Mapping[str, Any] = _AS_BEFORE,
    *,
    detached: bool = False,
    trusted: bool = False,
    again: bool = False,
) -> int:
    """Go on with a sweep.

    Args:
        folder: Folder of the sweep.
        options: What is to be different of the section `sweep`.
        detached: Whether it is to outlive the terminal.
        trusted: Whether the user answers for it, whoever has made it.
        again: Whether jobs go on that somebody has stopped.
    """
    from lightkit.cli.detach import carry_out
    from lightkit.cli.multirun import go_on, take_over

    if trusted:
        take_over(folder)
    _tell_damage(read_journal(folder))
    return carry_out(partial(go_on, folder, options, again=again), folder, detached=detached, on_end=_on_end(folder))


def _on_end(folder: Path) -> list[str]:
    """Return the command that the user wants at the end of a sweep; that of somebody else's counts for nothing."""
    job = next(iter(read_journal(folder).jobs.values()), None)
    if job is None or not find_job(job.folder)[1]:
        return []
    command: Any = content_of(job.config).get("on_end")
    return command if TEXTS.fits(command) else []


def _given(overrides: Sequence[str]) -> Mapping[str, Any]:
    """Return the options of the sweep that were typed, checked.

    Raises:
        UserErrors: They are wrong, or belong to the jobs.
    """
    if not overrides:
        return {}
    foreign = next((text for text in overrides if not text.startswith("sweep.")), None)
    if foreign is not None:
        what, fix = "the jobs of a sweep are fixed once it has begun", "`lightkit train -m` begins another"
        raise UserError(what, key="lightkit sweep resume", received=foreign, expected="sweep.KEY=VALUE", fix=fix)
    from lightkit.config import compose

    found = compose(overrides).sweep
    return {key: found[key] for key in {text.partition("=")[0].split(".")[1] for text in overrides}}


def _show(record: Record, *, as_json: bool) -> None:
    """Print where each job is."""
    for error in record.refused:
        complain(f"no job: {error.received!r}: {error.what}")
    holder = lock_holder(record.folder)
    states = [look(job, record, controlled=holder is not None) for job in record.jobs.values()]
    if as_json:
        names = ("status", "metric", "best", "epoch", "step", "share", "eta_seconds", "code", "reason", "place")
        jobs = [
            {"job": state.job.name, "overrides": state.job.overrides, "folder": state.job.folder}
            | {name: getattr(state, name) for name in names}
            for state in states
        ]
        whole = {"folder": record.folder, "run_by": holder, "jobs": jobs, "damage": record.damage}
        say(json_text(whole, one_line=True))
        return
    labels = job_labels(states)
    say(table(TITLES, [row_of(state, labels) for state in states], right=[2, 3, 4, 5], cut=[0, 6]))
    _tell_damage(record)
    mode = SweepDisplay(record).mode
    say(f"\n{headline(states, mode)}")
    if holder is not None:
        say(f"run by {holder}; to end it:  lightkit sweep stop {record.folder}")
    elif any(state.status in ("running", "starting", "queued") for state in states):
        say(f"nobody watches it; to do so:  lightkit sweep resume {record.folder}")
        say(f"to end it:  lightkit sweep stop {record.folder}")
    elif any(state.status not in _DONE and state.job.name not in record.given_up for state in states):
        say(f"nobody runs it; go on with:  lightkit sweep resume {record.folder}")
    tell_stopped(record.folder, states)


def _tell_damage(record: Record) -> None:
    """Say which lines of a journal cannot be read."""
    if record.damage:
        complain("\n".join(["", *record.damage, "what these lines said counts for nothing, such as jobs of the sweep"]))


def watch_sweep(folder: Path, seconds: float = 2.0, *, as_json: bool = False) -> int:
    """Show a sweep again and again until nobody runs it.

    Args:
        folder: Its folder.
        seconds: Time between two looks.
        as_json: A line of JSON each time.
    """
    display = SweepDisplay(read_journal(folder), seconds)
    try:
        while lock_holder(folder) is not None:
            record = read_journal(folder)
            if as_json:
                _show(record, as_json=True)
            else:
                display.refresh({name: look(job, record, controlled=True) for name, job in record.jobs.items()})
            time.sleep(seconds if as_json else min(seconds, 1.0))
    finally:
        display.close()
    _show(read_journal(folder), as_json=as_json)
    return 0


def stop_sweep(folder: Path) -> int:
    """Ask whoever runs a sweep to end, wherever that process is, and wait for it."""
    holder, record = lock_holder(folder), read_journal(folder)
    if holder is None and survives(counting_options(record, {})[0]):
        from lightkit.cli.multirun import go_on

        go_on(folder, {}, end=True)
        return 0
    if holder is None:
        say(f"nobody runs {folder}")
        return 0
    try:
        mark = folder / run_files.SWEEP_STOP
        mark.unlink(missing_ok=True)  # a link of that name is not written through
        mark.touch()
    except OSError as error:
        raise unwritable(folder, error) from error
    say(f"asked {holder} to end; its jobs save first")
    hint = Hint(f"lightkit stop --now {folder}")
    while lock_holder(folder) is not None:
        hint.tell_when_due()
        time.sleep(_POLL_SECONDS)
    say(f"ended; go on with:  lightkit sweep resume {folder}")
    return 0
