"""What the queue of Slurm holds of a sweep, whoever asks."""

from __future__ import annotations

import getpass
import logging
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

from lightkit.common import run_files
from lightkit.common.errors import of_signal
from lightkit.common.reading import parse_object, read_file
from lightkit.common.text import slug
from lightkit.config.schema.sweeping import SlurmConfig
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


_SAVED = of_signal(10)
"""Exit status of a job that SIGUSR1 has told to save."""


@dataclass
class SlurmOptions(SlurmConfig):
    """What the queue is told of each job: `sweep.slurm`, and what follows from the sweep."""

    gpus: int = 0
    """GPUs of a job."""
    slots: Optional[int] = None
    """Jobs at once; None for as many as the cluster lets run."""
    ahead: bool = False
    """Whether jobs are submitted before there is a slot for them, which the queue then keeps to."""


def array_script(options: SlurmOptions, stem: Path, count: int, *, name: str, after: Sequence[str] = ()) -> str:
    """Write the script of an array, each task of which runs a line of the file beside it.

    Args:
        options: What the queue is told.
        stem: Path of the script without its suffix.
        count: Jobs.
        name: Name of the jobs in the queue.
        after: Ids of arrays that are to end before it begins.
    """
    width = f"%{options.slots}" if options.slots else ""
    asked = {
        "job-name": slug(name),
        "array": f"0-{count - 1}{width}",
        "dependency": ":".join(["afterany", *after]) if after else None,
        "time": options.time,
        "signal": f"USR1@{options.save_before}",
        "cpus-per-task": options.cpus,
        "gpus-per-node": options.gpus or None,
        "mem": options.memory,
        "partition": options.partition,
        "account": options.account,
        "open-mode": "append",
        "output": f"{stem}-%a.txt",
    }
    asked |= {key: shlex.quote(value) for key, value in asked.items() if isinstance(value, str)}
    head = [f"#SBATCH --{key}={value}" for key, value in asked.items() if value is not None]
    head += ["#SBATCH --requeue", *(f"#SBATCH {option}" for option in options.options)]
    return "\n".join(
        [
            "#!/bin/bash",
            *head,
            f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
            *options.setup,
            f'row=$(sed -n "$((SLURM_ARRAY_TASK_ID+1))p" {shlex.quote(str(stem.with_suffix(".jobs")))})',
            "eval \"end=${row%%$'\\t'*}\"",
            'rm -f "$end"',
            "eval \"srun ${row#*$'\\t'}\"",
            "code=$?",
            f"# {_SAVED}: saved before the time limit",
            f"if [[ $code == {_SAVED} && ${{SLURM_RESTART_COUNT:-0}} -lt {options.requeues} ]]; then",
            '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" && exit $code',
            "fi",
            'mkdir -p "${end%/*}"; echo $code >"$end.new"; mv "$end.new" "$end"',
            "exit $code",
            "",
        ]
    )
