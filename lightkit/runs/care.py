"""What becomes of runs afterwards: tags and notes, a bin for those that are no longer wanted, and what they take."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.names import name_problem
from lightkit.loggers.files import write_json
from lightkit.runs.catalog import all_runs, is_whole, path_from, status
from lightkit.runs.folder import writing
from lightkit.runs.index import RunIndex
from lightkit.runs.lock import lock_holder
from lightkit.runs.reading import read_ensemble_plan, read_labels, run_folders

_MOST_NOTE = 2000
_DONE = ("finished", "pruned", "failed")


def tag(folders: Iterable[Path], name: str, *, remove: bool = False) -> int:
    """Give runs a tag, or take it from them; returns how many had not had it, or had it.

    Raises:
        UserError: It is no name, or a folder cannot be written.
    """
    problem = name_problem(name) or (
        "a tag has no comma, no space and no sign of a condition" if {*", =<>~!"} & {*name} else None
    )
    if problem:
        raise UserError("not a tag", key="lightkit runs tag", received=name, expected=problem)
    changed = 0
    for folder in folders:
        known = read_labels(folder)
        tags = list(known.get("tags") or ())
        if (name in tags) == remove:
            _label(folder, {**known, "tags": [one for one in tags if one != name] + ([] if remove else [name])})
            changed += 1
    return changed


def note(folder: Path, text: str) -> None:
    """Write down something about a run; an empty text deletes the note.

    Raises:
        UserError: It is too long, holds what no terminal should show, or the folder cannot be written.
    """
    if len(text) > _MOST_NOTE or not text.replace("\n", "").isprintable():
        expected = f"at most {_MOST_NOTE:,} characters that can be printed"
        raise UserError("not a note", key="lightkit runs note", received=text[:40], expected=expected)
    _label(folder, {**read_labels(folder), "note": text})


def _label(folder: Path, labels: dict[str, Any]) -> None:
    with writing(folder):
        write_json(folder / run_files.LABELS, labels)


def removable(folders: Sequence[Path], root: Path, *, checkpoints: bool = False) -> list[Path]:
    """Return what has to go with runs: the folder of each, or of the sweep whose jobs are all among them.

    Args:
        folders: Theirs.
        root: The project.
        checkpoints: Only checkpoints go, with those of members; also of jobs of a sweep that are done.

    Raises:
        UserError: One runs, is a part of something larger that stays, lies elsewhere, or others build on it.
    """
    home, errors = (root / run_files.OUTPUTS).resolve(), list[str]()
    going = [folder.resolve() for folder in folders] if checkpoints else whole_folders(folders)
    for folder in going:
        inside = working_in(folder)
        is_done = checkpoints and status(folder) in _DONE
        around = [one for one in folder.parents if home in one.parents and is_whole(one)]
        if home not in folder.parents:
            errors.append(f"{folder}: lies outside of {home}")
        elif inside is not None:
            errors.append(f"{path_from(root, inside)}: it runs")
        elif around and not (is_done and (around[0] / run_files.SWEEP_JOURNAL).is_file()):
            errors.append(f"{path_from(root, folder)}: a part of {path_from(root, around[0])}, which needs it")
    errors += [f"{path_from(root, one)}: {path_from(root, user)} builds on it" for one, user in users_of(going, root)]
    if errors:
        fix = "stop them, or name those that build on them as well"
        raise UserError("cannot be removed: " + "; ".join(errors), key="lightkit runs rm", fix=fix, family="file")
    return [place for folder in going for place in checkpoint_folders(folder)] if checkpoints else going


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders of checkpoints of a run and of its members, and what is left of such that were deleted."""
    members = sorted((folder / run_files.MEMBERS).glob(f"*/{run_files.CHECKPOINTS}"))
    own = (folder / run_files.BIN, folder / run_files.CHECKPOINTS)
    return [one for one in (*own, *members) if one.is_dir() and not one.is_symlink()]


