"""`lightkit sweep`: how far a sweep is, going on with it, ending it; how sweeps are shown, running and at the end."""

from __future__ import annotations

import argparse
import math
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.detach import carry_out, leave_session
from lightkit.cli.logs import patiently
from lightkit.cli.replicates import best_of, whole_states
from lightkit.cli.terminal import complain, number, read_seconds, say, table
from lightkit.common import run_files
from lightkit.common.csv_lines import CsvWriter
from lightkit.common.errors import UserError
from lightkit.common.reading import TEXTS, yaml_or_nothing
from lightkit.common.suggest import nearest
from lightkit.common.text import counted, json_text
from lightkit.loggers.console import ConsoleLogger
from lightkit.loggers.wording import duration, shortened
from lightkit.runs.catalog import project
from lightkit.runs.folder import writing
from lightkit.runs.lock import lock_holder
from lightkit.sweep.journal import Record, find_job, read_journal
from lightkit.sweep.plan import find_sweep, survives
from lightkit.sweep.received import counting_options
from lightkit.sweep.state import ENDED, JobProgress, JobState, look

ACTIONS = ("status", "resume", "stop")
TITLES = ("job", "status", "epoch", "step", "best", "left", "where")
_ORDER = {"running": 0, "starting": 0, "failed": 1, "interrupted": 2, "stopped": 2, "queued": 3, "waiting": 3}
"""What is shown first where not all jobs fit."""
_ENDED = ("paused", "pruned", "raced out", "stopped", "interrupted", "failed", "incomplete")
_COUNTED = ("running", "starting", "queued", "waiting", *_ENDED)
_DONE = ("finished", "pruned", "stopped")
_IN_JSON = ("status", "metric", "best", "epoch", "step", "share", "eta_seconds", "code", "reason", "place")
_MOST = 30
_SECONDS_BETWEEN_LINES = 60.0


def sweep(args: list[str]) -> int:
    """Look at a sweep, go on with it, or end it."""
    options = Parser("sweep", "action", "sweep?", "overrides*").read(args)
    key, action = "lightkit sweep", options.action
    if action not in ACTIONS:
        meant = next(iter(nearest(action, ACTIONS)), None)
        named = [options.sweep or "SWEEP"] if meant else args
        fix = shlex.join(["lightkit", "sweep", meant or "status", *named])
        raise UserError("no such action", key=key, received=action, choices=ACTIONS, fix=fix)
    if options.sweep is None:
        fix = f"{key} {action} last"
        raise UserError("SWEEP is missing", key=f"{key} {action}", expected="its folder or name", fix=fix)
    for name, what in (
        ("trust", "only what is resumed needs trust"),
        ("stopped", "only `resume` goes on with jobs"),
        ("detach", "only what trains can be detached"),
    ):
        if getattr(options, name) and action != "resume":
            raise UserError(what, key=f"--{name}", received=action)
    leave_session("sweep", args, options)
    return _act(find_sweep(options.sweep, project()), options)


def _act(folder: Path, options: argparse.Namespace) -> int:
    if options.action == "resume":
        return _resume(folder, options)
    if options.overrides:
        raise UserError("one sweep at a time", key="lightkit sweep", received=" ".join(options.overrides))
    if options.action == "stop":
        return stop_sweep(folder)
    if options.watch is not None:
        return watch_sweep(folder, read_seconds(options.watch), as_json=options.json)
    _show(read_journal(folder), as_json=options.json)
    return 0


def _resume(folder: Path, options: argparse.Namespace) -> int:
    """Go on with a sweep."""
    from lightkit.cli.multirun import go_on, take_over

    changed = _given(options.overrides)
    if options.trust:
        take_over(folder)
    record = read_journal(folder)
    _tell_damage(record)
    # The command at the end is that of the user; one of somebody else's counts for nothing.
    job, command = next(iter(record.jobs.values()), None), None
    if job is not None and find_job(job.folder)[1]:
        command = yaml_or_nothing(job.config).get("on_end")
    on_end: Any = command if TEXTS.fits(command) else []
    work = partial(go_on, folder, changed, again=options.stopped)
    return carry_out(work, folder, options, on_end=on_end)


