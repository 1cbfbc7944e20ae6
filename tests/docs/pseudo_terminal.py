"""A shell in a pseudo-terminal, which can be closed as a lost connection closes it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.docs.pages import ROOT, Block, Terminal
from tests.waiting import PATIENCE_SECONDS

_ESCAPE = re.compile(r"\x1b[\[\]][0-9;?]*[A-Za-z]?")


class Shell:
    """bash with a terminal of its own.

    Args:
        folder: Where it begins.
        tools: Programs that come before all others.
    """

    def __init__(self, folder: Path, tools: Path) -> None:
        self._count = 0
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            places = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
            env = {**os.environ, "PATH": os.pathsep.join(places), "TERM": "xterm", "PS1": "$ ", "COLUMNS": "120"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting"], env)

    def type(self, text: str) -> tuple[int, str]:
        """Type lines, wait until the shell has run them; returns the status and what was printed."""
        self._count += 1
        mark = f"done-{self._count}"
        # in quotes, so that the echo of the typed line is not taken for the end
        os.write(self.terminal, f"{text.rstrip()}\necho 'do''ne-{self._count}' $?\n".encode())
        end, seen = time.monotonic() + PATIENCE_SECONDS, ""
        # the prompt may stand before it
        while not (found := re.search(rf"{mark} (\d+)\r?\n", seen)):
            assert time.monotonic() < end, f"waited for the end of {text!r}:\n{seen}"
            if select.select([self.terminal], [], [], 1.0)[0]:
                seen += os.read(self.terminal, 65536).decode(errors="replace")
        return int(found[1]), _ESCAPE.sub("", seen).replace("\r", "")

    def close(self) -> None:
        """Take the terminal away: everything that belongs to it is told to hang up."""
        os.close(self.terminal)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGHUP)
            os.waitpid(self.pid, 0)


class TypedTerminal(Terminal):
    """Types the blocks of a page into one shell; `<!-- run: hangup -->` closes its terminal before and opens another.

    Args:
        folder: Where the project is made.
        tools: Programs that come before all others.
    """

    def __init__(self, folder: Path, tools: Path) -> None:
        super().__init__(folder, tools)
        self.shell = Shell(self.project, tools)

    def run(self, block: Block) -> tuple[int, str]:
        """Type a block."""
        if "hangup" in block.run:
            self.shell.close()
            self.shell = Shell(self.project, self.tools)
        status, printed = self.shell.type(block.code)
        return status, printed.replace(str(self.project), "~/project").replace(str(ROOT), "~/lightkit")