def drop_checkpoints(folder: Path) -> int:
    """Delete the checkpoints of a run and of its members; returns the bytes that are free again."""
    aside, before = folder / run_files.BIN, size_of(folder)
    with suppress(OSError):
        for one in checkpoint_folders(folder):
            one.rename(aside)  # at once: a kill leaves all of them or none
            shutil.rmtree(aside)
    return before - size_of(folder)


def working_in(folder: Path) -> Path | None:
    """Return the folder of a run, a sweep or one of its jobs that a process works in; None where none does."""
    names = (run_files.LOCK, run_files.JOB_LOCK)
    return next((one for one in (folder, *run_folders(folder)) if any(lock_holder(one, name) for name in names)), None)


def whole_folders(chosen: Sequence[Path]) -> list[Path]:
    """Return the folders of runs; of a sweep all of whose jobs are among them, that of the sweep."""
    wanted = {one.resolve() for one in chosen}

    def whole(folder: Path) -> Path:
        sweep = next((one for one in folder.parents if (one / run_files.SWEEP_JOURNAL).is_file()), None)
        return sweep if sweep is not None and {*run_folders(sweep)} <= wanted else folder

    return [*dict.fromkeys(whole(folder.resolve()) for folder in chosen)]


def users_of(going: Sequence[Path], root: Path) -> list[tuple[Path, Path]]:
    """Return the runs that build on those that are to go (as base, teacher, member), with what they build on."""
    stays = [one for one in all_runs(root) if not any(one.is_relative_to(folder) for folder in going)]
    found = list[tuple[Path, Path]]()
    for record in RunIndex(root).records(stays):
        texts = [value for value in record.keys.values() if isinstance(value, str) and os.sep in value]
        texts += _sources(record.folder)
        places = [(root / text).resolve() for text in texts if len(text) < 1000]
        found += [(one, record.folder) for one in going if any(place.is_relative_to(one) for place in places)]
    return found


def _sources(folder: Path) -> list[str]:
    """Return the texts in the file of an ensemble, which name the runs that it was made of."""
    waiting, found = list[Any]([read_ensemble_plan(folder)]), list[str]()
    while waiting:
        one = waiting.pop()
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
        found += [one] if isinstance(one, str) and os.sep in one else []
    return found


def put_aside(folders: Sequence[Path], root: Path) -> Path:
    """Move folders to the bin of the project; returns the folder there, in which each has the path that it had.

    Raises:
        UserError: One cannot be moved; those before it have been.
    """
    home = root / run_files.OUTPUTS
    moment = home / run_files.BIN / time.strftime("%Y-%m-%d_%H-%M-%S")
    numbered = (moment.with_name(f"{moment.name}-{number}") for number in count(2))
    place = next(one for one in chain([moment], numbered) if not one.exists())  # checkpoints may be there already
    for folder in folders:
        target = place / folder.relative_to(home.resolve())
        with writing(folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)  # at once: a kill leaves it here or there
    return place


def empty_bin(root: Path) -> int:
    """Delete what is in the bin, what a killed import has left, and code that no run has any more.

    Returns:
        The bytes that are free again.
    """
    home = root / run_files.OUTPUTS
    own = [home / name for name in (run_files.BIN, run_files.UNPACKED, run_files.CODE_STORE)]
    before = sum(map(size_of, own))
    for place in own[:2]:
        shutil.rmtree(place, ignore_errors=True)
    for file in own[2].glob("*"):
        if file.stat().st_nlink == 1:
            file.unlink()
    return before - sum(map(size_of, own))


def size_of(folder: Path, seen: set[tuple[int, int]] | None = None) -> int:
    """Return the bytes of all files below a folder; a file with several names counts once.

    Args:
        folder: The folder.
        seen: Files that count no more; gets those that did.
    """
    seen, size = set() if seen is None else seen, 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                facts = os.lstat(f"{place}/{name}")
            except OSError:
                continue
            mark = (facts.st_dev, facts.st_ino)
            size += 0 if mark in seen else facts.st_size
            seen.add(mark)
    return size