def _given(overrides: Sequence[str]) -> Mapping[str, Any]:
    """Return the options of the sweep that were typed, checked.

    Raises:
        UserErrors: They are wrong, or belong to the jobs.
    """
    if not overrides:
        return {}
    foreign = next((text for text in overrides if not text.startswith("sweep.") or text.startswith("sweep.over")), None)
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
    wholes = whole_states(record, states)
    if as_json:
        pairs = [(state.job, {name: getattr(state, name) for name in _IN_JSON}) for state in states]
        jobs = [{"job": job.name, "overrides": job.overrides, "folder": job.folder} | facts for job, facts in pairs]
        whole: dict[str, Any] = {"folder": record.folder, "run_by": holder, "jobs": jobs, "damage": record.damage}
        whole["means"] = {one.job.name: [one.best, one.half, one.replicates] for one in wholes if one.replicates}
        say(json_text(whole, one_line=True))
        return
    labels = job_labels(wholes)
    say(table(titles_of(wholes), [row_of(state, labels) for state in wholes], right=[2, 3, 4, 5], cut=[0, 6]))
    _tell_damage(record)
    say(f"\n{headline(wholes, SweepDisplay(record).mode)}")
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
    with closing(SweepDisplay(read_journal(folder), seconds)) as display:
        while lock_holder(folder) is not None:
            record = read_journal(folder)
            if as_json:
                _show(record, as_json=True)
            else:
                display.refresh({name: look(job, record, controlled=True) for name, job in record.jobs.items()})
            time.sleep(seconds if as_json else min(seconds, 1.0))
    _show(read_journal(folder), as_json=as_json)
    return 0


def stop_sweep(folder: Path) -> int:
    """Ask whoever runs a sweep to end, wherever that process is, and wait for it."""
    from lightkit.detached.line import leave

    leave(folder)
    holder, record = lock_holder(folder), read_journal(folder)
    if holder is None and survives(counting_options(record, {})[0]):
        from lightkit.cli.multirun import go_on

        go_on(folder, {}, end=True)
        return 0
    if holder is None:
        say(f"nobody runs {folder}")
        return 0
    with writing(folder):
        mark = folder / run_files.SWEEP_STOP
        mark.unlink(missing_ok=True)  # a link of that name is not written through
        mark.touch()
    say(f"asked {holder} to end; its jobs save first")
    patiently(lambda: lock_holder(folder) is None, f"lightkit stop --now {folder}")
    say(f"ended; go on with:  lightkit sweep resume {folder}")
    return 0


