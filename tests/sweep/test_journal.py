from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.sweep.job import Job, JobOutcome
from lightkit.sweep.journal import Journal, find_job, read_events, read_head, read_journal

PLANNED = {"event": "planned", "name": "a", "overrides": [], "config": "name: a\n"}


def job(folder: Path, name: str, config: str = "seed: 0\n") -> Job:
    return Job(name, folder / name, (f"seed={name}",), config)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.head(command={"overrides": ["seed=1,2"]}, options={"slots": 2})
        journal.plan([job(tmp_path, "1"), job(tmp_path, "2")])
        journal.started("1", None)
        journal.ended(JobOutcome("1", "failed", {"val/loss": 0.5}, 3, 30, 4, "out of memory"), told=False)
        journal.started("1", "2", again="try 2 of 2")
        journal.ended(JobOutcome("1", "finished", {"val/loss": 0.5}, 4, 40), told=True)
        journal.remove(["2"])
        journal.head(options={"slots": 3})
    record = read_journal(tmp_path)
    assert record.jobs == {"1": job(tmp_path, "1")}
    assert record.told == [JobOutcome("1", "finished", {"val/loss": 0.5}, 4, 40)]
    assert record.head["command"] == {"overrides": ["seed=1,2"]}
    assert record.head["options"] == {"slots": 3}
    assert read_head(tmp_path)["options"] == {"slots": 2}


def test_a_line_that_a_kill_has_torn(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.head(command={}, options={})
        journal.plan([job(tmp_path, "1")])
    with journal.path.open("a") as file:
        file.write('{"event": "started", "na')
    assert read_journal(tmp_path).started == {}
    with Journal(tmp_path) as journal:
        journal.started("1", None)
    assert [*read_journal(tmp_path).started] == ["1"]


def test_a_job_that_is_planned_anew(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.head(command={}, options={})
        journal.plan([job(tmp_path, "1")])
        journal.ended(JobOutcome("1", "finished"), told=True)
        journal.plan([job(tmp_path, "1", "seed: 1\n")])
    record = read_journal(tmp_path)
    assert record.known == record.jobs
    assert (record.told, record.replanned, record.jobs["1"].config) == ([], {"1"}, "seed: 1\n")
    assert find_job(tmp_path / "1")[0].config == "seed: 1\n"


@pytest.mark.usefixtures("project")
def test_a_configuration_from_elsewhere_is_known_as_such(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.head(command={}, options={})
        journal.plan([job(tmp_path, "1")])
    assert find_job(tmp_path / "1") == (job(tmp_path, "1"), True)
    journal.path.write_text(journal.path.read_text().replace("seed: 0", "seed: 1"))
    assert find_job(tmp_path / "1") == (job(tmp_path, "1", "seed: 1\n"), False)


@pytest.mark.usefixtures("project")
def test_an_environment_that_was_changed_is_from_elsewhere(tmp_path: Path) -> None:
    """A variable of a job may be a library to load or a path to import from: it runs code as its configuration does."""
    with Journal(tmp_path) as journal:
        journal.head(command={}, options={})
        journal.plan([Job("1", tmp_path / "1", (), "seed: 0\n", {"SIDE": "left"}), job(tmp_path, "2")])
    assert all(map(read_journal(tmp_path).has_planned, ("1", "2")))
    text = journal.path.read_text()
    for changed in (text.replace("left", "right"), text.replace('"environment": {"SIDE": "left"}, ', "")):
        assert changed != text
        journal.path.write_text(changed)
        record = read_journal(tmp_path)
        assert not record.has_planned("1")
        assert record.has_planned("2")


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep here"):
        read_journal(tmp_path)
    with pytest.raises(UserError, match="no sweep has planned a job here"):
        find_job(tmp_path / "1")
    (tmp_path / "sweep.jsonl").write_text(json.dumps({"event": "sweep", "format": 2}) + "\n")
    with pytest.raises(UserError, match="later version"):
        read_journal(tmp_path)


def events(folder: Path, *lines: str) -> tuple[list[dict[str, Any]], list[str]]:
    (folder / "sweep.jsonl").write_text("".join(lines))
    damage = list[str]()
    return list(read_events(folder, damage)), damage


def test_a_torn_last_line_is_no_damage_and_events_of_later_versions_are_left_to_others(tmp_path: Path) -> None:
    whole, later = json.dumps(PLANNED), {"event": "moved", "name": ["a"], "time": None}
    lines = (json.dumps(later) + "\n", whole, "\n\n", whole[:-5])
    assert events(tmp_path, *lines) == ([later, PLANNED], [])


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
    read, damage = events(tmp_path, json.dumps(PLANNED | change) + "\n", json.dumps(PLANNED) + "\n")
    assert read == [PLANNED]
    (line,) = damage
    assert line.startswith("sweep.jsonl: line 1: ")
    assert re.search(said, line)


def test_a_pipe_in_the_place_of_a_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.jsonl")
    damage = list[str]()
    assert (list(read_events(tmp_path, damage)), damage) == ([], ["sweep.jsonl: not a regular file"])
