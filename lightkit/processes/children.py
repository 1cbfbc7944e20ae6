"""Starting other processes, with what they say, and ending them; programs that are asked one question.

Also how many may run at once, and which is stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

NOTHING, PIPE = subprocess.DEVNULL, subprocess.PIPE
"""In the place of a file: what is written is lost; lines go to and fro."""
Hung = subprocess.TimeoutExpired
"""What `Child.wait` raises where a process has not ended in time."""
_WITHOUT_HERE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from runpy import run_module; run_module('lightkit', run_name='__main__', alter_sys=True)"
)
_TAIL = 8000


def lightkit_command(*args: str) -> list[str]:
    """Return the command that runs lightkit, for a process that finds modules in the same places as this one.

    `python -m` looks into the working directory first, which may be a folder that came from elsewhere.

    Args:
        *args: Arguments of lightkit.
    """
    here = Path.cwd()
    is_searched = any(Path(entry).resolve() == here for entry in sys.path)
    return [sys.executable, *(["-m", "lightkit"] if is_searched else ["-c", _WITHOUT_HERE]), *args]


def lightkit_path() -> str:
    """Return the `PYTHONPATH` with which another process finds this lightkit."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))


class Child(subprocess.Popen[bytes]):
    """A process, started at once.

    Args:
        command: Its words.
        stdin: What it reads: `PIPE` for what `tell` sends, or a number of an open file.
        output: Takes what it prints: an open file, `NOTHING` or `PIPE`; None is where this process prints.
        keeps: Whether the end of its standard error is kept for `said`, and goes nowhere else.
        variables: Its environment; None for that of this process.
        own_session: Whether it leaves the session of this process: a signal from the terminal then reaches it once,
            through here, and `end` ends what it has started, too.
        **options: Further ones of `subprocess.Popen`.

    Attributes:
        said: What it said last, after `end`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = NOTHING,
        output: IO[bytes] | int | None = None,
        keeps: bool = False,
        variables: Mapping[str, str] | None = None,
        own_session: bool = True,
        **options: Any,
    ) -> None:
        import tempfile

        self.said = ""
        self._own_session = own_session and hasattr(os, "killpg")
        self._kept: IO[bytes] | None = tempfile.TemporaryFile() if keeps else None  # noqa: SIM115
        errors = output if self._kept is None else self._kept
        options |= {"stdin": stdin, "stdout": output, "stderr": errors, "start_new_session": own_session}
        super().__init__(command, env=variables, **options)

    def tell(self, line: str) -> None:
        """Send a line to its standard input; one that has ended already has said why."""
        assert self.stdin is not None
        with suppress(BrokenPipeError):
            self.stdin.write(f"{line}\n".encode())
            self.stdin.flush()

    def end(self) -> None:
        """Kill it, with all of a session of its own, if it still runs; wait, and close what leads to it."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL) if self._own_session else self.kill()
        self.wait()
        if self._kept is not None:
            self._kept.seek(max(0, self._kept.seek(0, os.SEEK_END) - _TAIL))
            self.said = self._kept.read().decode(errors="replace").strip()
        for stream in (self.stdin, self.stdout, self._kept):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        self._kept = None


def run(
    command: Sequence[str], *, cwd: Path | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its exit status and what it printed.

    Args:
        command: Its words.
        cwd: Its working directory.
        timeout: Seconds after which it is killed.

    Raises:
        OSError: There is no such program.
    """
    text: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "stdin": NOTHING, "capture_output": True}
    return subprocess.run(command, cwd=cwd, timeout=timeout, check=False, **text)


def output_of(command: Sequence[str], *, timeout: float = 10.0) -> str | None:
    """Return what a program prints; None where it is missing, fails, or hangs for so many seconds."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = run(command, timeout=timeout)
        return done.stdout if done.returncode == 0 else None
    return None


def usable_cpus() -> int:
    """Count the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped (SIGSTOP, Ctrl-Z) until somebody lets it go on; False where that is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, ValueError, IndexError):
        return False
