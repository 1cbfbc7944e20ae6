"""The journal of a sweep: its jobs with their configurations, and what became of them, a line for each event.

Lines are only ever appended. Nothing in it says that a job runs: that is seen by the lock of its folder. See
`lightkit.sweep.state`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import (
    FLAG,
    JOB_STATUS,
    NAMED_TEXTS,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    WHOLE,
    Shape,
    UnreadableError,
    fitting,
    opened,
    parse_object,
)
from lightkit.config.provenance import RunSignature, is_ours, read_signature, signer
from lightkit.processes.files import without_links
from lightkit.sweep.job import Job, JobOutcome, JobPlaces

FORMAT = 1
_NOT_SIGNED = ("event", "format", "time", "mark")
"""Keys of a line that says what the sweep is, which its signature leaves out."""


@dataclass
class Record:
    """What a journal says so far.

    Attributes:
        folder: Folder of the sweep.
        head: Its first line: `command`, `options`, and what else belongs to the whole sweep.
        jobs: Those that are planned, by name, in their order.
        known: Those that were ever planned, as last planned; the folders of removed ones are still there.
        started: Second at which each was started last, by name.
        ended: How the last part of each ended, by name; no more once it has started again.
        told: Outcomes that the search was told, in their order.
        replanned: Names of jobs that have another configuration since they have ended.
        given_up: Names of jobs that never go on from where they have paused: their checkpoints are gone.
        refused: What is wrong with jobs that are not among these, as their names cannot be.
        damage: What is wrong with lines that cannot be read, which count for nothing.
    """

    folder: Path
    head: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    known: dict[str, Job] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, JobOutcome] = field(default_factory=dict)
    told: list[JobOutcome] = field(default_factory=list)
    replanned: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    refused: list[UserError] = field(default_factory=list)
    _marks: dict[str, list[RunSignature]] = field(default_factory=dict, repr=False)
    _heads: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    _folders: JobPlaces | None = field(default=None, repr=False)
    damage: list[str] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        """Add an event; one of a newer version that is not known is passed over."""
        kind, name = event["event"], event.get("name", "")
        if kind == "sweep":
            self.head |= event
            self._heads |= dict.fromkeys(event, event)
        elif kind == "planned":
            self._plan(name, event)
        elif kind == "removed":
            self.jobs.pop(name, None)
        elif kind == "given_up":
            self.given_up.add(name)
        elif kind == "started":
            self.given_up.discard(name)
            self.started[name] = event["time"]
            self.ended.pop(name, None)
        elif kind == "ended":
            facts: dict[str, Any] = {
                key: event.get(key) for key in ("status", "values", "epoch", "step", "code", "reason")
            }
            self.ended[name] = JobOutcome(name, **facts)
            self.replanned.discard(name)
            if event.get("told"):
                self.told.append(self.ended[name])

    def is_ours(self, part: str) -> bool:
        """Tell whether this project wrote a part of the head, such as `options`.

        Args:
            part: Its key.
        """
        line = self._heads.get(part, {})
        return is_ours(self.folder, _signed_head(line), read_signature(line.get("mark")))

    def has_planned(self, name: str) -> bool:
        """Tell whether this project planned a job as it is stored: else its configuration came from elsewhere.

        Args:
            name: The job.
        """
        return name in self.known and is_ours(self.known[name].folder, _signed(self.known[name]), self._marks[name])

    def place(self, name: object) -> Path:
        """Return the folder of a job; see `JobPlaces.place`."""
        self._folders = self._folders or JobPlaces(self.folder)
        return self._folders.place(name)

    def _plan(self, name: str, event: Mapping[str, Any]) -> None:
        try:
            folder = self.place(name)
        except UserError as error:
            self.refused.append(error)
            return
        job = Job(name, folder, tuple(event["overrides"]), event["config"], event.get("environment") or {})
        if name in self.known and self.known[name].config != job.config:
            self.replanned.add(name)
            self.told = [outcome for outcome in self.told if outcome.name != name]
        self.jobs[name] = self.known[name] = job
        self._marks[name] = read_signature(event.get("mark"))


class Journal:
    """Appends events. Each is on the disk before the call returns.

    Args:
        folder: Folder of the sweep, whose lock the caller holds.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / run_files.SWEEP_JOURNAL
        self._file = FileIO(self.path, "a+", opener=without_links)
        size = self._file.seek(0, os.SEEK_END)
        if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
            self._file.write(b"\n")  # after a line that a crash has torn

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def head(self, **facts: Any) -> None:
        """Say what the sweep is, signed; a later one replaces what it names."""
        made = signer()(_signed_head(facts))
        mark = {"mark": made._asdict()} if made else {}
        self._append([{"event": "sweep", "format": FORMAT, "time": _now(), **facts, **mark}])

    def plan(self, jobs: Sequence[Job]) -> None:
        """Store jobs with their configurations, signed as those that are written into the folders of runs."""
        self._append([_planned(job) for job in jobs])

    def remove(self, names: Sequence[str]) -> None:
        """Take jobs out of the plan; their folders stay."""
        self._append([{"event": "removed", "name": name, "time": _now()} for name in names])

    def give_up(self, names: Sequence[str]) -> None:
        """Note that jobs never go on from where they have paused, before their checkpoints are removed."""
        self._append([{"event": "given_up", "name": name, "time": _now()} for name in names])

    def started(self, name: str, stop_at: str | None, *, again: str = "") -> None:
        """Note that a job is started; `again` says why it is once more."""
        facts = {"stop_at": stop_at} | ({"again": again} if again else {})
        self._append([{"event": "started", "name": name, "time": _now(), **facts}])

    def ended(self, outcome: JobOutcome, *, told: bool) -> None:
        """Note how a part of a job ended, and whether the search is told."""
        self._append([{"event": "ended", **asdict(outcome), "time": _now(), "told": told}])

    def _append(self, events: Sequence[Mapping[str, Any]]) -> None:
        if events:
            data = "".join(f"{json.dumps(event)}\n" for event in events).encode()
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())


