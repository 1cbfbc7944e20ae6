from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lightkit.sweep.journal import read_events

PLANNED = {"event": "planned", "name": "a", "overrides": [], "config": "name: a\n"}


def _read(folder: Path, *lines: str) -> tuple[list[dict[str, Any]], list[str]]:
    (folder / "sweep.jsonl").write_text("".join(lines))
    damage = list[str]()
    return list(read_events(folder, damage)), damage


def test_events_of_later_versions_are_left_to_whoever_knows_them(tmp_path: Path) -> None:
    later = {"event": "moved", "name": ["a"], "time": None}
    assert _read(tmp_path, json.dumps(later) + "\n") == ([later], [])


def test_a_torn_last_line_is_no_damage(tmp_path: Path) -> None:
    whole = json.dumps(PLANNED)
    assert _read(tmp_path, whole, "\n\n", whole[:-5]) == ([PLANNED], [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"event": 1}, "`event` is not a text"),
        ({"event": None}, "`event` is missing"),
        ({"name": 1}, "`name` is not a text"),
        ({"name": None}, "`name` is missing"),
        ({"config": {}}, "`config` is not a text"),
        ({"overrides": [1]}, "`overrides` is not a list of texts"),
        ({"environment": {"A": 1}}, "`environment` is not an object of texts"),
        ({"event": "started"}, "`time` is missing"),
        ({"event": "ended", "status": "lost"}, "`status` is not one of finished, .*, `values` is missing, .*"),
        ({"event": "sweep", "options": None}, "`options` is missing"),
        ({"event": "sweep", "time": "now"}, "`time` is not a number"),
    ],
)
def test_a_damaged_line_is_told_and_costs_no_other(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    events, damage = _read(tmp_path, json.dumps(PLANNED | change) + "\n", json.dumps(PLANNED) + "\n")
    assert events == [PLANNED]
    (line,) = damage
    assert line.startswith("sweep.jsonl: line 1: ")
    assert re.search(said, line)


def test_a_pipe_in_the_place_of_a_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.jsonl")
    damage = list[str]()
    assert not list(read_events(tmp_path, damage))
    assert damage == ["sweep.jsonl: not a regular file"]
