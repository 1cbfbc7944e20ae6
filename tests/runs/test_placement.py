from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import compose_jobs
from lightkit.runs import placement
from lightkit.runs.placement import chosen_run_folder, discard_if_empty, job_names, new_run_folder


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still."""

    class Noon(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Noon:
            return cls(2026, 1, 31, 12, 0, 0)

    monkeypatch.setattr(placement, "datetime", Noon)


def a_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: run\n")
    return folder


@pytest.mark.usefixtures("noon")
def test_runs_of_one_second_get_their_own_folders(tmp_path: Path) -> None:
    made = [new_run_folder(tmp_path, "my run") for _ in range(3)]
    day = tmp_path / "outputs" / "runs" / "2026-01-31"
    assert made == [day / "12-00-00-my-run", day / "12-00-00-my-run-2", day / "12-00-00-my-run-3"]


def test_outputs_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outputs").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot create the run folder|not a folder"):
        new_run_folder(tmp_path, "run")

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="cannot create the run folder: Permission denied"):
        new_run_folder(tmp_path, "run")
    with pytest.raises(UserError, match=r"hydra\.sweep\.dir=FOLDER writes elsewhere"):
        new_run_folder(tmp_path, "grid", kind="sweeps")


def test_a_chosen_folder_must_not_hold_a_run(tmp_path: Path) -> None:
    assert chosen_run_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    folder = a_run(tmp_path / "old")
    with pytest.raises(
        UserError, match=r"already holds a run[\s\S]*resume=auto, as it has saved nothing yet, or another"
    ):
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


def test_jobs_are_named_by_what_tells_them_apart() -> None:
    jobs = compose_jobs(["data=wine", "seed=0,1", "optim.lr=0.1"])
    assert job_names(jobs) == ["seed=0", "seed=1"]
    assert job_names(compose_jobs(["data=wine", "hydra.sweep.dir=there"])) == ["run"]


@pytest.mark.parametrize(
    ("subdir", "names"),
    [
        ("job${hydra:job.num}", ["job0", "job1"]),
        ("${hydra.job.num}/a", ["0/a", "1/a"]),
        ("'${name}-${seed}'", ["wine_mlp-3", "wine_mlp-4"]),
        ("${hydra:job.override_dirname}", ["data=wine,seed=3", "data=wine,seed=4"]),
    ],
)
def test_the_user_names_the_folders_of_jobs(subdir: str, names: list[str]) -> None:
    assert job_names(compose_jobs(["data=wine", "seed=3,4", f"hydra.sweep.subdir={subdir}"])) == names


@pytest.mark.parametrize(
    ("subdir", "message"),
    [
        ("same", "would write into the folder of another one"),
        ("'${oc.select:hydra.none,a}/../${hydra:job.num}'", "below that of the sweep"),
        ("''", "below that of the sweep"),
        ("${hydra:job.nothing}", "cannot be worked out"),
        ("x" * 300 + "${hydra:job.num}", "too long"),
        ("'a/sweep.jsonl/${hydra:job.num}/.x'", "does not begin with a dot"),
        ("Slurm/${hydra:job.num}", "belongs to a file or folder of the sweep itself"),
    ],
)
def test_folders_of_jobs_that_cannot_be(subdir: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        job_names(compose_jobs(["data=wine", "seed=3,4", f"hydra.sweep.subdir={subdir}"]))
    assert caught.value.key == "hydra.sweep.subdir"
