"""A pseudo-terminal that can be closed, as a connection that breaks."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.warm import Running, Warm


@dataclass
class Terminal:
    """A command in a terminal of its own."""

    handle: int
    running: Running
    _shown: bytes = b""

    @classmethod
    def run(cls, warm: Warm, args: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> Terminal:
        """Start `lightkit ARGS` in a new terminal."""
        handle, inner = pty.openpty()
        running = warm.start(args, folder, [inner] * 3, variables={**os.environ, **(variables or {})}, terminal=True)
        os.close(inner)
        return cls(handle, running)

    @property
    def shown(self) -> str:
        """What was printed so far."""
        while self.handle >= 0 and select.select([self.handle], [], [], 0)[0]:
            try:
                data = os.read(self.handle, 65536)
            except OSError:  # nobody has it open on the other side any more
                break
            self._shown += data
        return self._shown.decode().replace("\r\n", "\n")

    def type(self, keys: bytes) -> None:
        os.write(self.handle, keys)

    def wait(self) -> int:
        """The exit status of the command, negative when a signal ended it."""
        code = self.running.wait()
        _ = self.shown
        return code

    def close(self) -> None:
        """Hang up."""
        if self.handle >= 0:
            _ = self.shown
            os.close(self.handle)
            self.handle = -1
