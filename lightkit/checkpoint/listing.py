"""Changing what a folder of checkpoints lists, and finishing the change where a kill has cut it off.

A save forces two files to the disk, the checkpoint and the manifest that lists it, before either gets its name; the
manifest also tells which files are deleted next. So whatever the moment of a kill, the folder itself says what was
meant to happen, and nothing has to be guessed from names.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import lightkit.checkpoint.manifest as manifest
from lightkit.checkpoint.files import Draft
from lightkit.checkpoint.manifest import Entry, ManifestError
from lightkit.checkpoint.reading import DamagedError, check_bytes, reason
from lightkit.common import run_files
from lightkit.common.errors import UNREADABLE, UserError
from lightkit.processes.files import put_in_place

_LOG = logging.getLogger(__name__)


def publish(made: Draft, kept: list[Entry], *, mode: str, leaving: list[Entry]) -> None:
    """Give a checkpoint its name, replace the manifest, then delete what is no longer on it.

    Args:
        made: The checkpoint.
        kept: What the folder holds from now on, the new entry included.
        mode: `max` or `min`: which values are better.
        leaving: Entries that are on the list no more.

    Raises:
        OSError: The folder cannot be written.
    """
    folder = made.path.parent
    try:
        listed = manifest.drafted(folder, kept, mode=mode, leaving=leaving)
    except BaseException:
        made.discard()
        raise
    try:
        made.publish()
    except BaseException:
        listed.discard()
        raise
    listed.publish()
    for entry in leaving:
        (folder / entry.file).unlink(missing_ok=True)


def recover(folder: Path) -> None:
    """List a checkpoint that has got its name but no entry, and delete those that have lost theirs.

    Only for the one process that may write here. Other files are left alone, whatever they are called: also a copy of
    a deleted checkpoint that somebody has put back.

    Raises:
        OSError: The folder cannot be written.
    """
    unlisted = _unlisted(folder)
    if unlisted:
        put_in_place(folder / manifest.UNFINISHED, folder / run_files.MANIFEST)
        _LOG.info("%s: listed now, as a kill had cut that off: %s", folder, ", ".join(unlisted))
    else:
        (folder / manifest.UNFINISHED).unlink(missing_ok=True)
    for file, mark in manifest.read_leaving(folder).items():
        if manifest.identity(folder / file) == mark:
            (folder / file).unlink()
            _LOG.info("%s: deleted now, as a kill had cut that off: %s", folder, file)


def _unlisted(folder: Path) -> list[str]:
    """List the files that only the unfinished manifest lists, if all of them are there and whole."""
    before: list[Entry] = []
    with contextlib.suppress(OSError, ManifestError):
        before = manifest.read(folder)
    try:
        new = [entry for entry in manifest.read(folder, manifest.UNFINISHED) if entry not in before]
        for entry in new:
            check_bytes(folder / entry.file, entry)
    except (OSError, ManifestError, DamagedError):
        return []
    return [entry.file for entry in new]


def prune(
    folder: Path,
    *,
    keep_last: int = 1,
    keep_best: int = 1,
    keep_every: int | None = None,
    mode: str | None = None,
    dry_run: bool = False,
) -> tuple[list[Entry], list[Entry]]:
    """Delete the checkpoints the manifest lists beyond those to keep, once those are known to be whole.

    No run may be writing into the folder meanwhile.

    Args:
        folder: A folder of checkpoints.
        keep_last: Number of newest ones to keep.
        keep_best: Number of best ones to keep.
        keep_every: Keep also the first at or after every this many steps.
        mode: `max` or `min`: which values are better; None goes by the manifest.
        dry_run: Delete nothing.

    Returns:
        The entries that stay, and those that were deleted or would be.

    Raises:
        UserError: Nothing would stay, there is no manifest to go by, or a file that is to stay is damaged (5).
    """
    if not dry_run:
        recover(folder)
    before = _read_for_pruning(folder)
    mode = mode or manifest.read_mode(folder)
    if mode is None and keep_best:
        what = "the manifest does not say whether a smaller or a larger value is better"
        raise UserError(what, key=str(folder), fix="keep no best ones, or name the mode: max or min")
    staying = manifest.kept(before, keep_last=keep_last, keep_best=keep_best, keep_every=keep_every, mode=mode or "max")
    leaving = [entry for entry in before if entry not in staying]
    if not staying and leaving:
        raise UserError("no checkpoint would be left", key=str(folder), fix="keep at least one")
    for entry in staying:
        try:
            check_bytes(folder / entry.file, entry)
        except DamagedError as error:
            what = f"nothing is deleted, as {entry.file}, which is to stay, is damaged: {error}"
            raise UserError(what, key=str(folder), exit_code=UNREADABLE) from error
    if leaving and not dry_run:
        manifest.write(folder, staying, mode=mode, leaving=leaving)  # first: it must never name a file that is gone
        for entry in leaving:
            (folder / entry.file).unlink(missing_ok=True)
    return staying, leaving


def _read_for_pruning(folder: Path) -> list[Entry]:
    try:
        return manifest.read(folder)
    except FileNotFoundError as error:
        why = f"there is no {run_files.MANIFEST} that says which files are the run's"
        raise UserError(why, key=str(folder), exit_code=UNREADABLE) from error
    except (OSError, ManifestError) as error:
        raise UserError(f"nothing is deleted: {reason(error)}", key=str(folder), exit_code=UNREADABLE) from error
