"""The folder of a run: one writer at a time, and the record of what ran in it."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import socket
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig

from lightkit.common.errors import UserError
from lightkit.common.ledger import Ledger, audit
from lightkit.config import save
from lightkit.config.project import project_root
from lightkit.loggers.environment import environment
from lightkit.loggers.files import bad_lines, read_jsonl, replace_file, write_json
from lightkit.loggers.rewind import SCRATCH
from lightkit.loggers.runlog import run_log

_LOG = logging.getLogger(__name__)
LOCK = ".lock"
SAVED = ("checkpoints/manifest.json", "checkpoints/step-*.pt")
"""What tells that a run has saved something."""
METRICS = "metrics.jsonl"
RESULT = "result.json"
LOG = "run.log"
ENVIRONMENT = "environment.json"
OVERRIDES = "overrides.yaml"
_SUBFOLDERS = ("checkpoints", "figures", "profile")
_WRITTEN = (
    *(
        LOCK,
        LOG,
        METRICS,
        RESULT,
        ENVIRONMENT,
        "config.yaml",
        OVERRIDES,
        "finetune.json",
        "events.out.tfevents.*",
        SCRATCH,
        "metrics.changed*",
    ),
    *("weights.*", "model.pt", "adapter.pt", ".config.yaml.*", *_SUBFOLDERS),
)
"""Names in the folder that are written to."""
_REPLACED = (RESULT, METRICS, ENVIRONMENT, "config.yaml", OVERRIDES, "finetune.json", SCRATCH)


class RunFolder:
    """Where a run writes.

    Args:
        path: The folder; made when the run begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @contextmanager
    def begun(self, *, fresh: bool = False) -> Iterator[None]:
        """While inside, the folder exists and no other process can run in it.

        The lock goes with the process that holds it, however that ends; worker processes give it up.

        Args:
            fresh: A new run is to begin, so there must not be one here.

        Raises:
            UserError: It cannot be made or written, another process runs in it, it holds a run already, or a link in
                it leads elsewhere.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _refuse_links(self.path)
            lock = open(self.path / LOCK, "a+b", buffering=0, opener=_no_link)  # noqa: SIM115
        except OSError as error:
            raise unwritable(self.path, error) from error
        with lock:
            self._lock(lock)
            if fresh and any(any(self.path.glob(pattern)) for pattern in SAVED):
                fix = f"lightkit resume {self.path}, or another folder"
                raise UserError("the folder already holds a run", key=str(self.path), fix=fix)
            self._clear()
            for name in (LOG, METRICS):
                _unshare(self.path / name)
            yield

    def _clear(self) -> None:
        """Delete what kills have left of files that were about to be replaced; they would pile up."""
        for name in _REPLACED:
            for left in self.path.glob(f".{name}.????????"):
                with suppress(OSError):
                    left.unlink()

    def _lock(self, file: IO[bytes]) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: no lock
            return
        try:
            # Not `lockf`: that lock ends as soon as anything in this process reads the file, a backup for instance.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return  # a file system without locks
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "another process"
            fix = "wait for it or end it; `lightkit runs` lists the runs"
            raise UserError(f"{holder} is running in this folder", key=str(self.path), fix=fix) from error
        os.register_at_fork(after_in_child=partial(_close, weakref.ref(file)))
        if os.fstat(file.fileno()).st_nlink > 1:
            return  # it is another file, too, whose content is not ours
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:  # a full disk
            raise unwritable(self.path, error) from error

    def log(self) -> AbstractContextManager[Any]:
        """While inside, `run.log` is written."""
        return run_log(self.path / LOG)

    def record(self, cfg: DictConfig, overrides: Sequence[str], **facts: Any) -> None:
        """Write down what is about to run, and with what.

        Args:
            cfg: The configuration.
            overrides: What was typed on the command line.
            facts: What belongs into `environment.json` besides the machine: device, and what is known of the data.

        Raises:
            UserError: The folder cannot be written.
        """
        try:
            (self.path / RESULT).unlink(missing_ok=True)  # of an earlier part: until this one ends there is none
            save(cfg, self.path)
            lines = "".join(f"- {json.dumps(text)}\n" for text in overrides)
            replace_file(self.path / OVERRIDES, lines or "[]\n")
            write_json(self.path / ENVIRONMENT, environment(project=project_root(), seed=cfg.seed, **facts))
        except OSError as error:
            raise unwritable(self.path, error) from error

    def typed(self) -> list[str]:
        """What was typed for the run so far, as `overrides.yaml` says; nothing where it cannot be read."""
        try:
            lines = (self.path / OVERRIDES).read_text(encoding="utf-8").splitlines()
            return [str(json.loads(line.removeprefix("- "))) for line in lines if line.startswith("- ")]
        except (OSError, ValueError):
            return []

    def facts(self) -> dict[str, Any]:
        """What `environment.json` says; empty where there is none."""
        try:
            return dict(json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of values logged so far."""
        return read_jsonl(self.path / METRICS)

    def rows_before(self, step: int, counted: int, ledger: Ledger) -> list[dict[str, Any]]:
        """The rows that a checkpoint counts as logged; what is wrong with their file is a warning.

        Nothing a run learns depends on them, so it goes on. Lines that are no such rows are left out from then on; a
        copy of the file keeps them.

        Args:
            step: Optimizer steps of the checkpoint.
            counted: Rows it counts.
            ledger: Their marks; an older checkpoint has none, and its rows are taken for what they are.
        """
        rows, bad = self.metrics(), bad_lines(self.path / METRICS)
        if len(ledger) != counted:
            ledger = Ledger.of(row for row in rows[:counted] if row["step"] <= step)
        found = audit(rows, ledger, step=step)
        left = max(0, counted - len(ledger))
        problems = [*([f"{left} of {counted} rows are missing"] if left else []), *found.problems]
        problems += [f"{bad} line{'s' if bad > 1 else ''} cannot be read"] if bad else []
        if problems:
            kept = f"; as it is, it is kept as {self._set_aside(METRICS)}" if found.foreign or bad else ""
            what = f"{METRICS} has been changed since the checkpoint of step {step} was written"
            _LOG.warning("%s: %s%s. The run goes on with the rows that are left", what, "; ".join(problems), kept)
        return found.rows

    def _set_aside(self, name: str) -> str:
        """Copy a file to a free name beside it; returns that."""
        stem, _, suffix = name.rpartition(".")
        copies = (f"{stem}.changed{number}.{suffix}" for number in count(1))
        copy = next(name for name in copies if not (self.path / name).exists())
        shutil.copyfile(self.path / name, self.path / copy)
        return copy

    def write_result(self, result: dict[str, Any]) -> None:
        """Replace `result.json`."""
        write_json(self.path / RESULT, result)


