"""`lightkit doctor FOLDER`: what is damaged, foreign or forged in the folders of runs, and mending what can be."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import UnreadableError, read_row
from lightkit.config.provenance import origin_of
from lightkit.doctor.finding import Finding, Status
from lightkit.loggers.files import write_json
from lightkit.processes.files import belongs_to_us, write_whole
from lightkit.runs.folder import refuse_links
from lightkit.runs.index import all_records, index_damage, read_record
from lightkit.runs.lock import lock_holder, locked
from lightkit.runs.reading import (
    TORN,
    checked_lines,
    read_config,
    read_ensemble_plan,
    read_facts,
    read_json,
    read_result,
    run_folders,
)
from lightkit.sweep.journal import read_event, read_journal

MARKS = (run_files.CONFIG, run_files.SWEEP_JOURNAL)
"""Each of them makes a folder that of a run, or of a sweep."""
_LINES: dict[str, Callable[[bytes], object]] = {run_files.METRICS: read_row, run_files.SWEEP_JOURNAL: read_event}
"""Files that grow line by line, and what reads a line."""
_READ: dict[str, Callable[[Path], object]] = {
    run_files.RESULT: read_result,
    run_files.ENVIRONMENT: read_facts,
    run_files.ENSEMBLE: read_ensemble_plan,
    run_files.FINETUNE: lambda folder: read_json(folder / run_files.FINETUNE),
}
"""Files of JSON, and what reads of them what can be read."""
_LEFT = (run_files.PROGRESS, run_files.SWEEP_STOP)
"""Files that say something of a process, and nothing once it is gone."""
_ADVICE = {
    run_files.CONFIG: "lightkit resume takes it from the newest checkpoint, where there is one",
    run_files.MANIFEST: "lightkit resume goes by the files themselves",
}


def look_through(place: Path, root: Path, *, mend: bool = False) -> Iterator[Finding]:
    """Yield what is wrong with the runs and sweeps in a folder.

    Args:
        place: The folder; it may be that of a run or of a sweep.
        root: The project, whose index of all runs is looked at where it is in the folder.
        mend: Mend what can be mended. A copy is kept of all that is changed.
    """
    folders = sorted(run_folders(place, MARKS))
    folders += [member for folder in folders for member in sorted(run_folders(folder / run_files.MEMBERS))]
    whole = 0
    for folder in folders:
        findings = list(chain(_damaged(folder, mend=mend), _foreign(folder)))
        yield from findings
        whole += not findings
    yield from _index(place, root, mend=mend)
    yield Finding("folders", "ok", f"{whole} of {len(folders)} runs and sweeps are whole and signed by you")


def damages(folder: Path) -> list[tuple[str, str]]:
    """List the damaged files of a run or a sweep, each with what is wrong.

    Args:
        folder: Its folder.
    """
    damage = list(read_record(folder).damage) if (folder / run_files.CONFIG).exists() else []
    read_ensemble_plan(folder, damage)
    read_json(folder / run_files.FINETUNE, {}, damage)
    read_json(folder / run_files.CHECKPOINTS / run_files.MANIFEST, {}, damage)
    damaged = [(name, what) for name, _, what in (line.partition(": ") for line in damage)]
    for name, read in _LINES.items():
        bad = _bad_lines(folder / name, read)
        damaged += [(name, bad[0] + (f", and {len(bad) - 1} more" if len(bad) > 1 else ""))] if bad else []
    return damaged


def damage_findings(folder: Path) -> Iterator[Finding]:
    """Yield a finding for each damaged file of a run.

    Args:
        folder: Its folder.
    """
    for name, what in damages(folder):
        is_torn = what.endswith(TORN)
        if is_torn and lock_holder(folder):  # it is being written
            continue
        fix = _ADVICE.get(name, f"lightkit doctor {folder} --mend")
        status: Status = "note" if is_torn else "error"
        yield Finding("damaged", status, f"{folder / name}: {what}", "what it said counts for nothing", fix=fix)


def _damaged(folder: Path, *, mend: bool) -> Iterator[Finding]:
    findings, holder = list(damage_findings(folder)), lock_holder(folder)
    left = [] if holder else [folder / name for name in _LEFT if (folder / name).is_file()]
    if mend and holder and findings:
        yield Finding("damaged", "skipped", f"{folder} is left as it is: {holder} works in it")
    elif mend and (findings or left):
        with locked(folder):
            for name, what in damages(folder):
                yield _mended(folder, name, what)
            for path in left:
                path.unlink(missing_ok=True)
                yield Finding("left over", "note", f"{path} is deleted: it said something of a process that is gone")
        return
    yield from findings
    for path in left:
        measured = f"{path} says something of a process that is gone"
        yield Finding("left over", "note", measured)


def _mended(folder: Path, name: str, what: str) -> Finding:
    """Mend a file, and say how; what is whole in it stays, and a copy keeps the rest."""
    path = folder / name
    if name in _ADVICE or not (name in _LINES or name in _READ or name == run_files.OVERRIDES):
        return Finding("damaged", "error", f"{path}: {what}", "nothing can mend it here", fix=_ADVICE.get(name, ""))
    copies = (path.with_name(f"{path.name}.damaged{number}") for number in count(1))
    copy = next(each for each in copies if not each.exists() and not each.is_symlink())
    try:
        how = _mend(path, copy)
    except OSError as error:
        return Finding("damaged", "error", f"{path}: {what}", f"it cannot be mended: {error.strerror}")
    return Finding("mended", "note", f"{path}: {what}", f"{how}; as it was, it is kept as {copy.name}")


def _mend(path: Path, copy: Path) -> str:
    read = _LINES.get(path.name)
    if read is not None and path.is_file():
        shutil.copyfile(path, copy)
        lines = checked_lines(path, read)
        kept = [line for line, what in lines if not what]
        write_whole(path, b"".join(kept), forced=True)
        return f"{len(lines) - len(kept)} of {len(lines)} lines are cut out"
    whole = _READ[path.name](path.parent) if path.name in _READ else {}
    if not whole:
        path.rename(copy)
        return "it is put aside"
    shutil.copyfile(path, copy)
    write_json(path, whole)
    return "what could be read of it stays"


def _bad_lines(path: Path, read: Callable[[bytes], object]) -> Sequence[str]:
    try:
        lines = checked_lines(path, read)
    except UnreadableError as error:
        return [str(error)]
    return [f"line {number}: {what}" for number, (_, what) in enumerate(lines, 1) if what]


def _foreign(folder: Path) -> Iterator[Finding]:
    """Tell of what another user can have written, or was changed since it was signed."""
    if not belongs_to_us(folder.stat()):
        why, fix = "its owner may change what it is at any time", f"cp -r {folder} COPY makes one of yours"
        yield Finding("foreign", "warning", f"{folder} belongs to another user", why, fix=fix)
        return
    try:
        refuse_links(folder)
    except UserError as error:
        yield Finding("forged", "warning", f"{error.key}: {error.what}", "a resume is refused", fix=error.fix or "")
    text = read_config(folder)
    where = origin_of(folder, text) if text else "ours"
    if where == "changed":
        measured = f"{folder / run_files.CONFIG} is not what was signed"
        why = "somebody changed it since, or your key is another now; modules of the project are not built for it"
        yield Finding("forged", "warning", measured, why, fix="read it; trust=[...] where it is yours")
    elif where != "ours":
        why = "it came from elsewhere; modules of the project are built for it only where trust=[...] names them"
        yield Finding("foreign", "note", f"{folder} is not signed by you", why)
    yield from _foreign_jobs(folder)


def _foreign_jobs(folder: Path) -> Iterator[Finding]:
    if not (folder / run_files.SWEEP_JOURNAL).exists():
        return
    try:
        record = read_journal(folder)
    except UserError:  # a finding of damage says so
        return
    for error in record.refused:
        yield Finding("forged", "warning", f"{folder}: {error.what}: {error.received}", "this job is left out")
    jobs = [name for name in record.jobs if not record.has_planned(name)]
    if jobs:
        measured = f"{folder}: {len(jobs)} of {len(record.jobs)} planned jobs are not signed by you, such as {jobs[0]}"
        yield Finding("foreign", "note", measured, "the sweep came from elsewhere, or its journal was changed")


def _index(place: Path, root: Path, *, mend: bool) -> Iterator[Finding]:
    path = root / run_files.OUTPUTS / run_files.INDEX
    what = index_damage(path) if place.resolve() == path.parent.resolve() else ""
    if not what:
        return
    if not mend:
        fix = f"lightkit doctor {place} --mend, or delete it: it is made again"
        yield Finding("damaged", "warning", f"{path}: {what}", "all runs are read anew each time", fix=fix)
        return
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    all_records(root)
    yield Finding("mended", "note", f"{path}: {what}", "it was made again from the runs, and held nothing else")
