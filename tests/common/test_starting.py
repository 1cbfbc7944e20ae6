from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.common.starting import lightkit_command
from tests.conftest import ROOT


def test_a_process_searches_where_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("json", "argparse", "lightkit"):  # all of them would come before those that are meant
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working directory')\n")
    done = subprocess.run(lightkit_command("--version"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert lightkit_command("eval", "last") == [sys.executable, "-m", "lightkit", "eval", "last"]
