"""The list of checkpoints in a folder: what a file holds, how to tell that it is whole, which to keep."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit.checkpoint.files import Draft, draft
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import UnreadableError, parse_object, read_file

UNFINISHED = f"{run_files.MANIFEST}.unfinished"
"""A manifest that has not got its name yet."""
VERSION = 1
_FILE = re.compile(r"step-\d+(-\d+)?\.pt")


@dataclass(frozen=True)
class Entry:
    """One checkpoint file."""

    file: str
    """Name in the folder, such as `step-00000120.pt`."""
    step: int
    """Optimizer steps done."""
    epoch: int | None
    """Epochs done, where known."""
    value: float | None
    """The monitored metric; null where none was measured or it was not a number."""
    sha256: str
    """Checksum of the file in hex; empty where the manifest was lost and rebuilt from the files."""
    bytes: int
    """Size of the file."""


class ManifestError(ValueError):
    """The manifest cannot be read; the message says why."""


def is_checkpoint_name(name: str) -> bool:
    """Tell whether a file of this name can be one of the store's: never a path, never a foreign file."""
    return _FILE.fullmatch(name) is not None


def read(folder: Path, name: str = run_files.MANIFEST) -> list[Entry]:
    """Read the entries of a folder's manifest, oldest first.

    Args:
        folder: The folder of checkpoints.
        name: The file to read.

    Raises:
        FileNotFoundError: There is none.
        ManifestError: It is damaged, or of a later version.
    """
    try:
        content = parse_object(read_file(folder / name))
        version, rows = content["version"], content["entries"]
        if version > VERSION:
            raise ManifestError(f"{name} has version {version}; this lightkit reads up to {VERSION}")
        return [_entry(row) for row in rows]
    except ManifestError:
        raise
    except UnreadableError as error:
        raise ManifestError(f"{name} is damaged ({error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{name} is damaged ({type(error).__name__}: {error})") from error


def _entry(row: dict[str, Any]) -> Entry:
    entry = Entry(**row)
    kinds = (("file", str), ("step", int), ("sha256", str), ("bytes", int))
    if not all(isinstance(getattr(entry, name), kind) for name, kind in kinds):
        raise TypeError(f"entry {row!r}")
    if not is_checkpoint_name(entry.file):
        raise ValueError(f"file name {entry.file!r}")
    return entry


def read_mode(folder: Path) -> str | None:
    """Read which values of a folder are better, `max` or `min`; None where its manifest does not say."""
    try:
        mode = parse_object(read_file(folder / run_files.MANIFEST))["mode"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mode if mode in ("max", "min") else None


def write(folder: Path, entries: Iterable[Entry], *, mode: str | None, leaving: Iterable[Entry] = ()) -> None:
    """Replace the manifest atomically; the arguments are `drafted`'s."""
    drafted(folder, entries, mode=mode, leaving=leaving).publish()


def drafted(folder: Path, entries: Iterable[Entry], *, mode: str | None, leaving: Iterable[Entry] = ()) -> Draft:
    """Write a new manifest that has not replaced the old one yet.

    Args:
        folder: The folder of checkpoints.
        entries: What it holds from now on.
        mode: `max` or `min`: which values are better.
        leaving: Whose files are deleted next: should that be cut off, `lightkit.checkpoint.listing.recover` goes on
            with it.
    """
    marks = {entry.file: mark for entry in leaving if (mark := identity(folder / entry.file))}
    text = _text(entries, mode, marks)
    return draft(folder / run_files.MANIFEST, lambda file: file.write(text.encode()), scratch=UNFINISHED)


def write_new(folder: Path, entries: Iterable[Entry], *, mode: str | None) -> None:
    """Write the manifest of a folder that has none; nothing is forced to the disk."""
    (folder / run_files.MANIFEST).write_text(_text(entries, mode, {}))


def _text(entries: Iterable[Entry], mode: str | None, leaving: dict[str, list[int]]) -> str:
    content = {"version": VERSION, "mode": mode, "leaving": leaving, "entries": [vars(entry) for entry in entries]}
    return json.dumps(content, indent=1) + "\n"


def read_leaving(folder: Path) -> dict[str, list[int]]:
    """Read which files were about to be deleted when the manifest was written, with their `identity`."""
    try:
        leaving = parse_object(read_file(folder / run_files.MANIFEST))["leaving"]
        return {file: mark for file, mark in leaving.items() if is_checkpoint_name(file)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def identity(path: Path) -> list[int] | None:
    """Return what tells a file from another that got its name later, even a copy; None without a file."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    return [facts.st_ino, facts.st_mtime_ns, facts.st_size]


def check_rules(*, keep_last: int, keep_best: int, keep_every: int | None, mode: str) -> None:
    """Refuse rules of keeping that make no sense.

    Raises:
        UserError: One is out of range.
    """
    if keep_last < 1:
        what = "at least the newest is kept"
        raise UserError(what, argument="keep_last", expected="1 or more", received=keep_last)
    if keep_best < 0:
        what = "not a number of files"
        raise UserError(what, argument="keep_best", expected="0 or more", received=keep_best)
    if keep_every is not None and keep_every < 1:
        what = "not a number of steps"
        raise UserError(what, argument="keep_every", expected="1 or more", received=keep_every)
    if mode not in ("min", "max"):
        raise UserError("not a direction", argument="mode", received=mode, choices=("min", "max"))


def ranked(entries: Iterable[Entry], mode: str) -> list[Entry]:
    """Sort the entries that have a value, best first; of equal values the later step, which has learnt longer."""
    sign = -1.0 if mode == "max" else 1.0
    rated = [(entry.value, entry) for entry in entries if entry.value is not None and not math.isnan(entry.value)]
    return [entry for _, entry in sorted(rated, key=lambda pair: (sign * pair[0], -pair[1].step))]


def kept(
    entries: Iterable[Entry], *, keep_last: int, keep_best: int, mode: str, keep_every: int | None = None
) -> list[Entry]:
    """Choose the entries to keep, oldest first: the newest by step, the best by value, and milestones every n steps."""
    ordered = sorted(entries, key=lambda entry: entry.step)
    wanted = [
        *ordered[max(len(ordered) - keep_last, 0) :],
        *ranked(ordered, mode)[:keep_best],
        *milestones(ordered, keep_every),
    ]
    files = {entry.file for entry in wanted}
    return [entry for entry in ordered if entry.file in files]


def milestones(ordered: Iterable[Entry], every: int | None) -> list[Entry]:
    """Choose the first entry at or after each multiple of `every` steps.

    This depends on the list alone: as the first of a span is always kept, it is still the first after a resume.
    """
    first: dict[int, Entry] = {}
    for entry in ordered if every else ():
        first.setdefault(entry.step // every, entry)  # type: ignore[operator]
    first.pop(0, None)
    return list(first.values())