def read_journal(folder: Path) -> Record:
    """Read the journal of a sweep; a last line that is not finished counts for nothing.

    Raises:
        UserError: There is none, its first line cannot be read, or it is of a later format.
    """
    record = Record(folder)
    for event in read_events(folder, record.damage):
        record.take(event)
    if record.head.get("format") == FORMAT:
        return record
    what, fix = "no sweep here", "`lightkit train -m` makes one, in outputs/sweeps/"
    if record.head:
        what = "this sweep was written by a later version of lightkit"
    elif (folder / run_files.SWEEP_JOURNAL).exists():
        why = record.damage[0].partition(": ")[2] if record.damage else "its journal has no whole line"
        what = f"this sweep is damaged: {why}"
        fix = f"a copy of the file, where there is one; `lightkit doctor {folder}` says what else is wrong"
    raise UserError(what, key=str(folder / run_files.SWEEP_JOURNAL), fix=fix, family="no-such-run")


def read_head(folder: Path) -> dict[str, Any]:
    """Return the first line of a sweep's journal; empty where it cannot be read."""
    return next((event for event in read_events(folder, []) if event["event"] == "sweep"), {})


def find_job(folder: Path) -> tuple[Job, bool]:
    """Find what a sweep has planned for a folder below its own.

    Args:
        folder: Folder of the job.

    Returns:
        The job, and whether this project has planned it: else its configuration came from elsewhere.

    Raises:
        UserError: No sweep around the folder has planned it, or its name cannot be that of a job.
    """
    for home in folder.parents:
        path, name = home / run_files.SWEEP_JOURNAL, folder.relative_to(home).as_posix()
        if not path.is_file():
            continue
        beginning = json.dumps({"event": "planned", "name": name})[:-1].encode()
        # Reading all configurations of a large sweep would take its time.
        found = [event for event in read_events(home, [], beginning) if event["event"] == "planned"]
        if found:
            event, record = found[-1], Record(home)
            record.take(event)
            if record.refused:
                raise record.refused[0]
            return record.jobs[name], record.has_planned(name)
    raise UserError(
        "no sweep has planned a job here", key=str(folder), fix="lightkit sweep status", family="no-such-run"
    )


