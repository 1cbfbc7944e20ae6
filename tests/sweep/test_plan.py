from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import Composed, compose
from lightkit.runs.placement import job_names
from lightkit.sweep.job import JobOutcome, JobPlaces, check_folder, check_home
from lightkit.sweep.journal import Journal, Record, read_journal
from lightkit.sweep.plan import PlanChange, all_sweeps, command_of, compare, find_sweep, find_unfinished, store


def composed(*typed: str) -> list[Composed]:
    """Jobs that differ in what is typed."""
    return [compose(["data=wine", *text.split()]) for text in typed]


def planned(folder: Path, *typed: str) -> tuple[PlanChange, Record]:
    """Plan jobs in a folder, beside those that it has."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = (folder / "sweep.jsonl").exists()
    record = read_journal(folder) if begun else Record(folder)
    jobs = composed(*typed)
    change = compare([*zip(job_names(jobs), jobs)], record)
    with Journal(folder) as journal:
        journal.head(command=command_of(typed, source=None), options={})
        return change, store(journal, record, change)


def names(change: PlanChange) -> tuple[list[str], list[str]]:
    return [job.name for job in change.jobs], [job.name for job in change.added]


@pytest.mark.usefixtures("project")
def test_a_grid_grows_and_shrinks(tmp_path: Path) -> None:
    first, _ = planned(tmp_path / "s", "seed=0", "seed=1")
    assert names(first) == (["seed=0", "seed=1"], ["seed=0", "seed=1"])
    more, record = planned(tmp_path / "s", "seed=0 sweep.slots=2", "seed=2 sweep.slots=2")
    assert names(more) == (["seed=0", "seed=2"], ["seed=2"])
    assert more.removed == ("seed=1",)
    assert [*record.jobs] == ["seed=0", "seed=2"]
    again, record = planned(tmp_path / "s", "seed=1", "seed=2")
    assert names(again) == (["seed=1", "seed=2"], ["seed=1"])
    assert record.replanned == set()
    same, _ = planned(tmp_path / "s", "++seed=1", "seed=0 data.batch_size=16")  # by its configuration
    assert names(same)[0] == ["seed=1", "seed=0"]


@pytest.mark.usefixtures("project")
def test_other_settings_under_a_known_name(tmp_path: Path) -> None:
    planned(tmp_path / "s", "seed=0", "seed=1")
    planned(tmp_path / "s", "seed=1", "seed=2")
    for seeds in ((0, 3), (1, 2)):  # that of a removed job is a folder, too
        with pytest.raises(UserError, match="already holds a sweep with other settings"):
            planned(tmp_path / "s", *(f"seed={seed} optim.lr=0.5" for seed in seeds))
    change, record = planned(tmp_path / "s", "seed=0 optim.lr=0.5 resume=auto", "seed=1 optim.lr=0.5 resume=auto")
    assert names(change) == (["seed=0", "seed=1"], ["seed=0", "seed=1"])
    assert record.replanned == {"seed=0", "seed=1"}


@pytest.mark.usefixtures("project")
def test_sweeps_are_found(tmp_path: Path) -> None:
    base = tmp_path / "outputs" / "sweeps" / "2026-01-31"
    _, record = planned(base / "12-00-00-one", "seed=0")
    planned(base / "11-00-00-two", "seed=0")
    assert [folder.name for folder in all_sweeps(tmp_path)] == ["12-00-00-one", "11-00-00-two"]
    assert find_sweep("last", tmp_path).name == "11-00-00-two"
    assert find_sweep("one", tmp_path) == base / "12-00-00-one"
    with pytest.raises(UserError, match="no sweep here"):
        find_sweep("three", tmp_path)
    planned(base / "13-00-00-not-one", "seed=0")
    assert find_sweep("one", tmp_path) == base / "12-00-00-one", "what has the whole name is meant"
    shutil.rmtree(base / "13-00-00-not-one")
    command = command_of(["hydra.sweep.dir=x", "seed=0", "sweep.slots=2", "resume=auto"], source=None)
    assert find_unfinished(tmp_path, command) == base / "11-00-00-two"
    assert find_unfinished(tmp_path, {**command, "source": "x"}) is None
    with Journal(base / "11-00-00-two") as journal:
        journal.ended(JobOutcome("run", "pruned"), told=True)
    assert find_unfinished(tmp_path, command) is None
    assert record.jobs["run"].overrides == ("data=wine", "seed=0")


def test_jobs_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = JobPlaces(tmp_path)
    for name in ("a", "b/c", "b/d", "a", "A"):
        assert folders.place(name) == tmp_path / name
    for name in ("a/b", "b", "b/c/d"):
        with pytest.raises(UserError, match="into the folder of another one"):
            folders.place(name)
    other = JobPlaces(tmp_path)
    for name in "aA":
        (tmp_path / name).mkdir()
    other.place("a")
    monkeypatch.setattr(Path, "samefile", lambda *_: True)  # on a disk that does not tell capitals apart
    with pytest.raises(UserError, match="into the folder of another one"):
        other.place("A")


NAMES = (
    *("sweep.jsonl", "slurm", "Ray", "study", "optuna.journal", "results.csv", ".lock", ".mark", "checkpoints"),
    *("Members", "..", ".", "seed=0/", "n" * 300, "seed=0/../../mine", "../../../conf", None, 3),
)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_that_no_job_may_have(tmp_path: Path, name: object) -> None:
    with pytest.raises(UserError):
        JobPlaces(tmp_path).place(name)


def test_folders_that_are_there_for_something_else(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    check_folder(folder)
    folder.mkdir()
    check_folder(folder)
    (folder / "config.yaml").write_text("defaults: [model: mlp]\n")
    with pytest.raises(UserError, match="there for something else"):
        check_folder(folder)
    (folder / "output.log").touch()  # of a job that was killed at once
    check_folder(folder)


def test_a_sweep_in_the_folder_of_the_project(project: Path) -> None:
    for home in (project, project.parent):
        with pytest.raises(UserError, match="in the folder of the project"):
            check_home(home)
    check_home(project / "outputs")
