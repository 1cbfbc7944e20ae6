"""What the queue of Slurm holds of a sweep, whoever asks."""

from __future__ import annotations

import getpass
import logging
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lightkit.common import run_files
from lightkit.common.reading import parse_object, read_file
from lightkit.processes.children import run
from lightkit.sweep.journal import Record

_LOG = logging.getLogger(__name__)
_FRESH_SECONDS = 5.0
"""How long an answer of the queue counts for those who only look: it serves a whole cluster."""
QUEUED = "queued"
"""Where a job is that waits in the queue."""
_ASKED = dict[str, "tuple[float, Mapping[str, Queued]]"]()


class Queued(NamedTuple):
    """A job in the queue: Slurm's word for its state, its node once it has one, and the script that it runs."""

    state: str
    node: str
    script: str = ""

    @property
    def place(self) -> str:
        """The node it runs on, or the word for a job that waits; empty where the queue names no node."""
        return self.node or (QUEUED if self.state == "PENDING" else "")


def ask_queue() -> tuple[dict[str, Queued], str]:
    """Return the user's jobs in the queue by id, and what went wrong where it does not answer."""
    command = ["squeue", "--array", "--noheader", "--format=%i|%T|%N|%o", f"--user={getpass.getuser()}"]
    try:
        done = run(command)
    except OSError as error:
        return {}, str(error)
    if done.returncode:
        return {}, done.stderr.strip() or f"exit status {done.returncode}"
    rows = [[part.strip() for part in line.split("|", 3)] for line in done.stdout.splitlines()]
    return {row[0]: Queued(*row[1:]) for row in rows if len(row) > 3}, ""


def is_of(folder: Path, job: Queued) -> bool:
    """Tell whether a job in the queue runs a script of a sweep: an id in a file there may be that of any other job.

    Args:
        folder: Folder of the sweep.
        job: The job, as the queue has it.
    """
    return Path(job.script).parent == folder.resolve() / run_files.SWEEP_QUEUE


def ids_of(folder: Path) -> dict[str, str]:
    """Return the ids under which the jobs of a sweep were submitted last, by name.

    Args:
        folder: Folder of the sweep.
    """
    ids: dict[str, str] = {}
    for path in sorted((folder / run_files.SWEEP_QUEUE).glob("*.json")):
        try:
            noted = parse_object(read_file(path))
            if re.fullmatch(r"[0-9]+", str(noted["id"])):  # scancel takes other words for options
                ids |= {str(name): f"{noted['id']}_{index}" for index, name in enumerate(noted["names"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("%s cannot be read, so jobs that it names are submitted again: %r", path, error)
    return ids


def in_queue(record: Record, name: str) -> Queued | None:
    """Find a job of a sweep in the queue; None where it is in none, and of a sweep from elsewhere.

    Args:
        record: The journal of the sweep.
        name: The job.
    """
    if not (record.folder / run_files.SWEEP_QUEUE).is_dir():
        return None
    key = str(record.folder)
    asked, found = _ASKED.get(key, (0.0, {}))
    if not asked or time.monotonic() - asked > _FRESH_SECONDS:
        found = {}
        if shutil.which("squeue") is not None and record.is_ours("options"):
            listed, _ = ask_queue()
            own = {number: one for number, one in listed.items() if is_of(record.folder, one)}
            found = {job: own[number] for job, number in ids_of(record.folder).items() if number in own}
        _ASKED[key] = (time.monotonic(), found)
    return found.get(name)