def _planned(job: Job) -> dict[str, Any]:
    made = signer()(_signed(job))
    digest = hashlib.sha256(job.config.encode()).hexdigest()
    facts = {"overrides": list(job.overrides), "config": job.config, "sha256": digest, "time": _now()}
    facts |= {"environment": dict(job.environment)} if job.environment else {}
    return {"event": "planned", "name": job.name, **facts, "mark": made._asdict() if made else None}


def _signed(job: Job) -> str:
    """Return what is signed of a job: all that runs as code of the user's."""
    return job.config + (json.dumps(dict(job.environment), sort_keys=True) if job.environment else "")


def _signed_head(line: Mapping[str, Any]) -> str:
    """Return what is signed of a line that says what the sweep is: all but its time."""
    facts = {name: value for name, value in line.items() if name not in _NOT_SIGNED and value is not None}
    return json.dumps(facts, sort_keys=True, default=str)


def _now() -> float:
    return round(time.time(), 3)


_LONGEST_LINE = 1 << 24
"""Bytes of a line; it holds a configuration at most."""
_EVENT: Shape = {
    **dict.fromkeys(("event", "name", "config", "stop_at", "reason"), TEXT),
    **dict.fromkeys(("format", "epoch", "step", "code"), WHOLE),
    **dict.fromkeys(("options", "mark"), OBJECT),
    **dict.fromkeys(("complete", "told"), FLAG),
    "time": NUMBER,
    "overrides": TEXTS,
    "environment": NAMED_TEXTS,
    "status": JOB_STATUS,
    "values": {"*": NUMBER},
}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "sweep": (),
    "planned": ("name", "overrides", "config"),
    "removed": ("name",),
    "given_up": ("name",),
    "started": ("name", "time"),
    "ended": ("name", "status", "values", "epoch", "step", "reason"),
}
"""What the lines of a kind do not go without."""


def read_events(folder: Path, damage: list[str], beginning: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield what the whole lines say; a last one that is torn is no damage.

    Args:
        folder: Folder of the sweep.
        damage: Gets what is wrong with each line that cannot be read.
        beginning: How the lines begin that are wanted.
    """
    try:
        with opened(folder / run_files.SWEEP_JOURNAL) as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
                if not line.strip() or not line.endswith(b"\n") or not line.startswith(beginning):
                    continue
                try:
                    yield read_event(line)
                except UnreadableError as error:
                    damage.append(f"{run_files.SWEEP_JOURNAL}: line {number}: {error}")
    except FileNotFoundError:
        pass
    except UnreadableError as error:
        damage.append(f"{run_files.SWEEP_JOURNAL}: {error}")


def read_event(line: bytes) -> dict[str, Any]:
    """Read a line of a journal.

    Args:
        line: The line.

    Raises:
        UnreadableError: It is no event; one of a newer version that is not known may hold anything.
    """
    found, wrong = parse_object(line), list[str]()
    kind = found.get("event")
    if not isinstance(kind, str):
        raise UnreadableError("`event` is missing" if kind is None else "`event` is not a text")
    if kind not in _NEEDED:
        return found
    event = fitting(found, _EVENT, wrong)
    needed = _NEEDED[kind] if kind != "sweep" else [name for name in _EVENT if name in found]  # these are never null
    wrong += [f"`{name}` is missing" for name in needed if found.get(name) is None]
    if wrong:
        raise UnreadableError(", ".join(wrong))
    return event
