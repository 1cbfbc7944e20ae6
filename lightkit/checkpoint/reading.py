"""Opening a checkpoint file: is it whole, is it ours, does it hold nothing but tensors and plain types?"""

from __future__ import annotations

import contextlib
import logging
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

import lightkit.checkpoint.manifest as manifest
from lightkit.checkpoint.bounds import ExcessError, check_archive_size, check_content, foreign_format
from lightkit.checkpoint.files import sha256
from lightkit.checkpoint.manifest import Entry, ManifestError
from lightkit.common import run_files
from lightkit.common.errors import UNREADABLE, UserError

_LOG = logging.getLogger(__name__)
LABEL = "saved"
"""Key under which a file carries its own step, epoch and value, for when the manifest is lost."""


class DamagedError(Exception):
    """A checkpoint file is not what was saved; the message says how."""


def read(path: Path) -> dict[str, Any]:
    """Read the content of a checkpoint file anywhere, checked against the manifest beside it if there is one.

    Raises:
        UserError: It is missing, damaged or not a checkpoint (exit code 5).
    """
    path = Path(path)
    try:
        return open_checked(path, entry_of(path))
    except DamagedError as error:
        raise UserError(f"this checkpoint cannot be read: {error}", key=str(path), exit_code=UNREADABLE) from error


def entry_of(path: Path) -> Entry | None:
    """Read what the manifest beside a file says about it; None where there is none."""
    with contextlib.suppress(OSError, ManifestError):
        return next((entry for entry in manifest.read(path.parent) if entry.file == path.name), None)
    return None


def open_checked(path: Path, entry: Entry | None) -> dict[str, Any]:
    """Read the content of a file, compared with its entry where there is one.

    Raises:
        DamagedError: The file is not what was saved.
    """
    check_bytes(path, entry)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        check_content(content, path.stat().st_size)
    except ExcessError as error:
        raise DamagedError(f"it would take too much memory: {error}") from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise DamagedError(f"not a file of tensors and plain types ({reason(error)})") from error
    if not isinstance(content, dict) or LABEL not in content:
        raise DamagedError("not a lightkit checkpoint")
    del content[LABEL]
    return content


def check_bytes(path: Path, entry: Entry | None) -> None:
    """Compare size and checksum; torch.load itself takes flipped bits for good.

    Raises:
        DamagedError: They differ, or the file cannot be read.
    """
    try:
        size = path.stat().st_size
        if entry is not None and size != entry.bytes:
            raise DamagedError(f"{size} bytes instead of {entry.bytes}")
        known = entry.sha256 if entry is not None else ""
        if known and sha256(path) != known:
            raise DamagedError("the checksum differs")
        _check_archive(path, crc=not known)
    except FileNotFoundError as error:
        raise DamagedError("the file is gone") from error
    except OSError as error:
        raise DamagedError(reason(error)) from error


def _check_archive(path: Path, *, crc: bool = True) -> None:
    """Check what the file is and would take, and its own CRCs, where no manifest knows its checksum."""
    foreign = foreign_format(path)
    if foreign is not None:
        raise DamagedError(f"{foreign.what}. {foreign.fix}")
    try:
        check_archive_size(path)
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip() if crc else None
    except ExcessError as error:
        raise DamagedError(f"it would take too much memory: {error}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:  # by what is broken
        raise DamagedError(f"not a whole archive ({error})") from error
    if broken is not None:
        raise DamagedError(f"the checksum of its part {broken} differs")


def rebuild(folder: Path) -> list[Entry]:
    """Make entries from the whole files in a folder, oldest first; damaged ones are named and left out."""
    entries = []
    for path in sorted(folder.glob(run_files.CHECKPOINT_PATTERN)) if folder.is_dir() else []:
        if not manifest.is_checkpoint_name(path.name):
            continue
        try:
            _check_archive(path)
            label = torch.load(path, map_location="cpu", weights_only=True, mmap=True)[LABEL]
            entries.append(Entry(path.name, sha256="", bytes=path.stat().st_size, **label))
        except (DamagedError, OSError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
            _LOG.warning("%s is damaged (%s); left out", path, reason(error))
    return sorted(entries, key=lambda entry: entry.step)


def has_files(folder: Path) -> bool:
    """Tell whether a folder holds files with names of checkpoints, listed or not."""
    return any(manifest.is_checkpoint_name(path.name) for path in folder.glob(run_files.CHECKPOINT_PATTERN))


def all_damaged(folder: Path, problems: list[str]) -> UserError:
    """Make the error of a folder without a single checkpoint that can be read."""
    return UserError(
        "no checkpoint can be read" + (": " + "; ".join(problems) if problems else ""),
        key=str(folder),
        fix="restore a file from a backup, or start a new run",
        exit_code=UNREADABLE,
    )


def reason(error: Exception) -> str:
    """Return the first line of what an error says, without its number."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().splitlines()[0]
