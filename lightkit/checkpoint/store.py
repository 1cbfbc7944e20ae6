"""A folder of checkpoints that survives crashes, full disks and damaged files.

    checkpoints/step-00000120.pt    one file per saved step
    checkpoints/manifest.json       step, metric, checksum and size of each

A save writes a file under a scratch name, forces it to the disk, renames it, then does the same with the manifest, and
only then deletes what is no longer kept. Whatever the moment of a crash, the manifest names whole files.
"""

from __future__ import annotations

import contextlib
import logging
import math
from pathlib import Path
from typing import IO, Any, cast

import torch

import lightkit.checkpoint.manifest as manifest
from lightkit.checkpoint.files import HashingFile, write_atomically
from lightkit.checkpoint.manifest import Entry, ManifestError
from lightkit.checkpoint.plain import to_plain
from lightkit.checkpoint.reading import LABEL, UNREADABLE, DamagedError, open_checked, read, reason, rebuild
from lightkit.common.errors import UserError

_LOG = logging.getLogger(__name__)
_SCRATCH = "checkpoint.unfinished"


class CheckpointStore:
    """The checkpoints of one run. One process writes; any number may read.

    Args:
        folder: Where the files lie.
        keep_last: Number of newest checkpoints kept, at least 1.
        keep_best: Number of best checkpoints kept; one file may be both newest and best. 0 keeps none.
        mode: `max` or `min`: which values are better.

    Raises:
        UserError: `keep_last`, `keep_best` or `mode` is out of range.
    """

    def __init__(self, folder: Path, *, keep_last: int = 1, keep_best: int = 1, mode: str = "max") -> None:
        if keep_last < 1:
            raise UserError(
                "at least the newest is kept", key="checkpoint.keep_last", expected="1 or more", received=keep_last
            )
        if keep_best < 0:
            raise UserError(
                "not a number of files", key="checkpoint.keep_best", expected="0 or more", received=keep_best
            )
        if mode not in ("min", "max"):
            raise UserError("not a direction", key="metrics.mode", received=mode, choices=("min", "max"))
        self.folder, self.keep_last, self.keep_best, self.mode = Path(folder), keep_last, keep_best, mode

    def prepare(self) -> None:
        """Make the folder and prove that it can be written, before any work is done.

        Raises:
            UserError: It cannot.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / ".probe", lambda file: file.write(b"probe"), scratch=_SCRATCH)
            (self.folder / ".probe").unlink()
        except OSError as error:
            raise UserError(
                f"checkpoints cannot be written here: {reason(error)}",
                key=str(self.folder),
                fix="choose another output folder, or checkpoint=none to train without checkpoints",
            ) from error

    def save(self, content: dict[str, Any], *, step: int, value: float | None = None, epoch: int | None = None) -> Path:
        """Write a checkpoint and drop those that are no longer kept.

        Entries of later steps than `step` (left from before a roll-back) leave the list; their files stay on the disk.

        Args:
            content: Tensors and plain types.
            step: Optimizer steps done.
            value: The monitored metric; None or NaN is never best.
            epoch: Epochs done.

        Raises:
            TypeError: `content` holds another type; the message names its key path.
            UserError: The file cannot be written; the checkpoints before it are untouched.
        """
        value = None if value is None or math.isnan(value) else float(value)
        plain = to_plain(content)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            before = self._up_to(step)
            if value is None:  # a second save of a step must not forget what the first one measured
                value = next((entry.value for entry in before if entry.step == step), None)
            path = self._free_name(step)
            plain[LABEL] = {"step": step, "value": value, "epoch": epoch}
            digest, size = write_atomically(path, lambda file: _write(plain, file), scratch=_SCRATCH)
            self._list(before, Entry(path.name, step, epoch, value, digest, size))
        except OSError as error:
            raise self._save_error(step, error) from error
        return path

    def entries(self) -> list[Entry]:
        """What the folder holds, oldest first; from the files themselves where the manifest is lost or damaged."""
        try:
            return sorted(manifest.read(self.folder), key=lambda entry: entry.step)
        except FileNotFoundError:
            why = f"{manifest.NAME} is missing"
        except ManifestError as error:
            why = str(error)
        found = rebuild(self.folder)
        if found:
            _LOG.warning("%s: %s; listed anew from %d files", self.folder, why, len(found))
        return found

    def newest(self) -> Path | None:
        """The file of the greatest step; None in an empty folder. It may turn out to be damaged: see `load_newest`."""
        entries = self.entries()
        return self.folder / entries[-1].file if entries else None

    def best(self) -> Path | None:
        """The file of the best value; None where nothing was measured or none are kept."""
        found = manifest.ranked(self.entries(), self.mode)
        return self.folder / found[0].file if found and self.keep_best else None

    def load(self, path: Path) -> dict[str, Any]:
        """The content of a checkpoint, checked against the manifest, tensors on the CPU.

        Raises:
            UserError: It is missing, damaged or not a checkpoint (exit code 5).
        """
        return read(path)

    def load_newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that is whole; a damaged one is named in a warning and the one before is taken.

        Returns:
            Its path and content, or None where there is no checkpoint at all.

        Raises:
            UserError: There are checkpoints but none can be read (exit code 5).
        """
        problems = []
        for entry in reversed(self.entries()):
            path = self.folder / entry.file
            try:
                content = open_checked(path, entry)
            except DamagedError as error:
                problems.append(f"{entry.file}: {error}")
                _LOG.warning("%s is damaged (%s); trying the one before", path, error)
            else:
                return path, content
        if problems or _has_files(self.folder):
            raise _all_damaged(self.folder, problems)
        return None

    def _up_to(self, step: int) -> list[Entry]:
        """The entries of this course of the run: later ones were written before it went back."""
        entries = self.entries()
        later = [entry.file for entry in entries if entry.step > step]
        if later:
            _LOG.warning("%s: no longer listed, but still there: %s", self.folder, ", ".join(later))
        return [entry for entry in entries if entry.step <= step]

    def _free_name(self, step: int) -> Path:
        """A name nobody uses: replacing a listed file would leave a moment in which the manifest doesn't fit it."""
        path, copy = self.folder / f"step-{step:08d}.pt", 0
        while path.exists():
            copy += 1
            path = self.folder / f"step-{step:08d}-{copy}.pt"
        return path

    def _list(self, before: list[Entry], new: Entry) -> None:
        """Put the new entry into the manifest, then delete the files that this takes off the list."""
        current = [entry for entry in before if entry.step != new.step] + [new]
        kept = manifest.kept(current, keep_last=self.keep_last, keep_best=self.keep_best, mode=self.mode)
        manifest.write(self.folder, kept)
        names = {entry.file for entry in kept}
        for entry in before:
            if entry.file not in names:
                (self.folder / entry.file).unlink(missing_ok=True)

    def _save_error(self, step: int, error: OSError) -> UserError:
        newest = None
        with contextlib.suppress(OSError):
            newest = self.newest()
        return UserError(
            f"the checkpoint of step {step} could not be written: {reason(error)}",
            key=str(self.folder),
            fix=f"make room, then resume: {newest.name} is whole" if newest else "make room, then start again",
            exit_code=1,
        )


def _has_files(folder: Path) -> bool:
    return any(manifest.is_checkpoint_name(path.name) for path in folder.glob("step-*.pt"))


def _all_damaged(folder: Path, problems: list[str]) -> UserError:
    return UserError(
        "no checkpoint can be read" + (": " + "; ".join(problems) if problems else ""),
        key=str(folder),
        fix="restore a file from a backup, or start a new run",
        exit_code=UNREADABLE,
    )


def _write(plain: dict[str, Any], file: HashingFile) -> None:
    torch.save(plain, cast("IO[bytes]", file))
