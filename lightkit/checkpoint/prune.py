"""Making room in a folder of checkpoints."""

from __future__ import annotations

from pathlib import Path

import lightkit.checkpoint.manifest as manifest
from lightkit.checkpoint.listing import recover
from lightkit.checkpoint.manifest import Entry, ManifestError
from lightkit.checkpoint.reading import DamagedError, check_bytes, reason
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import UNREADABLE


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
    before = _listed(folder)
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


def _listed(folder: Path) -> list[Entry]:
    try:
        return manifest.read(folder)
    except FileNotFoundError as error:
        why = f"there is no {run_files.MANIFEST} that says which files are the run's"
        raise UserError(why, key=str(folder), exit_code=UNREADABLE) from error
    except (OSError, ManifestError) as error:
        raise UserError(f"nothing is deleted: {reason(error)}", key=str(folder), exit_code=UNREADABLE) from error
