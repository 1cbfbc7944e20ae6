"""A folder of checkpoints that survives crashes, full disks and damaged files.

    checkpoints/step-00000120.pt    one file per saved step
    checkpoints/manifest.json       step, metric, checksum and size of each

A save writes the file and the manifest that lists it under scratch names, forces both to the disk, renames the file,
then the manifest, and only then deletes what is no longer kept. Whatever the moment of a crash, the manifest names
whole files, and `recover` can tell what was left undone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

import lightkit.checkpoint.manifest as manifest
from lightkit.checkpoint.files import draft, to_plain
from lightkit.checkpoint.listing import publish, recover
from lightkit.checkpoint.manifest import Entry, ManifestError
from lightkit.checkpoint.reading import LABEL, DamagedError, all_damaged, has_files, open_checked, read, reason, rebuild
from lightkit.common import run_files
from lightkit.common.errors import FAILED, UserError, writing_to
from lightkit.processes.files import write_whole

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
        manifest.check_rules(keep_last=keep_last, keep_best=keep_best, keep_every=keep_every, mode=mode)
        self.folder, self.keep_last, self.keep_best, self.mode = Path(folder), keep_last, keep_best, mode
        self.keep_every = keep_every
        self._abandons = False
        self._there: set[str] | None = None  # names in the folder, once this store has written: to ask for one again
        # takes as long as copying a hundred thousand parameters

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
        """Make the folder, prove that it can be written, before any work is done, and `recover`.

        Raises:
            UserError: It cannot.
        """
        fix = "choose another output folder, or checkpoint=none to train without checkpoints"
        with writing_to(self.folder, "checkpoints cannot be written here", fix=fix):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / ".probe", "probe", scratch=_SCRATCH, forced=True)
            (self.folder / ".probe").unlink()
            self.recover()

    def recover(self) -> None:
        """Finish what a process that was killed had begun; for the one who writes, before it reads.

        Raises:
            OSError: The folder cannot be written.
        """
        self.flush()
        recover(self.folder)

    def save(
        self,
        content: dict[str, Any],
        *,
        step: int,
        value: float | None = None,
        epoch: int | None = None,
        first: Callable[[], object] = lambda: None,
    ) -> Path:
        """Write a checkpoint and drop those that are no longer kept.

        Entries of later steps than `step` leave the list. Their files stay on the disk, unless `abandon` was called.
        The file lies at the path that is returned once the save is done: see `flush`.

        Args:
            content: Tensors and plain types.
            step: Optimizer steps done.
            value: The monitored metric; None or NaN is never best.
            epoch: Epochs done.
            first: Called before anything is written, where `BackgroundStore` writes: forces to the disk what the
                checkpoint counts on.

        Raises:
            TypeError: `content` holds another type; the message names its key path.
            UserError: The file cannot be written; the checkpoints before it are untouched.
        """
        value = None if value is None or math.isnan(value) else float(value)
        plain = self._take({**content, LABEL: {"step": step, "value": value, "epoch": epoch}})
        with self._saving(step):
            path = self.folder / f"step-{step:08d}.pt"
            copies = 0  # a name of its own: replacing a listed file would leave the manifest wrong for a moment
            while os.path.lexists(path) if self._there is None else path.name in self._there:
                copies += 1
                path = self.folder / f"step-{step:08d}-{copies}.pt"
        abandons, self._abandons = self._abandons, False
        entry = Entry(path.name, step, epoch, value, sha256="", bytes=0)
        self._run(partial(self._write, plain, entry, first=first, abandons=abandons))
        return path

    def fill(self, saves: Sequence[tuple[dict[str, Any], float | None]]) -> None:
        """Write the checkpoints of a run that has ended already into an empty folder, all of them are kept.

        Nothing is forced to the disk: whoever calls this still has the content elsewhere until it is there.

        Args:
            saves: Contents, of which `state` tells step and epoch, with the monitored metric.

        Raises:
            UserError: They cannot be written.
        """
        entries = list[Entry]()
        with self._saving(max((content["state"]["step"] for content, _ in saves), default=0)):
            self.folder.mkdir(parents=True, exist_ok=True)
            for content, value in saves:
                step, epoch = content["state"]["step"], content["state"]["epoch"]
                file, memory = f"step-{step:08d}.pt", io.BytesIO()
                torch.save({**to_plain(content), LABEL: {"step": step, "value": value, "epoch": epoch}}, memory)
                written = memory.getbuffer()
                (self.folder / file).write_bytes(written)
                entries.append(Entry(file, step, epoch, value, hashlib.sha256(written).hexdigest(), len(written)))
            manifest.write_new(self.folder, sorted(entries, key=lambda entry: entry.step), mode=self.mode)

    def abandon(self) -> None:
        """Let the next save delete what the list has of later steps, as the run has gone back.

        Not before, so that there is a checkpoint to go on from at any moment.
        """
        self._abandons = True

    def flush(self) -> None:
        """Wait until every save is on the disk.

        Raises:
            UserError: One could not be written; the checkpoints before it are untouched.
        """

    def close(self) -> None:
        """Wait until every save is on the disk and let go of memory; the store can still be read and written."""
        self.flush()

    def entries(self) -> list[Entry]:
        """List what the folder holds, oldest first; from the files where the manifest is lost or damaged."""
        self.flush()
        return self._listed()

    def _take(self, content: dict[str, Any]) -> dict[str, Any] | memoryview:
        """Return what to write of the content, after `save` returned if need be: values, or the bytes of a file."""
        plain: dict[str, Any] = to_plain(content)
        return plain

    def _run(self, job: Callable[[], None]) -> None:
        job()

    def _write(
        self, taken: dict[str, Any] | memoryview, entry: Entry, *, first: Callable[[], object], abandons: bool
    ) -> None:
        """Bring a checkpoint to the disk; the manifest knows it only when all of it is there."""
        self._there = None
        with self._saving(entry.step):
            first()
            self.folder.mkdir(parents=True, exist_ok=True)
            before, later = self._parted(entry.step, abandons=abandons)
            if isinstance(taken, memoryview):
                made = draft(self.folder / entry.file, lambda file: file.write(taken), scratch=_SCRATCH)
            else:
                if entry.value is None:  # a second save of a step must not forget what the first one measured
                    entry = replace(entry, value=next((old.value for old in before if old.step == entry.step), None))
                    taken[LABEL]["value"] = entry.value
                made = draft(self.folder / entry.file, lambda file: torch.save(taken, file), scratch=_SCRATCH)
            new = replace(entry, sha256=made.sha256, bytes=made.count_bytes)
            kept = manifest.kept(
                [old for old in before if old.step != new.step] + [new],
                keep_last=self.keep_last,
                keep_best=self.keep_best,
                keep_every=self.keep_every,
                mode=self.mode,
            )
            leaving = [old for old in (*before, *later) if old not in kept]
            if os.path.lexists(made.path):  # somebody has put it here since `save` asked for a name
                aside = made.path.rename(f"{made.path}.{time.time_ns()}")
                _LOG.warning("%s is not of this run, which takes the name: it is %s now", made.path, aside.name)
            publish(made, kept, mode=self.mode, leaving=leaving)
            self._there = {path.name for path in self.folder.iterdir()}

    def _listed(self) -> list[Entry]:
        try:
            return sorted(manifest.read(self.folder), key=lambda entry: entry.step)
        except FileNotFoundError:
            why = f"{run_files.MANIFEST} is missing"
        except ManifestError as error:
            why = str(error)
        entries = rebuild(self.folder)
        if entries:
            _LOG.warning("%s: %s; listed anew from %d files", self.folder, why, len(entries))
        return entries

    def newest(self) -> Path | None:
        """Return the file of the greatest step, maybe a damaged one: see `load_newest`; None in an empty folder."""
        entries = self.entries()
        return self.folder / entries[-1].file if entries else None

    def best(self) -> Path | None:
        """Return the file of the best value; None where nothing was measured or none are kept."""
        ranked = manifest.ranked(self.entries(), self.mode)
        return self.folder / ranked[0].file if ranked and self.keep_best else None

    def load(self, path: Path) -> dict[str, Any]:
        """Read the content of a checkpoint, checked against the manifest, tensors on the CPU.

        Raises:
            UserError: It is missing, damaged or not a checkpoint (exit code 5).
        """
        self.flush()
        return read(path)

    def load_newest(self, *, recover: bool = False) -> tuple[Path, dict[str, Any]] | None:
        """Read the newest checkpoint that is whole; a damaged one is named in a warning and passed over.

        Args:
            recover: Call `recover` before, as a run does that goes on.

        Returns:
            Its path and content, or None where there is no checkpoint at all.

        Raises:
            UserError: There are checkpoints but none can be read (exit code 5).
        """
        if recover:
            self.recover()
        problems, entries = [], self.entries()
        for entry in reversed(entries):
            path = self.folder / entry.file
            try:
                content = open_checked(path, entry)
            except DamagedError as error:
                problems.append(f"{entry.file}: {error}")
                before = "; trying the one before" if len(problems) < len(entries) else ""
                _LOG.warning("%s is damaged (%s)%s", path, error, before)
            else:
                return path, content
        if problems or has_files(self.folder):
            raise all_damaged(self.folder, problems)
        return None

    def _parted(self, step: int, *, abandons: bool) -> tuple[list[Entry], list[Entry]]:
        """Part the entries of this course of the run from later ones to delete, of which it has gone back."""
        entries = self._listed()
        before, later = [old for old in entries if old.step <= step], [old for old in entries if old.step > step]
        # One without a checksum was found in the folder when the list was lost: it may be anybody's.
        gone = [entry for entry in later if abandons and entry.sha256]
        left = [entry.file for entry in later if entry not in gone]
        if left:
            _LOG.warning("%s: no longer listed, but still there: %s", self.folder, ", ".join(left))
        return before, gone

    @contextlib.contextmanager
    def _saving(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            newest = None
            with contextlib.suppress(OSError):
                newest = next(iter(self._listed()[::-1]), None)
            raise UserError(
                f"the checkpoint of step {step} could not be written: {reason(error)}",
                key=str(self.folder),
                fix=f"make room, then resume: {newest.file} is whole" if newest else "make room, then start again",
                exit_code=FAILED,
                family="cannot-write",
            ) from error
