"""Runs that wait for others: a file for each in `outputs/.queue`, and a lock for each queue there.

A run in the line has a detached process from the start, which holds the lock of its folder, waits for its turn and then
does the work. Its file goes when the run has ended by itself or was stopped. A file whose run has no process any more
tells that this was killed, or ended with its machine: whoever looks after the line starts the run again, in its old
place, and the locks keep two that do so at once from starting it twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from lightkit.common import run_files
from lightkit.common.errors import IN_USE, UserError, of_signal
from lightkit.common.reading import UnreadableError, parse_object, read_text
from lightkit.common.text import slug
from lightkit.config.provenance import is_ours, key_problem, read_signature, signer
from lightkit.detached.detach import IN_LINE, LINGER, ask
from lightkit.detached.liveness import is_waiting, look, wait_until_free
from lightkit.processes.children import Child, lightkit_command, lightkit_path, output_of
from lightkit.processes.files import take, write_whole
from lightkit.runs.catalog import project, run_name
from lightkit.sweep.state import is_locked

_WELL = ("finished", "paused", "pruned")
"""States of runs after which those begin that wait for them."""
_KEPT = ("PATH", "LD_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "LIGHTKIT_", "XDG_", "HF_HOME")
"""Beginnings of the names of variables with which a run is started again; others may hold secrets."""
_LOOK_SECONDS = 1.0
"""Time between two looks whether the turn of a run has come."""


class Place(NamedTuple):
    """The place of a run in the line; places sort in its order."""

    path: Path
    """The file that keeps it."""
    folder: Path
    """Folder of the run or of the sweep."""
    queue: str
    """Name of the queue, whose runs go one at a time; empty for none."""
    after: list[Path]
    """Folders of the runs that have to finish first."""
    command: list[str]
    """What starts the run again."""
    cwd: str
    """Working directory of the command."""

    def ahead(self) -> list[Path]:
        """List the runs that come first in the queue: what runs or waits there, and does not wait for other runs."""
        line = [one for one in places() if self.queue and one.queue == self.queue and one.path < self.path]
        return [one.folder for one in line if (is_locked(one.folder) or is_waiting(one.folder)) and not one.unmet()]

    def unmet(self) -> list[Path]:
        """List the runs that have to finish first, and have not."""
        return [run for run in self.after if look(run).state not in _WELL]

    def first(self) -> list[Path]:
        """List the runs whose end is waited for."""
        return [*self.unmet(), *self.ahead()[-1:]]

    def waits(self) -> str:
        """Say for which runs this one waits, and which place it has in its queue."""
        told = [f"place {1 + sum(map(is_waiting, self.ahead()))} in queue {self.queue}"] if self.queue else []
        told += [f"after {run_name(run)} ({look(run).state if run.exists() else 'gone'})" for run in self.first()]
        told += [] if is_locked(self.folder) else ["its process is gone; to start it:  lightkit ps --start-waiting"]
        return ", ".join(told)


def _home() -> Path:
    return project() / run_files.OUTPUTS / run_files.QUEUE


def places() -> list[Place]:
    """Return the line in its order, as far as this user has written it; what is from elsewhere counts for nothing."""
    found = list[Place]()
    for path in _home().glob("*.json"):
        with suppress(OSError, UnreadableError, KeyError, TypeError):
            content = parse_object(read_text(path))
            if is_ours(path.parent, content["place"], read_signature(content["mark"])):
                folder, queue, after, *more = json.loads(content["place"])
                found.append(Place(path, Path(folder), queue, [*map(Path, after)], *more))
    return sorted(found)


def find(folder: Path) -> Place | None:
    """Return the place of a run; None where it has none."""
    return next((place for place in places() if place.folder == folder.resolve()), None)


def join(folder: Path, queue: str, after: Sequence[Path], words: Sequence[str]) -> None:
    """Put a run at the end of the line.

    Args:
        folder: Its folder.
        queue: See `Place`.
        after: See `Place`.
        words: Arguments of lightkit that start the run again.

    Raises:
        UserError: It would wait for itself; or this user has no key by which the line could be told from one of
            somebody else.
    """
    leave(folder)
    first = [*after]
    for run in first:  # grows
        first += [other for place in places() if place.folder == run and is_waiting(run) for other in place.after]
        if run == folder.resolve():
            what, fix = "the run would wait for itself, and never start", "--after with runs that do not wait for it"
            raise UserError(what, key="--after", received=run_name(run), fix=fix, family="wrong-command")
    variables = [f"{name}={text}" for name, text in os.environ.items() if name.startswith(_KEPT)]
    command = ["env", *variables, f"PYTHONPATH={lightkit_path()}", f"{IN_LINE}=1", *lightkit_command(*words)]
    text = json.dumps([str(folder.resolve()), queue, [str(run) for run in after], command, str(Path.cwd())])
    if (mark := signer()(text)) is None and (problem := key_problem()):
        raise UserError(f"nothing could tell that the line is yours: {problem.what}", key="--queue", fix=problem.fix)
    number = max([time.time_ns(), *(int(place.path.stem) + 1 for place in places())])  # a clock may be set back
    _home().mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(_home() / f"{number}.json", json.dumps({"place": text, "mark": mark and mark._asdict()}), forced=True)


def leave(folder: Path) -> None:
    """Take a run out of the line, if it is in it: it is not started any more, and not gone on with by itself."""
    if place := find(folder):
        place.path.unlink(missing_ok=True)
        (folder / run_files.WAITING).unlink(missing_ok=True)


def _lock_of(queue: str) -> Path:
    return _home() / f"{slug(queue)}-{crc32(queue.encode()):08x}.lock"  # names of several queues may give one slug


def in_turn(folder: Path, work: Callable[[], int]) -> int:
    """Wait until the turn of a run has come, then do its work, in the process that holds the lock of its folder.

    Args:
        folder: Folder of the run.
        work: Returns the exit status of the run; raises nothing.

    Returns:
        That exit status; 0 where the run has left the line.
    """
    mark = folder / run_files.WAITING
    while place := find(folder):
        with (_lock_of(place.queue) if place.queue else place.path).open("ab") as turn:
            if not (first := place.first()) and take(turn):
                mark.unlink(missing_ok=True)
                if (code := work()) < of_signal(1):  # else it is to go on after a reboot, which may be what ended it
                    leave(folder)
                    start_waiting()
                return code
        mark.write_text(place.waits(), encoding="utf-8")
        if first:
            wait_until_free(first[0])
        start_waiting()
        time.sleep(_LOOK_SECONDS)
    return 0


def start_waiting(*, resume: bool = False) -> None:
    """Start the runs in the line whose process was killed while they waited.

    Args:
        resume: Also those that were under way when their process was ended with the machine.
    """
    for place in places():
        # A run that was stopped or has failed has left the line: this one is to go on.
        goes_on = is_waiting(place.folder) or (resume and look(place.folder).state in ("lost", "interrupted"))
        if goes_on and not is_locked(place.folder):
            # A folder may be gone, or not be there yet; the others are to start all the same.
            with suppress(OSError), (place.folder / run_files.OUTPUT_LOG).open("ab") as log:
                code = Child(place.command, cwd=place.cwd, output=log, own_session=False).wait()
                if 0 < code < IN_USE:  # what is wrong is in `output.log`; by that status somebody else has started it
                    leave(place.folder)


def survive_reboot() -> str:
    """Let systemd start after a reboot what waits then; return what the user is to know, empty for nothing."""
    words = ["/usr/bin/env", f"--chdir={project()}", f"PYTHONPATH={lightkit_path()}"]
    words += lightkit_command("ps", "--start-waiting")
    command = json.dumps(words, ensure_ascii=False, separators=(" ", ""))[1:-1]  # systemd reads the same escapes
    unit, template = _home() / f"lightkit-queue-{slug(str(project()))}.service", Path(__file__).with_suffix(".service")
    write_whole(unit, template.read_text().format(command=command.replace("%", "%%").replace("$", "$$")))
    if None in (output_of(["systemctl", "--user", *words]) for words in (["show-environment"], ["enable", str(unit)])):
        return "note: after a reboot, this starts what waits:  lightkit ps --start-waiting"
    return "" if ask().lingers else f"note: after a reboot it goes on when you log in; to go on without:  {LINGER}"
