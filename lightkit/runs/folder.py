"""The folder of a run while it is written: one writer at a time, and the record of what ran in it."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.ledger import Ledger, audit
from lightkit.common.names import folder_below
from lightkit.common.reading import UnreadableError
from lightkit.config import save, to_plain
from lightkit.config.project import project_root
from lightkit.config.provenance import key_problem
from lightkit.loggers.files import write_json
from lightkit.loggers.runlog import run_log
from lightkit.processes.files import write_whole
from lightkit.runs.catalog import has_checkpoints, has_members
from lightkit.runs.code import LIMIT, keep_code
from lightkit.runs.lock import locked
from lightkit.runs.reading import TORN, checked_lines, read_facts, read_metrics, read_overrides
from lightkit.runs.record import environment

_LOG = logging.getLogger(__name__)
_SUBFOLDERS = (run_files.CHECKPOINTS, run_files.FIGURES, run_files.PROFILE, run_files.MEMBERS, run_files.CODE)
_SHOWN = 12
"""Packages that are named one by one where many have changed."""
_REPLACED = (
    run_files.RESULT,
    run_files.METRICS,
    run_files.ENVIRONMENT,
    run_files.CONFIG,
    run_files.OVERRIDES,
    run_files.FINETUNE,
    run_files.ROWS,
    run_files.LEFT_OUT,
    run_files.LEAKS,
)
"""Names of files that are written anew as a whole, first under another name."""
_FILES = (*_REPLACED, run_files.LOG, run_files.OUTPUT_LOG, run_files.MODEL, run_files.ADAPTER)
"""Names of files in the folder of a run."""
_WRITTEN = (
    *(*_FILES, *_SUBFOLDERS, run_files.LOCK, run_files.JOB_LOCK, f"{run_files.SIGNATURES}*", f"{run_files.PROGRESS}*"),
    *(run_files.EVENTS_PATTERN, "metrics.changed*", "weights.*", f".{run_files.CONFIG}.*"),
)
"""Names in the folder that are written to."""


class RunFolder:
    """Where a run writes.

    Args:
        path: The folder; made when the run begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.is_begun = self.is_recorded = False
        self.found: dict[str, Any] = {}
        """What was found before the run begins, by the name of the JSON file that keeps it."""

    @property
    def whole(self) -> Path:
        """Return the folder that a user names to go on with this run."""
        return self.path

    def member(self, name: str) -> RunFolder:
        """Return the folder of one of several models that the run trains.

        Raises:
            UserError: The name is none of a folder, or leads elsewhere by a link.
        """
        home = self.path / run_files.MEMBERS
        return type(self)(folder_below(home, name, key=str(home), expected="the name of a member"))

    def typed_for(self, name: str, typed: Sequence[str]) -> Sequence[str]:
        """Return what was typed for one of several models: what was typed for the run."""
        return typed

    @contextmanager
    def begun(self, *, fresh: bool = False) -> Iterator[None]:
        """Make the folder, and let no other process run in it while inside.

        Args:
            fresh: A new run is to begin, so there must not be one here.

        Raises:
            UserError: It cannot be made or written, another process runs in it, it holds a run already, or a link in
                it leads elsewhere.
        """
        with ExitStack() as stack:
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                refuse_links(self.path)
                stack.enter_context(locked(self.path))
            if fresh and (has_checkpoints(self.path) or has_members(self.path)):
                fix = f"lightkit resume {self.path}, or another folder"
                raise UserError("the folder already holds a run", key=str(self.path), fix=fix, family="folder-in-use")
            for name in _REPLACED:  # what kills have left of files that were about to be replaced would pile up
                for left in self.path.glob(f".{name}.????????"):
                    with suppress(OSError):
                        left.unlink()
            keep_apart(self.path, run_files.LOG, run_files.METRICS)
            self.is_begun = True
            try:
                yield
            finally:
                self.is_begun = self.is_recorded = False

    def log(self) -> AbstractContextManager[Any]:
        """Write `run.log` while inside."""
        return run_log(self.path / run_files.LOG)

    def record(self, cfg: DictConfig, overrides: Sequence[str], **facts: Any) -> None:
        """Write down what is about to run, and with what.

        Args:
            cfg: The configuration.
            overrides: What was typed on the command line.
            facts: What belongs into `environment.json` besides the machine: device, and what is known of the data.

        Raises:
            UserError: The folder cannot be written.
        """
        with writing(self.path):
            (self.path / run_files.RESULT).unlink(missing_ok=True)  # of an earlier part: until this ends there is none
            save(cfg, self.path)
            lines = "".join(f"- {json.dumps(text)}\n" for text in overrides)
            write_whole(self.path / run_files.OVERRIDES, lines or "[]\n", forced=True)
            if (problem := key_problem()) and self.path.parent.name != run_files.MEMBERS:
                _LOG.warning("a resume will take this run for one from elsewhere: %s; %s", *problem)
            known = read_facts(self.path.parent.parent) if self.path.parent.name == run_files.MEMBERS else {}
            now = environment(project=project_root(), known=known, seed=cfg.seed, **facts)
            for name, content in {run_files.ENVIRONMENT: now, **self.found}.items():
                write_json(self.path / name, content)
            self.is_recorded = True
            self.keep_code()

    def keep_code(self) -> None:
        """Keep the source of the modules that are imported by now, of several models once; a full disk is a warning."""
        if self.path.parent.name == run_files.MEMBERS:
            return
        home = (project_root() or self.path) / run_files.OUTPUTS
        try:
            left = keep_code(self.path, home / run_files.CODE_STORE if home in self.path.absolute().parents else None)
        except OSError as error:
            _LOG.warning("the code cannot be kept: %s", error.strerror)
            return
        if left:
            limit = f"{LIMIT / 2**20:.0f} MiB"
            _LOG.warning("the code of %s is not kept: all modules are more than %s", ", ".join(left[:3]), limit)

    def keep(self, name: str, content: Callable[[], bytes]) -> None:
        """Write a file of the run as a whole.

        Args:
            name: Its name.
            content: Gives what is in it.

        Raises:
            UserError: The folder cannot be written.
        """
        made = content()
        with writing(self.path):
            write_whole(self.path / name, made, forced=True)

    def typed(self) -> list[str]:
        """Return what was typed for the run so far; nothing where it cannot be read."""
        return read_overrides(self.path)

    def facts(self) -> dict[str, Any]:
        """Return what `environment.json` says; empty where there is none."""
        return read_facts(self.path)

    def rows_before(self, step: int, counted: int, ledger: Ledger) -> list[dict[str, Any]]:
        """Return the rows that a checkpoint counts as logged; what is wrong with their file is a warning.

        Nothing a run learns depends on them, so it goes on. Lines that are no such rows are left out from then on; a
        copy of the file keeps them.

        Args:
            step: Optimizer steps of the checkpoint.
            counted: Rows it counts.
            ledger: Their marks; an older checkpoint has none, and its rows are taken for what they are.
        """
        path = self.path / run_files.METRICS
        rows, bad = read_metrics(self.path), 0
        with suppress(UnreadableError):
            bad = sum(what not in ("", TORN) for _, what in checked_lines(path))
        if len(ledger) != counted:
            ledger = Ledger.of(row for row in rows[:counted] if row["step"] <= step)
        found = audit(rows, ledger, step=step)
        left = max(0, counted - len(ledger))
        problems = [*([f"{left} of {counted} rows are missing"] if left else []), *found.problems]
        problems += [f"{bad} line{'s' if bad > 1 else ''} cannot be read"] if bad else []
        if problems:
            kept = ""
            if found.foreign or bad:
                copies = (path.with_name(f"{path.stem}.changed{number}{path.suffix}") for number in count(1))
                copy = next(copy for copy in copies if not copy.exists())
                shutil.copyfile(path, copy)
                kept = f"; as it is, it is kept as {copy.name}"
            what = f"{path.name} has been changed since the checkpoint of step {step} was written"
            _LOG.warning("%s: %s%s. The run goes on with the rows that are left", what, "; ".join(problems), kept)
        return found.rows

    def write_result(self, result: dict[str, Any]) -> None:
        """Replace `result.json`; keep the code that has been imported since the run began."""
        self.keep_code()
        write_json(self.path / run_files.RESULT, result)


