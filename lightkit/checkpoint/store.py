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
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

import torch

import lightkit.checkpoint.manifest as manifest
from lightkit.checkpoint.files import HashingFile, write_atomically
from lightkit.checkpoint.manifest import Entry, ManifestError
from lightkit.checkpoint.plain import to_plain
from lightkit.checkpoint.reading import (
    LABEL,
    UNREADABLE,
    DamagedError,
    open_checked,
    read,
    reason,
    rebuild,
)
from lightkit.common.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)
_SCRATCH = "checkpoint.unfinished"


class CheckpointStore:
    """The checkpoints of one run. One process writes; any number may read.

    Every save is on the disk when `save` returns; `BackgroundStore` only waits for a copy.

    Args:
        folder: Where the files lie.
        keep_last: Number of newest checkpoints kept, at least 1.
        keep_best: Number of best checkpoints kept; one file may be both newest and best. 0 keeps none.
        keep_every: Keeps for good the first checkpoint at or after every this many steps.
        mode: `max` or `min`: which values are better.

    Raises:
        UserError: `keep_last`, `keep_best`, `keep_every` or `mode` is out of range.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int = 1,
        keep_best: int = 1,
        keep_every: int | None = None,
        mode: str = "max",
    ) -> None:
        if keep_last < 1:
            raise UserError(
                "at least the newest is kept", key="checkpoint.keep_last", expected="1 or more", received=keep_last
            )
        if keep_best < 0:
            raise UserError(
                "not a number of files", key="checkpoint.keep_best", expected="0 or more", received=keep_best
            )
        if keep_every is not None and keep_every < 1:
            raise UserError(
                "not a number of steps", key="checkpoint.keep_every", expected="1 or more", received=keep_every
            )
        if mode not in ("min", "max"):
            raise UserError("not a direction", key="metrics.mode", received=mode, choices=("min", "max"))
        self.folder, self.keep_last, self.keep_best, self.mode = Path(folder), keep_last, keep_best, mode
        self.keep_every = keep_every

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except UserError as failure:
            if not isinstance(error, Exception):  # also of a run that was asked to end: it must not pass for saved
                raise
            _LOG.error("%s", failure)  # the error under way is the one to tell

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
        The file lies at the path that is returned once the save is done: see `flush`.

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
        plain = self._take(content)
        try:
            path = self._free_name(step)
        except OSError as error:
            raise self._save_error(step, error) from error
        self._run(partial(self._write, plain, path, step=step, value=value, epoch=epoch))
        return path

    def flush(self) -> None:
        """Wait until every save is on the disk.

        Raises:
            UserError: One could not be written; the checkpoints before it are untouched.
        """

    def close(self) -> None:
        """`flush`, and let go of memory; the store can still be read and written."""
        self.flush()

    def entries(self) -> list[Entry]:
        """What the folder holds, oldest first; from the files themselves where the manifest is lost or damaged."""
        self.flush()
        return self._listed()

    def _take(self, content: dict[str, Any]) -> dict[str, Any]:
        """What to write of the content, after `save` returned if need be."""
        plain: dict[str, Any] = to_plain(content)
        return plain

    def _run(self, job: Callable[[], None]) -> None:
        job()

    def _write(self, plain: dict[str, Any], path: Path, *, step: int, value: float | None, epoch: int | None) -> None:
        """Bring a checkpoint to the disk; the manifest knows it only when all of it is there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            before = self._up_to(step)
            if value is None:  # a second save of a step must not forget what the first one measured
                value = next((entry.value for entry in before if entry.step == step), None)
            plain[LABEL] = {"step": step, "value": value, "epoch": epoch}
            digest, size = write_atomically(path, lambda file: _serialise(plain, file), scratch=_SCRATCH)
            self._list(before, Entry(path.name, step, epoch, value, digest, size))
        except OSError as error:
            raise self._save_error(step, error) from error

    def _listed(self) -> list[Entry]:
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
        self.flush()
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
        entries = self._listed()
        later = [entry.file for entry in entries if entry.step > step]
        if later:
            _LOG.warning("%s: no longer listed, but still there: %s", self.folder, ", ".join(later))
        return [entry for entry in entries if entry.step <= step]

    def _free_name(self, step: int) -> Path:
        """A name nobody uses: replacing a listed file would leave a moment in which the manifest doesn't fit it."""
        name, copy = f"step-{step:08d}.pt", 0
        while os.path.lexists(f"{self.folder}/{name}"):
            copy += 1
            name = f"step-{step:08d}-{copy}.pt"
        return self.folder / name

    def _list(self, before: list[Entry], new: Entry) -> None:
        """Put the new entry into the manifest, then delete the files that this takes off the list."""
        kept = self._kept([entry for entry in before if entry.step != new.step] + [new])
        manifest.write(self.folder, kept, mode=self.mode)
        self._delete(entry for entry in before if entry not in kept)

    def _kept(self, entries: list[Entry]) -> list[Entry]:
        return manifest.kept(
            entries, keep_last=self.keep_last, keep_best=self.keep_best, keep_every=self.keep_every, mode=self.mode
        )

    def _delete(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            (self.folder / entry.file).unlink(missing_ok=True)

    def _save_error(self, step: int, error: OSError) -> UserError:
        newest = None
        with contextlib.suppress(OSError):
            newest = next(iter(self._listed()[::-1]), None)
        return UserError(
            f"the checkpoint of step {step} could not be written: {reason(error)}",
            key=str(self.folder),
            fix=f"make room, then resume: {newest.file} is whole" if newest else "make room, then start again",
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


def _serialise(plain: dict[str, Any], file: HashingFile) -> None:
    torch.save(plain, cast("IO[bytes]", file))