def _refuse_links(folder: Path) -> None:
    """Refuse names to write to that lead out of the folder; the folder itself may be a link of the user's."""
    home = folder.resolve()
    found = [path for pattern in _WRITTEN for path in folder.glob(pattern)]
    found += [path for name in _SUBFOLDERS if not (folder / name).is_symlink() for path in (folder / name).rglob("*")]
    for path in found:
        if path.is_symlink() and not path.resolve().is_relative_to(home):
            what = "this link leads out of the folder of the run, so nothing is written"
            fix = "delete it, or put what it leads to in its place"
            raise UserError(what, key=str(path), received=str(path.readlink()), fix=fix)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _unshare(path: Path) -> None:
    """Give a file that is appended to a copy of its own, where another name in the file system leads to it, too."""
    if path.is_file() and path.stat().st_nlink > 1:
        replace_file(path, path.read_text(encoding="utf-8", errors="replace"))


def _close(file: weakref.ref[IO[bytes]]) -> None:
    """Give a lock up in a forked process, where it would live on in a worker that outlives the run."""
    held = file()
    if held is not None:
        held.close()


def unwritable(path: Path, error: OSError) -> UserError:
    """The error of a folder that cannot be written."""
    return UserError(f"cannot write: {error.strerror}", key=str(path), fix="hydra.run.dir=FOLDER writes elsewhere")


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between the two parts of a resumed run that may change its numbers: data, device, packages."""
    rows = [(name, before.get(name), now.get(name)) for name in ("data", "device", "python", "host")]
    packages = {**before.get("packages", {}), **now.get("packages", {})}
    rows += [(name, before.get("packages", {}).get(name), now.get("packages", {}).get(name)) for name in packages]
    return [f"{name} differs: {old} before, {new} now" for name, old, new in rows if old != new]
