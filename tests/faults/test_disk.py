"""Disks that are full, read-only or limited, and folders that cannot be written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, assert_same_end, at, newest, result

Run = Callable[..., Process]


@pytest.fixture
def disk(project: Path) -> Iterator[Path]:
    """A disk of two mebibytes, mounted in the project; only root can make one."""
    folder = project / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


ON_DISK = (*TRAIN, "hydra.run.dir=disk/run")


@pytest.mark.thorough
@pytest.mark.parametrize("options", [[], ["logger.tensorboard.enabled=true"], ["logger.every_steps=1000"]])
def test_a_full_disk_ends_the_run_and_leaves_what_was_there(
    ran: Run, disk: Path, project: Path, whole: Path, options: list[str]
) -> None:
    process = ran(*ON_DISK, *options, at(9, f"fill:{disk}"))
    assert process.code == 1, process.out + process.err
    assert "Traceback" not in process.err
    assert "Logging error" not in process.err
    assert "make room" in process.err
    assert "the disk is full" in process.err or "No space left on device" in process.err
    assert newest(disk / "run")["state"]["step"] == 7
    (disk / "filler").unlink()
    (project / "fine").touch()
    assert ran("resume", "disk/run").code == 0
    if not options:
        assert_same_end(whole, disk / "run")


def test_a_save_that_fails_is_not_called_saved(ran: Run, disk: Path, project: Path, whole: Path) -> None:
    process = ran(*ON_DISK, at(9, f"full:{disk}"), "logger.every_steps=1000")
    assert process.code == 1, process.out + process.err
    assert "the checkpoint of step 9 could not be written: No space left on device" in process.err
    assert "make room, then resume: step-00000007.pt is whole" in process.err
    assert "saved" not in process.out
    assert newest(disk / "run")["state"]["step"] == 7


def test_a_disk_that_is_full_from_the_start(ran: Run, disk: Path) -> None:
    (disk / "filler").write_bytes(b"x" * (2 << 20))
    process = ran(*ON_DISK)
    assert process.code == 2
    assert "No space left on device" in process.err
    assert "hydra.run.dir=FOLDER writes elsewhere" in process.err
    assert "epoch" not in process.out


def test_a_limit_for_files_smaller_than_a_checkpoint(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, file_limit=10_000)
    assert process.code == 1, process.out + process.err
    assert "the checkpoint of step 7 could not be written: File too large" in process.err
    assert list((project / "run" / "checkpoints").iterdir()) == []
    assert result(project / "run")["status"] == "failed"
    process = ran("resume", "run")
    assert process.code == 2
    assert "there is no checkpoint to go on from" in process.err


@pytest.mark.thorough
def test_a_limit_for_files_that_the_metrics_meet(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, "checkpoint=none", "trainer.epochs=19", file_limit=9_000)
    assert process.code == 1, process.out + process.err
    assert "cannot write: a file would be larger than the limit for files" in process.err
    assert "Traceback" not in process.err


@pytest.mark.thorough
def test_a_read_only_disk(ran: Run, disk: Path, project: Path) -> None:
    assert ran(*ON_DISK, at(9, ":TERM")).code == 143
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    process = ran("resume", "disk/run")
    assert process.code == 2
    assert "cannot write: Read-only file system" in process.err
    assert "epoch" not in process.out
    process = ran(*TRAIN, "hydra.run.dir=disk/other")
    assert process.code == 2
    assert "cannot create the run folder: Read-only file system" in process.err
    process = ran("eval", "disk/run")
    assert process.code == 2
    assert "eval-test.json: cannot write the file: Read-only file system" in process.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("metrics.jsonl/x", 2, "metrics.jsonl: this is to be a file, and is none"),
        ("", 2, "not a folder"),
        ("checkpoints", 2, "checkpoints cannot be written here: "),
        (".lock/x", 2, "cannot write: Is a directory"),
        ("config.yaml.d", 0, ""),
    ],
)
def test_what_stands_in_the_way_is_named(ran: Run, project: Path, name: str, code: int, message: str) -> None:
    path = project / "run" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    process = ran(*TRAIN, "logger.tensorboard.enabled=true")
    assert process.code == code, process.out + process.err
    assert message in process.err
    assert "Traceback" not in process.err
    assert code == 0 or "epoch" not in process.out


@pytest.mark.thorough
def test_a_folder_that_vanishes(lightkit: Run, project: Path) -> None:
    process = lightkit(*TRAIN, at(9, "hold"), "logger.every_steps=1000")
    process.hold_after(7)
    (project / "run").rename(project / "elsewhere")
    process.go()
    process.wait()
    assert process.code in (0, 1), process.err
    assert "Traceback" not in process.err
    assert newest(project / "elsewhere")["state"]["step"] == 7
