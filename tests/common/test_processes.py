from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.common.processes import lightkit_command, own_part, usable_cpus
from tests.conftest import ROOT
from tests.waiting import PATIENCE_SECONDS


def test_a_process_searches_where_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("json", "argparse", "lightkit"):  # all of them would come before those that are meant
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working directory')\n")
    done = subprocess.run(
        lightkit_command("--version"), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert lightkit_command("eval", "last") == [sys.executable, "-m", "lightkit", "eval", "last"]


@pytest.mark.parametrize(("size", "ranks"), [(8, 2), (7, 2), (7, 3), (2, 3), (1, 4), (5, 5)])
def test_parts_are_neighbours_and_cover_the_batch(size: int, ranks: int) -> None:
    parts = [own_part(size, rank, ranks) for rank in range(ranks)]
    covered = [position for first, count in parts for position in range(first, first + count)]
    assert covered == list(range(size))
    counts = [count for _, count in parts]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


def test_there_is_a_processor_to_use() -> None:
    assert usable_cpus() >= 1
