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
from lightkit.checkpoint.reading import DamagedError, check_bytes
from lightkit.common import run_files
from lightkit.common.disk import sync_folder

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
        (folder / manifest.UNFINISHED).replace(folder / run_files.MANIFEST)
        sync_folder(folder)
        _LOG.info("%s: listed now, as a kill had cut that off: %s", folder, ", ".join(unlisted))
    else:
        (folder / manifest.UNFINISHED).unlink(missing_ok=True)
    for file, mark in manifest.read_leaving(folder).items():
        if manifest.identity(folder / file) == mark:
            (folder / file).unlink()
            _LOG.info("%s: deleted now, as a kill had cut that off: %s", folder, file)


def _unlisted(folder: Path) -> list[str]:
    """List the files that only the unfinished manifest lists, if all of them are there and whole."""
    try:
        new = [entry for entry in manifest.read(folder, manifest.UNFINISHED) if entry not in _listed(folder)]
        for entry in new:
            check_bytes(folder / entry.file, entry)
    except (OSError, ManifestError, DamagedError):
        return []
    return [entry.file for entry in new]


def _listed(folder: Path) -> list[Entry]:
    with contextlib.suppress(OSError, ManifestError):
        return manifest.read(folder)
    return []
