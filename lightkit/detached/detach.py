"""Carrying work out in a process that belongs to no terminal: two forks, a session of its own, its output in a file."""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from lightkit.common import run_files
from lightkit.common.errors import FAILED, UserError
from lightkit.processes.children import output_of
from lightkit.processes.files import without_links
from lightkit.processes.forks import fork_away
from lightkit.runs.lock import in_use, locked, read_lock, wait_for_lock

IN_LINE = "LIGHTKIT_IN_LINE"
"""Set for a process that is to take the place that its run has in the line; where it has none it does nothing."""
PATIENCE_SECONDS = 5.0
"""After this time whoever waits is told that the work has not begun yet."""
_POLL_SECONDS = 0.05
_ENDING_SECONDS = 2.0
"""A process that is killed closes its pipe a moment before its lock."""
_OURS = frozenset({run_files.JOB_LOCK, run_files.OUTPUT_LOG, run_files.WAITING})
"""What a detached process leaves in a folder before it has begun to write to it."""


@dataclass(frozen=True)
class Detached:
    """Work that was begun in another process.

    Attributes:
        pid: The process.
        code: Its exit status, where it has ended before it had begun or as soon as that; None where it goes on.
        said: What it printed until then.
    """

    pid: int | None
    code: int | None
    said: str = ""


