from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.sweep.job import JobPlaces, check_folder, check_home


def test_jobs_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = JobPlaces(tmp_path)
    for name in ("a", "b/c", "b/d", "a", "A"):
        assert folders.place(name) == tmp_path / name
    for name in ("a/b", "b", "b/c/d"):
        with pytest.raises(UserError, match="into the folder of another one"):
            folders.place(name)


def test_a_disk_that_does_not_tell_capitals_apart(tmp_path: Path) -> None:
    folders = JobPlaces(tmp_path)
    folders.place("a").mkdir()
    folders.place("A").mkdir()  # this disk does
    (tmp_path / "A").rmdir()
    other = JobPlaces(tmp_path)
    other.place("a")
    other._names = {"a": "ä"}  # what the disk takes for the same
    (tmp_path / "ä").symlink_to("a")
    with pytest.raises(UserError, match="into the folder of another one"):
        other.place("a")


@pytest.mark.parametrize("name", ["sweep.jsonl", "slurm", "Ray", "study", "optuna.journal", "results.csv", ".lock"])
def test_what_belongs_to_the_sweep(tmp_path: Path, name: str) -> None:
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
