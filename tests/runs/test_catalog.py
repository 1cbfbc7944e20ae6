from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.runs import catalog as folders
from lightkit.runs.catalog import (
    all_runs,
    chosen_run_folder,
    discard_if_empty,
    find_run,
    new_run_folder,
    run_name,
    slug,
    started,
)


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still."""

    class Noon(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Noon:
            return cls(2026, 1, 31, 12, 0, 0)

    monkeypatch.setattr(folders, "datetime", Noon)


def a_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: run\n")
    return folder


@pytest.mark.usefixtures("noon")
def test_runs_of_one_second_get_their_own_folders(tmp_path: Path) -> None:
    made = [new_run_folder(tmp_path, "my run") for _ in range(3)]
    day = tmp_path / "outputs" / "runs" / "2026-01-31"
    assert made == [day / "12-00-00-my-run", day / "12-00-00-my-run-2", day / "12-00-00-my-run-3"]


def test_unwritable_outputs(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot create the run folder|not a folder"):
        new_run_folder(tmp_path, "run")


def test_read_only_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="cannot create the run folder: Permission denied"):
        new_run_folder(tmp_path, "run")


def test_a_chosen_folder_must_not_hold_a_run(tmp_path: Path) -> None:
    assert chosen_run_folder(tmp_path / "a" / "b").is_dir()
    assert chosen_run_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    with pytest.raises(UserError, match="already holds a run"):
        chosen_run_folder(a_run(tmp_path / "old"))


def test_of_a_run_that_saved_nothing_resume_is_not_what_helps(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "old")
    with pytest.raises(UserError, match="resume=auto, as it has saved nothing yet, or another folder"):
        chosen_run_folder(folder)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-00000001.pt").touch()
    with pytest.raises(UserError, match="fix: +lightkit resume"):
        chosen_run_folder(folder)


def test_only_empty_folders_are_discarded(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path, "run")
    neighbour = a_run(folder.parent / "neighbour")
    discard_if_empty(folder, tmp_path)
    assert not folder.exists()
    discard_if_empty(neighbour, tmp_path)
    assert neighbour.is_dir()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b/c", "a-b-c"),
        ("../..", "run"),
        ("", "run"),
        ("optim.lr=0.1,seed=2", "optim.lr=0.1,seed=2"),
        ("Größe", "Größe"),
        ("x" * 500, "x" * 120),
    ],
)
def test_slug(text: str, expected: str) -> None:
    assert slug(text) == expected


def test_runs_are_found_by_path_name_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = tmp_path / "outputs"
    middle = a_run(outputs / "runs" / "2026-01-02" / "12-00-00-a")
    newest = a_run(outputs / "sweeps" / "2026-01-03" / "09-00-00-s" / "seed=1")
    oldest = a_run(outputs / "runs" / "2026-01-01" / "23-00-00-b")
    monkeypatch.chdir(middle.parent)
    assert all_runs(tmp_path) == [oldest, middle, newest]
    assert find_run("last", tmp_path) == newest
    assert find_run(str(oldest), tmp_path) == oldest
    assert find_run("12-00-00-a", tmp_path) == middle
    assert find_run("outputs/runs/2026-01-01/23-00-00-b", tmp_path) == oldest
    assert find_run("runs/2026-01-01/23-00-00-b", tmp_path) == oldest
    assert find_run("23-00-00-b", tmp_path) == oldest


def test_unknown_run_names_the_nearest(tmp_path: Path) -> None:
    a_run(tmp_path / "outputs" / "runs" / "2026-01-01" / "10-00-00-digits")
    with pytest.raises(UserError, match=r"no run here.*\n.*\n.*nearest: 10-00-00-digits"):
        find_run("10-00-00-digit", tmp_path)
    with pytest.raises(UserError, match="no run here"):
        find_run("last", tmp_path / "empty")


def test_a_name_that_two_runs_have(tmp_path: Path) -> None:
    for day in ("01", "02"):
        a_run(tmp_path / "outputs" / "runs" / f"2026-01-{day}" / "10-00-00-run")
    with pytest.raises(UserError, match="several runs have this name"):
        find_run("10-00-00-run", tmp_path)


def noted(folder: Path, time: datetime) -> Path:
    """A run whose record says when it was started."""
    a_run(folder)
    (folder / "environment.json").write_text(json.dumps({"time": f"{time.astimezone():%Y-%m-%dT%H:%M:%S%z}"}))
    return folder


def test_a_run_outside_the_dates_has_its_own_time(tmp_path: Path) -> None:
    runs = tmp_path / "outputs" / "runs"
    demo = noted(runs / "demo", datetime(2026, 1, 2, 11))
    late = a_run(runs / "2026-01-02" / "12-00-00-a")
    early = a_run(runs / "2026-01-02" / "10-00-00-a")
    bare = a_run(runs / "bare")
    os.utime(bare / "config.yaml", (1, datetime(2026, 1, 2, 9).timestamp()))
    assert all_runs(tmp_path) == [bare, early, demo, late]
    assert find_run("last", tmp_path) == late
    assert started(demo) == datetime(2026, 1, 2, 11)
    (bare / "result.json").write_text("{}")
    assert find_run("last", tmp_path) == bare
    (demo / "environment.json").write_text('{"time": "noon"}')
    assert started(demo).year > 2000


def test_jobs_of_a_sweep_are_told_apart_by_their_record(tmp_path: Path) -> None:
    sweep = tmp_path / "outputs" / "sweeps" / "2026-01-02" / "12-00-00-s"
    second = noted(sweep / "seed=10", datetime(2026, 1, 2, 13))
    first = noted(sweep / "seed=9", datetime(2026, 1, 2, 12))
    between = a_run(tmp_path / "outputs" / "runs" / "2026-01-02" / "12-30-00-a")
    assert all_runs(tmp_path) == [first, between, second]
    assert run_name(second) == "s/seed=10"
    assert find_run("s/seed=9", tmp_path) == first


def test_of_several_runs_with_a_name_the_newest_is_meant(tmp_path: Path) -> None:
    day = tmp_path / "outputs" / "runs" / "2026-01-02"
    newest = a_run(day / "12-00-00-cnn_demo")
    a_run(day / "11-00-00-cnn_demo")
    assert find_run("cnn_demo", tmp_path) == newest
    with pytest.raises(UserError, match="nearest: cnn_demo"):
        find_run("cnn_dem", tmp_path)


def test_few_names_are_listed(tmp_path: Path) -> None:
    for minute in range(30):
        a_run(tmp_path / "outputs" / "runs" / "2026-01-02" / f"10-{minute:02}-00-name{minute}")
    with pytest.raises(UserError, match="no run here") as found:
        find_run("other", tmp_path)
    assert found.value.choices == ("name29", "name28", "name27", "name26", "name25", "name24")
