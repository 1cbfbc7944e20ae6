"""Jobs that start in a fraction of a second, as seen by the sweep: a server forks each of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lightkit.common import run_files
from lightkit.processes.children import NOTHING, Child, Hung, lightkit_command

TIED_TO = "LIGHTKIT_SWEEP_PROCESS"
"""Variable that names the process with which a job saves and ends."""
HANG_SECONDS = 300.0
"""How long a job that has not begun to train may do nothing at all."""
_LOOKS = 20
"""How often is looked in that time whether a job does something."""
_POLL_SECONDS = 0.02


def can_fork() -> bool:
    """Tell whether this system can start jobs so."""
    return sys.platform.startswith("linux") and hasattr(os, "pidfd_open")


class WarmJob:
    """A process that was forked, with what is used of `Child`.

    Args:
        server: What forks it.
        pulse: Finds out whether it hangs.

    Attributes:
        pid: Its number; None until it was forked.
        returncode: Its exit status, negative where a signal ended it; None while it runs.
        lost: Whether it ended without having run as it should: it was not forked, hung before it trained, or ended
            with the server.
        why: Which of these.
    """

    def __init__(self, server: WarmServer, pulse: Pulse) -> None:
        self.pid: int | None = None
        self.returncode: int | None = None
        self.lost = False
        self.why = ""
        self._server = server
        self._pulse = pulse
        self._handle = -1  # of this very process, where a number may be another's by now
        self._waiting = list[int]()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None:
            self._server.look()
        if self.returncode is None and self._pulse.has_stopped(self.pid or self._server.pid):
            self.lost, self.why = True, "one has hung before it trained"
            self.kill()
        return self.returncode

    def wait(self) -> int:
        """Return the exit status when it has ended."""
        while (code := self.poll()) is None:
            time.sleep(_POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, as soon as it was forked."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. Where it was not forked yet, this ends the server."""
        self._send(signal.SIGKILL)
        if self.pid is None:
            self._server.kill()

    def _send(self, number: int) -> None:
        if self.pid is None:
            self._waiting.append(number)
        elif self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def forked(self, pid: int, handle: int) -> None:
        """Take the process that was forked."""
        self.pid, self._handle = pid, handle
        for number in self._waiting:
            self._send(number)

    def ended(self, code: int, *, lost: str = "") -> None:
        """Take the end of the process, and why it has not run as it should where it has not."""
        self.returncode, self.lost, self.why = code, self.lost or bool(lost), self.why or lost
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def is_gone(self) -> bool:
        """Tell whether there is no such process, or none any more."""
        return self._handle < 0 or bool(select.select([self._handle], [], [], 0)[0])


class WarmServer:
    """Starts the process that forks jobs, and talks with it. It ends with this process.

    Args:
        variables: Its environment, which all jobs have in common.
        hang_seconds: How long a job that has not begun to train may do nothing at all.
    """

    def __init__(self, variables: Mapping[str, str], hang_seconds: float = HANG_SECONDS) -> None:
        self._open = True
        self._hang_seconds = hang_seconds
        self._jobs = dict[int, WarmJob]()
        self._count = 0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            own = {**variables, TIED_TO: str(os.getpid())}
            command = lightkit_command("train", "--warm")
            self._process = Child(command, stdin=theirs.fileno(), output=NOTHING, variables=own)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def fork(self, args: Sequence[str], folder: Path, variables: Mapping[str, str], log: IO[bytes]) -> WarmJob:
        """Let a job be forked.

        Args:
            args: Arguments of lightkit.
            folder: Where the job writes what shows that it trains.
            variables: Of its environment, beside those of the server.
            log: Takes what it prints.
        """
        job = WarmJob(self, Pulse(folder, self._hang_seconds))
        self._count += 1
        self._jobs[self._count] = job
        request = {"job": self._count, "args": args, "variables": variables}
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [log.fileno()])
        except OSError:  # it is gone
            self._close()
        return job

    def look(self) -> None:
        """Take what the server has said of its jobs."""
        while self._open and select.select([self._channel], [], [], 0)[0]:
            try:
                text, handles, _, _ = socket.recv_fds(self._channel, 1 << 16, 1)
            except OSError:
                text, handles = b"", []
            if text:
                self._take(json.loads(text), handles)
            else:
                self._close()
        if not self._open:  # what it has forked saves and ends with it
            for number in [number for number, job in self._jobs.items() if job.is_gone()]:
                self._jobs.pop(number).ended(-signal.SIGKILL, lost="the process that forks has ended")

    def _take(self, said: Mapping[str, Any], handles: Sequence[int]) -> None:
        number = said["job"]
        if "pid" in said:
            self._jobs[number].forked(said["pid"], handles[0])
        elif "code" in said:
            self._jobs.pop(number).ended(said["code"])
        else:
            self._jobs.pop(number).ended(-signal.SIGKILL, lost=said["refused"])

    def _close(self) -> None:
        self._open = False
        self._channel.close()
        with contextlib.suppress(Hung):
            self._process.wait(1.0)

    def kill(self) -> None:
        """End the process, and with it what it has forked, which saves first."""
        self._process.kill()

    def close(self) -> None:
        """End the process when no job runs any more."""
        self._close()
        self._process.end()


class Pulse:
    """Finds out whether a process hangs before it trains: it has written nothing, and neither computes nor reads.

    A job that is slow, however slow, uses time of a processor or waits for a disk; only what does neither for long is
    taken for one that hangs. When a job has written a first value or a result, it is never asked again.

    Args:
        folder: The folder of a job.
        seconds: How long it may do nothing.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._paths = (folder / run_files.METRICS, folder / run_files.RESULT)
        self._seconds = seconds
        self._before = self._written()
        self._pid, self._used = 0, -1.0
        self._idle = 0.0
        self._last = time.monotonic()
        self._trains = False

    def has_stopped(self, pid: int) -> bool:
        """Tell whether the process hangs, and all that it has started."""
        now, between = time.monotonic(), self._seconds / _LOOKS
        if self._trains or now - self._last < between:
            return False
        # No more than twice the time between two looks: this process may have been stopped itself.
        passed, self._last = min(now - self._last, 2 * between), now
        self._trains = self._written() != self._before
        used, waits = _activity(pid)
        if self._trains or waits or (pid, used) != (self._pid, self._used):
            self._pid, self._used, self._idle = pid, used, 0.0
        else:
            self._idle += passed
        return self._idle >= self._seconds

    def _written(self) -> list[tuple[int, int, int]]:
        found = []
        for path in self._paths:
            with contextlib.suppress(OSError):
                facts = path.stat()
                found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return found


def _activity(pid: int) -> tuple[float, bool]:
    """Return processor time of a process and all below it, and whether one waits for it or a disk, or is stopped."""
    children, facts = dict[int, list[int]](), dict[int, list[str]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            facts[int(path.parent.name)] = fields = path.read_text("latin-1").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    known = [facts[number] for number in found if number in facts]
    return sum(int(time) for fields in known for time in fields[11:15]), any(fields[0] in "RDTt" for fields in known)