def keep_apart(folder: Path, *names: str) -> None:
    """Copy files that are about to be appended to, where another name in the file system leads to them, too.

    Args:
        folder: Their folder.
        *names: Their names; one that is not there is left out.
    """
    for path in (folder / name for name in names):
        if path.is_file() and path.stat().st_nlink > 1:
            write_whole(path, path.read_bytes(), forced=True)


def refuse_links(folder: Path, written: Sequence[str] = _WRITTEN, within: Sequence[str] = _SUBFOLDERS) -> None:
    """Refuse names to write to that lead out of a folder, or are no files; the folder itself may be a link.

    Args:
        folder: That of a run, or of a sweep.
        written: Names and patterns in it that are written to.
        within: Those of its folders in which anything is.

    Raises:
        UserError: There is such a link, or a pipe or a folder in the place of a file.
    """
    home = folder.resolve()
    # A glob passes over a name without `*` that is a link to nothing yet.
    found = [path for path in folder.iterdir() if any(fnmatchcase(path.name, pattern) for pattern in written)]
    found += [path for name in within if not (folder / name).is_symlink() for path in (folder / name).rglob("*")]
    for path in found:
        is_odd = not path.is_dir() or (path.name in _FILES and path.parent == folder)
        if path.exists() and not path.is_file() and is_odd:
            what, fix = "this is to be a file, and is none, so nothing is written", "delete it"
            raise UserError(what, key=str(path), fix=fix, family="cannot-write")
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
            what = "this link leads out of the folder of the run, so nothing is written"
            fix = "delete it, or put what it leads to in its place"
            raise UserError(what, key=str(path), received=str(path.readlink()), fix=fix, family="cannot-write")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell of a run's folder, or of a file in it, that it cannot be written, where what is done inside cannot.

    Raises:
        UserError: The system refuses it.
    """
    try:
        yield
    except OSError as error:
        folder = path if path.is_dir() else path.parent
        # One that holds a run cannot move: what goes on, goes on there.
        fix = None if (folder / run_files.CONFIG).is_file() else "hydra.run.dir=FOLDER writes elsewhere"
        raise UserError(f"cannot write: {error.strerror}", key=str(path), fix=fix, family="cannot-write") from error


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Compare two parts of a resumed run: what may change its numbers, which is data, device and packages.

    Args:
        before: What `environment.json` said.
        now: What it says now.
    """
    told = ("data", "classes", "further sets", "device", "python", "host")
    facts = [(name, before.get(name), now.get(name)) for name in told]
    old, new = before.get("packages", {}), now.get("packages", {})
    names = sorted({*old, *new}) if "modules" in before else old  # earlier versions noted few packages
    found = _differing((name, old.get(name), new.get(name)) for name in names)
    more = [f"{len(found) - _SHOWN} further packages differ"] if len(found) > _SHOWN else []
    return [*_differing(facts), *found[:_SHOWN], *more]


def _differing(rows: Iterable[tuple[str, Any, Any]]) -> list[str]:
    return [f"{name} differs: {old} before, {new} now" for name, old, new in rows if old != new]


def changed_code(before: Mapping[str, Any], now: Mapping[str, Any], cfg: DictConfig) -> list[str]:
    """Say which modules differ from those of an earlier part of the run, and which keys name something in them.

    Args:
        before: What `environment.json` said of modules.
        now: What it says now.
        cfg: The configuration.
    """
    lines = []
    for name in sorted(set(before) & set(now)):
        if before[name] != now[name]:
            keys = [key for key, target in _targets(to_plain(cfg)) if target.startswith(f"{name}.")]
            of = f" ({', '.join(keys)})" if keys else ""
            lines.append(f"the code of {name}{of} has changed since the earlier part of the run")
    return lines


def _targets(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and text of each `_target_` in a configuration."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        if name == "_target_" and isinstance(item, str):
            yield key, item
        else:
            yield from _targets(item, f"{key}.{name}" if key else str(name))
