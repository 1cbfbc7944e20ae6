"""The tour, typed into a pseudo-terminal that is closed while the run goes on."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from lightkit.detached.liveness import look
from tests.docs.pages import ROOT, blocks
from tests.docs.pseudo_terminal import TypedTerminal
from tests.waiting import until
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


@pytest.fixture
def tools(warm: Warm, tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    forked = warm.client(folder / "forked", "-m", "lightkit")
    (folder / "lightkit").write_text(LIGHTKIT.format(warm=forked, python=sys.executable))
    (folder / "lightkit").chmod(0o755)
    return folder


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
