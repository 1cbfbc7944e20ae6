"""Which run or sweep is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.detached.folders import all_folders, find_folder, is_alive, is_sweep, names_of, sweep_of
from lightkit.runs.lock import locked
from tests.detached.made import make_run, make_sweep


def test_runs_and_sweeps_in_the_order_in_which_they_began(project: Path) -> None:
    late, early = make_run(project, time="23-00-00"), make_run(project, "b")
    (late / "members" / "00").mkdir(parents=True)
    (late / "members" / "00" / "config.yaml").touch()  # a member is no run of its own
    sweep = make_sweep(project, "seed=0", "seed=1")
    begun = project.resolve() / "outputs" / "runs" / "2026-01-31" / "12-30-00-c"
    begun.mkdir(parents=True)
    assert begun not in all_folders(project)
    (begun / ".job").touch()
    assert all_folders(project) == [early, begun, sweep, sweep / "seed=0", sweep / "seed=1", late]
    assert [folder for folder in all_folders(project) if sweep_of(folder)] == [sweep / "seed=0", sweep / "seed=1"]
    assert [folder for folder in all_folders(project) if is_sweep(folder)] == [sweep]
    assert names_of([early, late, late]) == ["b", "a"]


def test_by_name_path_and_last(project: Path) -> None:
    older, newer = make_run(project), make_run(project, time="12-30-00")
    assert find_folder("a", project) == newer
    assert find_folder("last", project) == newer
    assert find_folder("12-00-00-a", project) == older
    assert find_folder("runs/2026-01-31/12-00-00-a", project) == older
    assert find_folder(str(older), project) == older
    sweep = make_sweep(project, "seed=0")
    assert find_folder("last", project) == sweep, "not a job of it"
    assert find_folder("grid", project) == sweep
    assert find_folder("grid/seed=0", project) == sweep / "seed=0"


def test_of_several_the_one_that_is_alive_is_meant(project: Path) -> None:
    older, newer = make_run(project), make_run(project, time="12-30-00")
    with locked(older):
        assert is_alive(older)
        assert find_folder("a", project, one_alive=True) == older
        with locked(newer, ".job"):
            assert find_folder("a", project) == newer
            with pytest.raises(UserError, match="several runs of this name are alive"):
                find_folder("a", project, one_alive=True)
    assert not is_alive(older)


def test_nothing_of_that_name(project: Path) -> None:
    with pytest.raises(UserError, match="no run here"):
        find_folder("last", project)
    make_run(project, "digits_mlp")
    with pytest.raises(UserError, match="no such run or sweep here") as error:
        find_folder("digits_cnn", project)
    assert "digits_mlp" in str(error.value)


def test_a_path_to_what_is_damaged_is_found_by_those_that_say_so(project: Path) -> None:
    folder = project / "outputs" / "sweeps" / "d"
    (folder / "sweep.jsonl").mkdir(parents=True)
    assert find_folder("d", project) == find_folder("outputs/sweeps/d", project) == folder.resolve()
    with pytest.raises(UserError, match="no such run or sweep"):
        find_folder("outputs/sweeps", project)