class SweepDisplay:
    """Shows how a sweep goes on: a table on a terminal, lines elsewhere.

    Args:
        record: The sweep.
        every_seconds: Seconds between two lines that sum it up.
    """

    def __init__(self, record: Record, every_seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        self.record, self.console = record, ConsoleLogger("auto", every_seconds)
        self.places = {name: number for number, name in enumerate(record.jobs, 1)}
        self.expected = int((record.head.get("study") or {}).get("sweeper", {}).get("n_trials", 0))
        first = next(iter(record.jobs.values()), None)
        self.mode = JobProgress(first).mode if first is not None else "max"
        self._began = time.monotonic()
        self._before: float | None = None

    def started(self, state: JobState, again: str) -> None:
        """See `lightkit.sweep.controller.Display`."""
        if self.console.style != "bar" or again:
            self.console.message(self._line(state, "again: " + again if again else ""))

    def ended(self, state: JobState) -> None:
        """See `lightkit.sweep.controller.Display`."""
        best = f", {state.metric} {number(state.best)}" if state.best is not None else ""
        said = {"finished": "done", "failed": f"failed ({state.code})"}.get(state.status, state.status)
        reason = f": {state.reason}" if state.reason else ""
        if self.console.style != "bar" or state.status == "failed":
            self.console.message(self._line(state, f"{said}{best}{reason}"))

    def refresh(self, states: Mapping[str, JobState]) -> None:
        """See `lightkit.sweep.controller.Display`."""
        if self._before is None:
            self._before = _done(states.values())
        self.console.live_table(lambda most: self.shown(states, most))

    def message(self, text: str) -> None:
        """See `lightkit.sweep.controller.Display`."""
        self.console.message(text)

    def close(self) -> None:
        """Take the table away."""
        self.console.close()

    def shown(self, states: Mapping[str, JobState], most: int) -> tuple[str, Sequence[str], list[list[str]]]:
        """Return headline, heads and rows of the table, with no more than so many rows."""
        listed, most = whole_states(self.record, states.values()), min(most, _MOST)
        chosen = shortened(listed, [_ORDER.get(state.status, 4) for state in listed], most)
        labels = job_labels(listed)
        rows = [row_of(state, labels) for state in chosen]
        if rest := len(listed) - len(chosen):
            rows.append([f"… {rest} more", *[""] * (len(TITLES) - 1)])
        return headline(listed, self.mode, self._left(listed)), titles_of(listed), rows

    def _left(self, states: Sequence[JobState]) -> float | None:
        """Estimate the seconds to the end by what has been done since we look."""
        done = _done(states)
        gained, left = done - (self._before or 0.0), len(states) - done
        return (time.monotonic() - self._began) * left / gained if gained > 0 and left > 0 else None

    def _line(self, state: JobState, said: str) -> str:
        place = self.places.setdefault(state.job.name, len(self.places) + 1)
        line = f"[{place}/{max(len(self.places), self.expected)}] {state.job.name}"
        return f"{line}  {said}" if said else line


def _done(states: Iterable[JobState]) -> float:
    """Sum up how much of jobs is done, in jobs."""
    return sum(1.0 if state.status in ENDED else state.share or 0.0 for state in states)


def headline(states: Sequence[JobState], mode: str, left: float | None = None) -> str:
    """Sum a sweep up: `3 of 12 jobs finished, 2 running, 2:10 left, best val/accuracy 0.9722 (seed=1)`."""
    counts = Counter(state.status for state in states)
    facts = [f"{counts['finished']} of {counted(len(states), 'job')} finished"]
    facts += [f"{counts[name]} {name}" for name in _COUNTED if counts[name]]
    facts += [f"{duration(left)} left"] if left is not None else []
    measured = [state for state in states if state.best is not None and math.isfinite(state.best)]
    known = [state for state in measured if state.status != "failed"]
    if known:
        best = (min if mode == "min" else max)(known, key=lambda state: state.best or 0.0)
        facts.append(f"best {best.metric} {best_of(best)} ({job_labels(states)[best.job.name]})")
    return ", ".join(facts)


def job_labels(states: Sequence[JobState]) -> dict[str, str]:
    """Return what tables call each job: its name, and what the names of jobs that were added later tell besides.

    A sweep that has grown by a key, such as `optim.lr`, has names that lack it: `seed=0  (optim.lr=0.1)`.
    """
    fixed = set.intersection(*(set(state.job.overrides) for state in states)) if states else set[str]()
    named = {part.partition("=")[0] for state in states for part in state.job.name.split(",") if "=" in part}
    labels = dict[str, str]()
    for state in states:
        own = {part.partition("=")[0] for part in state.job.name.split(",")}
        missing = [text for text in state.job.overrides if text not in fixed and text.partition("=")[0] in named - own]
        labels[state.job.name] = f"{state.job.name}  ({', '.join(missing)})" if missing else state.job.name
    return labels


def titles_of(states: Sequence[JobState]) -> list[str]:
    """Return the heads of the table: `TITLES`, but for jobs that show the mean of their replicates."""
    shown = "mean ± 95 %" if any(state.replicates for state in states) else "best"
    return [shown if title == "best" else title for title in TITLES]


def row_of(state: JobState, labels: Mapping[str, str]) -> list[str]:
    """Return a job as cells under `TITLES`.

    Args:
        state: The job.
        labels: Of `job_labels`.
    """
    left = duration(state.eta_seconds) if state.eta_seconds is not None else ""
    counts = [number(state.epoch), number(state.step)]
    return [labels[state.job.name], state.status, *counts, best_of(state), left, state.place or state.reason]


def report(folder: Path, states: Sequence[JobState]) -> None:
    """Print the table of results, and keep it in the folder of the sweep."""
    fixed = set.intersection(*(set(state.job.overrides) for state in states))
    rows, labels = [_result(state, fixed) for state in states], job_labels(states)
    cells = [[labels[row["job"]], row["status"], row["metric"], best_of(state)] for row, state in zip(rows, states)]
    titles = ["job", "status", "metric", titles_of(states)[4]]
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        for name in (run_files.SWEEP_TABLE, run_files.SWEEP_RESULTS):
            (folder / name).unlink(missing_ok=True)  # a link of that name is not written through
        reasons = [f"{state.job.name}: {state.reason}" for state in states if state.reason]
        text = "\n".join([table(titles, cells, right=[3]), *([""] if reasons else []), *reasons])
        (folder / run_files.SWEEP_TABLE).write_text(text + "\n", encoding="utf-8")
        with (folder / run_files.SWEEP_RESULTS).open("w", newline="", encoding="utf-8") as file:
            CsvWriter(file).rows([names, *([row.get(name, "") for name in names] for row in rows)])
    except OSError as error:
        complain(f"cannot write the table: {error.strerror}")
    say("\n" + table(titles, cells, right=[3], cut=[0]))
    say(f"\nwritten to {folder}, this table to {run_files.SWEEP_TABLE} and {run_files.SWEEP_RESULTS}")


def tell_stopped(folder: Path, states: Iterable[JobState]) -> None:
    """Say which jobs somebody has stopped, which no repeat of the sweep starts again unless it is told to."""
    names = [state.job.name for state in states if state.status == "stopped"]
    if names:
        complain(f"stopped by `lightkit stop`, and not started again: {', '.join(names)}")
        say(f"to go on with {'them' if len(names) > 1 else 'it'}, too:  lightkit sweep resume {folder} --stopped")


def _result(state: JobState, fixed: set[str]) -> dict[str, Any]:
    """Return a job as a row of the table of results, with a column for everything that was swept."""
    swept = dict(text.partition("=")[::2] for text in state.job.overrides if text not in fixed)
    said = {"finished": "done", "failed": f"failed ({state.code})", "waiting": "not started"}
    status = said.get(state.status, state.status)
    epochs = state.epoch if state.status not in ("waiting", "starting") else None
    known = {"status": status, "metric": state.metric, "best": state.best, "epochs": epochs}
    known |= {"half_width": state.half, "replicates": state.replicates} if state.replicates else {}
    return {"job": state.job.name, **swept, **known, "exit_status": state.code, "reason": state.reason}
