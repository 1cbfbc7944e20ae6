"""The tour, typed into a pseudo-terminal that is closed while the run goes on."""

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

import pytest

from lightkit.detached.liveness import look
from tests.docs.pages import ROOT, Block, Terminal, blocks
from tests.waiting import PATIENCE_SECONDS, until
from tests.warm import Warm

PAGE = "docs/start/tour.md"
LIGHTKIT = """\
#!/bin/bash
case "$1" in
  show|doctor|find|summary|ps|logs) exec "{warm}" "$@" ;;
  *) exec "{python}" -m lightkit "$@" ;;
esac
"""
"""What outlives its terminal, and what ends that, starts as ever; what only looks starts in milliseconds."""


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


@pytest.fixture
def tools(warm: Warm, tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    forked = warm.client(folder / "forked", "-m", "lightkit")
    (folder / "lightkit").write_text(LIGHTKIT.format(warm=forked, python=sys.executable))
    (folder / "lightkit").chmod(0o755)
    return folder


@pytest.mark.thorough(first=0)
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals")
@pytest.mark.timeout(1500)
def test_tour(tmp_path: Path, tools: Path) -> None:
    terminal = TypedTerminal(tmp_path, tools)
    try:
        for block in blocks(ROOT / PAGE):
            status, text = terminal.run(block)
            assert (status, "Traceback" in text) == (0, False), f"{block.place}: status {status}\n{text}"
            _check(block.code, text, terminal)
    finally:
        terminal.shell.type("lightkit stop tour --now; lightkit board tour --stop")
        terminal.shell.close()
    project = terminal.project
    assert (project / "outputs" / "show" / "digits_mlp" / "data-train.png").is_file()
    run = next((project / "outputs" / "runs").glob("*/*-tour"))
    assert (run / "show" / "worst-val.html").is_file()
    assert look(run).state == "interrupted"
    shown = {path.name for path in (project / "outputs").iterdir() if not path.name.startswith(".")}
    assert shown == {"find", "runs", "show"}


def _check(code: str, text: str, terminal: TypedTerminal) -> None:
    """Look at what the page claims at this place."""
    run = next((terminal.project / "outputs" / "runs").glob("*/*-tour"), None)
    if "train -d" in code or "resume -d" in code:
        assert run is not None
        before = look(run).step or 0
        until(lambda: (look(run).step or 0) > before, "steps")  # `logs` has something to show then
    elif code.startswith("lightkit ps"):
        assert "running" in text
    elif code.startswith("lightkit logs"):
        assert re.search(r"\d+/\d+ +\d+/\d+ +\d\.\d+", text)  # rows of the table of epochs
    elif code.startswith("lightkit board tour --detach"):
        assert "ssh -" in text
    elif code.startswith("lightkit stop"):
        assert run is not None
        assert look(run).state == "interrupted"
