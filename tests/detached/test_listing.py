"""What is listed, and with what."""

from __future__ import annotations

import json
import os
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from lightkit.detached.folders import entry_of, list_entries
from lightkit.runs.lock import locked
from tests.detached.made import make_run, make_sweep, write_progress


def age(folder: Path) -> None:
    """Make a run one of long ago."""
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))


def test_what_is_alive_and_what_ended_within_a_day(project: Path) -> None:
    old, alive = make_run(project, "old", status="finished"), make_run(project, "alive")
    recent = make_run(project, "recent", status="failed", reason="why")
    age(old)
    age(alive)
    with locked(alive):
        entries, left_out = list_entries(project)
        assert [entry.standing.folder for entry in entries] == [alive, recent]
        assert left_out == 1
        everything, left_out = list_entries(project, everything=True)
    assert [entry.name for entry in everything] == ["alive", "old", "recent"]
    assert [entry.standing.state for entry in everything] == ["running", "finished", "failed"]
    assert (left_out, everything[2].standing.error) == (0, "why")


def test_the_length_of_a_run_in_epochs_is_what_it_wrote_at_its_start(project: Path) -> None:
    folder = make_run(project, status="interrupted", steps=8, epochs=1)
    for text, steps in (("[]", None), ('{"total_steps": "24"}', None), ("\udcff", None), ('{"total_steps": 24}', 24)):
        (folder / "environment.json").write_text(text, errors="surrogateescape")
        assert entry_of(folder).standing.total_steps == steps
    (folder / "config.yaml").write_text("trainer:\n  epochs: 3\n  steps: 40\n")
    assert entry_of(folder).standing.total_steps == 40


def test_what_an_earlier_part_left_counts_for_nothing_once_it_has_ended(project: Path) -> None:
    folder = make_run(project, status="finished", steps=24, epochs=3)
    write_progress(folder, 11, 24)
    entry = entry_of(folder)
    assert (entry.standing.step, entry.shown, entry.facts()["share"]) == (24, None, 1.0)


def test_all_that_is_known(project: Path) -> None:
    folder = make_run(project)
    write_progress(folder, 12, 24)  # not all steps are logged
    with locked(folder):
        facts = entry_of(folder).facts()
    died = entry_of(folder)
    assert (died.standing.state, died.standing.step, died.standing.total_steps, died.shown) == ("died", 12, 24, None)
    assert facts == {
        "name": "a",
        "kind": "run",
        "state": "running",
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "step": 12,
        "total_steps": 24,
        "epoch": 1,
        "error": "",
        "detached": False,
        "waits": "",
        "started": "2026-01-31 12:00:00",
        "share": 0.5,
        "eta_seconds": 65.0,
        "folder": str(folder),
    }


def test_when_a_sweep_of_any_name_began_and_what_jobs_at_once_share(project: Path) -> None:
    sweep = project / "outputs" / "mine"
    make_sweep(project, "seed=0").rename(sweep)
    lines = (sweep / "sweep.jsonl").read_text().splitlines(keepends=True)
    (sweep / "sweep.jsonl").write_text(json.dumps(json.loads(lines[0]) | {"time": 1.7e9}) + "\n" + "".join(lines[1:]))
    (sweep / ".together" / "a1").mkdir(parents=True)
    (sweep / ".together" / "a1" / "config.yaml").write_text("seed: 0\n")
    entries, _ = list_entries(project, everything=True)
    assert [entry.kind for entry in entries] == ["sweep", "job"]
    assert entries[0].standing.started == datetime.fromtimestamp(1.7e9)
    age_of_file = 1.6e9
    (sweep / "sweep.jsonl").write_text("[" * 100_000)
    os.utime(sweep / "sweep.jsonl", (age_of_file, age_of_file))
    assert entry_of(sweep).standing.started == datetime.fromtimestamp(age_of_file)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_journal_that_is_no_file_is_a_damaged_sweep(project: Path, kind: str) -> None:
    folder = project / "outputs" / "theirs"
    folder.mkdir(parents=True)
    path = folder / "sweep.jsonl"
    {"folder": path.mkdir, "pipe": partial(os.mkfifo, path), "link": partial(path.symlink_to, path)}[kind]()
    (entry,), _ = list_entries(project, everything=True)
    assert (entry.kind, entry.standing.state) == ("sweep", "damaged")
    assert entry.standing.error
