"""The process that finds out what a batch needs (`bench`), seen from the run that has started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from lightkit.common.errors import UserError
from lightkit.common.exit_codes import FAILED
from lightkit.common.processes import lightkit_command, lightkit_path

KEY = "device.batch_size"
_ALONE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher has told this process, and the one that measures must not know: it is alone."""
_KILLED = (-int(getattr(signal, "SIGKILL", 9)), 137)
_TAIL = 2000


class Child:
    """A process that measures, while inside; it does not outlive that.

    Args:
        job: What it has to know, in one line.
        command: Arguments of Python; none starts the process that measures.
    """

    def __init__(self, job: str, command: Sequence[str] = ()) -> None:
        self._job, self._command = job, command or lightkit_command("train", "--measure")[1:]

    def __enter__(self) -> Child:
        path = lightkit_path()
        env = {name: value for name, value in os.environ.items() if name not in _ALONE}
        self._said: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**env, "PYTHONPATH": path},
        )
        self._write(self._job)
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, self._said):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def answer(self) -> dict[str, Any]:
        """Wait for the first answer: facts of the run.

        Raises:
            UserError: The parts of the run cannot be built.
        """
        found = self._read()
        if found is None:
            raise self._lost()
        if "error" in found:
            raise UserError(found["error"], exit_code=found["exit_code"])
        return found

    def ask(self, *, size: int, window: int) -> dict[str, Any]:
        """Ask what a size needs; `peak` is null where it did not fit.

        Raises:
            UserError: The process ended, and not because memory ran out.
        """
        self._write(json.dumps({"size": size, "window": window}))
        found = self._read()
        if found is not None:
            return found
        if self._process.wait() in _KILLED:  # by the system, which had no memory left
            return {"size": size, "peak": None}
        raise self._lost()

    def _write(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has ended; what it said is read next
            self._process.stdin.write(f"{line}\n".encode())  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _read(self) -> dict[str, Any] | None:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        found: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return found

    def _lost(self) -> UserError:
        code = self._process.wait()
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _TAIL))
        said = self._said.read().decode(errors="replace").strip()
        what = f"the process that measures ended with status {code}" + (f":\n{said}" if said else "")
        return UserError(what, key=KEY, fix=f"{KEY}=null", exit_code=FAILED)
