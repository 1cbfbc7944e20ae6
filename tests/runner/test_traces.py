"""Where two runs part, by their traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightkit.common import run_files
from lightkit.runner.traces import Difference, first_difference


def write(folder: Path, *rows: dict[str, Any], member: str = "") -> None:
    place = folder / run_files.MEMBERS / member if member else folder
    place.mkdir(parents=True, exist_ok=True)
    (place / run_files.TRACE).write_text("".join(f"{json.dumps({'number': 0, **row})}\n" for row in rows))


def line(step: int, **facts: Any) -> dict[str, Any]:
    return {"phase": "step" if step else "start", "step": step, "rows": "a", "gradients": "b", "weights": "c", **facts}


@pytest.mark.parametrize(("fact", "what"), [("rows", "batch"), ("gradients", "gradient"), ("weights", "weight")])
def test_the_first_step_that_differs_of_those_that_both_have(tmp_path: Path, fact: str, what: str) -> None:
    write(tmp_path / "a", line(0), line(2), line(4), line(6, **{fact: "x"}), line(8))
    write(tmp_path / "b", line(0), line(3), line(6), line(9))
    assert first_difference(tmp_path / "a", tmp_path / "b", tmp_path) == Difference(6, "", what, None, 0)
    assert first_difference(tmp_path / "a", tmp_path / "a", tmp_path) is None
    (tmp_path / "c").mkdir()
    assert first_difference(tmp_path / "a", tmp_path / "c", tmp_path) is None


def test_each_member_has_its_own_and_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    for name, last in (("a", "c"), ("b", "x")):
        write(tmp_path / name, line(0), line(2), member="m0")
        write(tmp_path / name, line(0), {"step": []}, {"phase": 3}, line(2, weights=last), member="m1")
    assert first_difference(tmp_path / "a", tmp_path / "b", tmp_path) == Difference(2, "", "weight", None, 0, "m1")
