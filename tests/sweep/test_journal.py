from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.sweep.job import Job, JobOutcome
from lightkit.sweep.journal import Journal, find_job, read_head, read_journal


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


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep here"):
        read_journal(tmp_path)
    with pytest.raises(UserError, match="no sweep has planned a job here"):
        find_job(tmp_path / "1")
    (tmp_path / "sweep.jsonl").write_text(json.dumps({"event": "sweep", "format": 2}) + "\n")
    with pytest.raises(UserError, match="later version"):
        read_journal(tmp_path)