def detach(
    folder: Path,
    work: Callable[[], int],
    *,
    guard: Callable[[Callable[[], int]], int],
    slow: Callable[[], None] = lambda: None,
) -> Detached:
    """Carry out work in a process that outlives the terminal, and wait until it has begun to write.

    The other process never comes back from here: it ends with the exit status of the work. It holds a lock of the
    folder from its first moment to its last, ignores hang-ups, and writes what it prints to `output.log`.

    Args:
        folder: Where the work writes; made where it is missing.
        work: Returns an exit status.
        guard: Calls the work, prints what is wrong with it, and returns its exit status in any case.
        slow: Called once where it takes long until the work has begun.

    Returns:
        What came of it, to the process that called.

    Raises:
        UserError: Another process works in the folder (exit code 75), or there is no way to leave a terminal.
        KeyboardInterrupt: Somebody typed Ctrl-C before it had begun; it was ended.
        SystemExit: In the other process, at its end.
    """
    if not hasattr(os, "fork"):
        what, fix = "this system has no processes that outlive their terminal", "leave it out"
        raise UserError(what, key="--detach", fix=fix, family="wrong-command")
    from lightkit.runs.folder import writing

    for name in (run_files.LOCK, run_files.JOB_LOCK):
        if (lock := read_lock(folder, name)) is not None and lock.is_held:
            raise in_use(folder, lock.told)
    with writing(folder / run_files.OUTPUT_LOG):
        folder.mkdir(parents=True, exist_ok=True)
        log = without_links(folder / run_files.OUTPUT_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    before = os.fstat(log).st_size
    receive, send = os.pipe()
    middle = fork_away(partial(_carry_out, folder, work, guard, receive, send), log)
    os.close(send)
    os.close(log)
    try:
        pid, code = _Handshake(folder, receive).wait(middle, slow)
    finally:
        os.close(receive)
    return Detached(pid, code, "" if code is None else _said(folder, before))


def tidy(folder: Path) -> None:
    """Remove what a detached process has left that never began; one with more in it, or at work, stays."""
    with suppress(OSError):
        is_ours = {path.name for path in folder.iterdir()} <= _OURS
        if is_ours and wait_for_lock(folder, run_files.JOB_LOCK, _ENDING_SECONDS):
            for name in _OURS:
                (folder / name).unlink(missing_ok=True)


def _carry_out(
    folder: Path, work: Callable[[], int], guard: Callable[[Callable[[], int]], int], receive: int, send: int
) -> int:
    """Do the work, and tell the waiting process what it needs to know: that it is locked, and how it ended."""
    os.close(receive)
    os.register_at_fork(after_in_child=lambda: _close(send))  # a worker that is left over would keep it open

    def tell(what: str, number: int) -> None:
        with suppress(OSError):  # nobody waits any more
            os.write(send, f"{what} {number}\n".encode())

    def held() -> int:
        with locked(folder, run_files.JOB_LOCK, detached=True):
            tell("pid", os.getpid())
            return work()

    code = FAILED
    try:
        code = guard(held)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        tell("code", code)
    return code


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


@dataclass
class _Handshake:
    """The side that waits until the work has begun.

    Args:
        folder: Where the work writes.
        receive: The pipe from its process.
        told: What came by it: the number of the process, `pid`, once it holds the lock, and its exit status, `code`.
    """

    folder: Path
    receive: int
    told: dict[str, int] = field(default_factory=dict)

    def wait(self, middle: int, slow: Callable[[], None]) -> tuple[int | None, int | None]:
        """Return the number of the process and, where it has ended, its exit status.

        Args:
            middle: The process between that one and this, which ends at once.
            slow: See `detach`.
        """
        patient_until = time.monotonic() + PATIENCE_SECONDS
        try:
            os.waitpid(middle, 0)
            while not self._is_over() and not self._has_begun():
                if time.monotonic() > patient_until:
                    patient_until = float("inf")
                    slow()
        except KeyboardInterrupt:  # end the process, and wait until it has
            while not self.told:
                self._is_over()
            with suppress(OSError, KeyError):
                os.kill(self.told["pid"], signal.SIGTERM)
            while not self._is_over():
                pass
            raise
        return self.told.get("pid"), self.told.get("code")

    def _is_over(self) -> bool:
        """Listen for a moment, and tell whether the process has ended; one that was killed does not say how."""
        if "code" not in self.told and select.select([self.receive], [], [], _POLL_SECONDS)[0]:
            lines = os.read(self.receive, 4096).decode().splitlines()
            self.told |= {what: int(number) for what, number in map(str.split, lines)} or {"code": FAILED}
        return "code" in self.told

    def _has_begun(self) -> bool:
        """Tell whether the work has written down what it does, or that it waits, under the lock of its folder."""
        if "pid" not in self.told:
            return False
        patterns = [run_files.ENVIRONMENT, run_files.SWEEP_JOURNAL, run_files.WAITING]
        if not (self.folder / run_files.SWEEP_JOURNAL).is_file():
            patterns += [f"{above}/{run_files.ENVIRONMENT}" for above in ("*", "*/*")]
        with suppress(OSError):  # one may go as we look
            since = (self.folder / run_files.JOB_LOCK).stat().st_mtime  # written as it is locked
            return any(path.stat().st_mtime >= since for text in patterns for path in self.folder.glob(text))
        return False


def _said(folder: Path, before: int) -> str:
    """Return what the process has printed into a file that had so many bytes before."""
    with suppress(OSError), (folder / run_files.OUTPUT_LOG).open("rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace").rstrip()
    return ""


CGROUP = Path("/proc/self/cgroup")
LINGER = "loginctl enable-linger"
"""The command that lets a user's services go on when nobody is logged in; systemd keeps that for good."""
_SCOPE = ("systemd-run", "--user", "--scope", "--quiet")

Fate = Literal["stays", "scope", "killed", "killed with the last session"]
"""What becomes of a process at logout. `scope`: it is killed, but not in a scope of the user's own."""


@dataclass(frozen=True)
class Logind:
    """What `loginctl` says.

    Attributes:
        kills: Whether processes that are left over of this user are killed when a session ends.
        lingers: Whether the user's services go on when no session is left.
    """

    kills: bool
    lingers: bool


def fate() -> Fate:
    """Tell what becomes of the processes of this login session when its user logs out."""
    place = ""
    with suppress(OSError):
        place = CGROUP.read_text(encoding="utf-8")
    in_session = re.search(r"/session-[^/\s]+\.scope", place) is not None
    in_manager = f"/user@{os.getuid()}.service" in place
    if not (in_session or in_manager):
        return "stays"
    found = ask()
    if in_manager:  # it ends with the user's last session, and takes along everything it has started
        return "stays" if found.lingers else "killed with the last session"
    if not found.kills:
        return "stays"
    return "scope" if found.lingers else "killed"


def ask() -> Logind:
    """Ask the service that keeps the sessions; where there is none nothing is killed."""
    user = pwd.getpwuid(os.getuid()).pw_name
    manager = _properties("show-session", "KillUserProcesses", "KillExcludeUsers", "KillOnlyUsers")
    only = manager.get("KillOnlyUsers", "").split()
    kills = user in only if only else manager.get("KillUserProcesses") == "yes"
    kills = kills and user not in manager.get("KillExcludeUsers", "").split()
    own = _properties("show-user", "Linger", of=[user])
    lingers = own.get("Linger") == "yes" or Path("/var/lib/systemd/linger", user).exists()
    return Logind(kills, lingers)


def scope_command(command: Sequence[str]) -> list[str] | None:
    """Return a command that runs another one in a scope of the user's own; None where that does not work here."""
    folder = f"/run/user/{os.getuid()}"
    if "XDG_RUNTIME_DIR" not in os.environ and Path(folder).is_dir():
        os.environ["XDG_RUNTIME_DIR"] = folder  # after `su` it is missing
    return [*_SCOPE, *command] if output_of([*_SCOPE, "true"]) is not None else None


def _properties(command: str, *names: str, of: Sequence[str] = ()) -> dict[str, str]:
    options = [f"--property={name}" for name in names]
    lines = (output_of(["loginctl", command, *options, *of]) or "").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
