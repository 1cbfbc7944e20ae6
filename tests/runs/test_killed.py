"""kill -9 before each file operation of what takes care of runs: nothing is lost or half, and a repetition works."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.runs import care
from lightkit.runs.archive import archive, unpack
from lightkit.runs.catalog import all_runs
from lightkit.runs.reading import read_labels

PLACES = ("runs/2026-01-31/12-00-00-a", "runs/2026-01-31/12-00-01-b", "sweeps/2026-01-31/12-00-00-s/lr=1")
OPERATIONS = ("os.", "shutil.", "tempfile.")
"""Beginnings of the events that Python tells of before it changes a file; `open` besides."""
STRIDE = 6


def make_runs(root: Path) -> list[Path]:
    for place in PLACES:
        folder = root / "outputs" / place
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text(f"name: {folder.name[-1]}\ndata: {{}}\nmodel: {{}}\n")
        (folder / "result.json").write_text('{"status": "finished"}')
        for step in (1, 2):
            (folder / "checkpoints" / f"step-{step}.pt").write_bytes(bytes([step]) * 3000)
    (folder.parent / "sweep.jsonl").write_text('{"event": "sweep"}\n')
    return [root / "outputs" / place for place in PLACES]


def content(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def killed(job: Callable[[], Any], at: int) -> bool:
    """Do a job in a child that is killed before its operation of this number; tell whether it came to that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        left = at

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            is_change = event.startswith(OPERATIONS) and event not in ("os.listdir", "os.scandir", "os.walk")
            if is_change or (event == "open" and isinstance(args[2], int) and args[2] & (os.O_CREAT | os.O_WRONLY)):
                left -= 1
                if left == -1:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            job()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert end in (0, -signal.SIGKILL)
    return end != 0


@pytest.fixture(params=range(STRIDE))
def first(request: pytest.FixtureRequest) -> int:
    """The operation that is the first to be killed at; all of them come to all operations."""
    return int(request.param)


def at_operations(
    tmp_path: Path, job: Callable[[Path], Any], check: Callable[[Path], Any], *, first: int, least: int
) -> None:
    """Kill a job at each sixth of its operations, each time in a project of its own, and look at what is left."""
    count, goes_on = first, True
    while goes_on:
        root = tmp_path / "project"
        make_runs(root)
        goes_on = killed(lambda root=root: job(root), count)  # type: ignore[misc]
        check(root)
        shutil.rmtree(root)
        count += STRIDE
    assert count - STRIDE >= least, "it was killed at fewer moments than there are"


def wholes(root: Path) -> dict[str, dict[str, bytes]]:
    """What is listed, each of which has to be whole."""
    found = {run.relative_to(root / "outputs").as_posix(): content(run) for run in all_runs(root)}
    assert all(len(files) >= 4 for files in found.values())
    return found


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    make_runs(root := tmp_path_factory.mktemp("before"))
    return wholes(root)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_an_archive_is_whole_or_not_there(tmp_path: Path, before: Any, name: str, first: int) -> None:
    def pack(root: Path) -> None:
        archive(care.whole_folders(all_runs(root)), root / name, root, overwrite=True)

    def check(root: Path) -> None:
        assert wholes(root) == before
        if (root / name).exists():
            unpack(root / name, other := tmp_path / "other")
            assert wholes(other) == before
            assert (other / "outputs/sweeps/2026-01-31/12-00-00-s/sweep.jsonl").is_file()
            shutil.rmtree(other)
        pack(root)

    at_operations(tmp_path, pack, check, first=first, least=3)


@pytest.mark.thorough
def test_an_import_lists_whole_runs_and_goes_on(tmp_path: Path, before: Any, first: int) -> None:
    make_runs(tmp_path)
    archive(care.whole_folders(all_runs(tmp_path)), file := tmp_path / "a.tar", tmp_path)

    def check(root: Path) -> None:
        found = wholes(new := root / "new")
        assert found.items() <= before.items()
        if len(found) < len(before):
            unpack(file, new)
            assert wholes(new) == before
        care.empty_bin(new)
        assert not (new / "outputs/.unpacked").exists()

    at_operations(tmp_path, lambda root: unpack(file, root / "new"), check, first=first, least=20)


@pytest.mark.thorough
def test_what_is_removed_is_here_or_in_the_bin(tmp_path: Path, before: Any, first: int) -> None:
    def remove(root: Path) -> None:
        care.put_aside(care.removable(all_runs(root), root), root)

    def check(root: Path) -> None:
        found = wholes(root)
        for place in (root / "outputs/.removed").glob("*"):
            found |= {one: content(place / one) for one in before if (place / one).is_dir()}
        assert found == before
        if all_runs(root):
            remove(root)
        assert not all_runs(root)
        assert killed(lambda: care.empty_bin(root), 4)
        care.empty_bin(root)
        assert not (root / "outputs/.removed").exists()

    at_operations(tmp_path, remove, check, first=first, least=4)


@pytest.mark.thorough(first=2)
@pytest.mark.parametrize("drop", [care.drop_checkpoints, lambda run: care.put_aside(care.removable(
    [run], run.parents[4], checkpoints=True), run.parents[4])])  # fmt: skip
def test_of_checkpoints_all_are_listed_or_none(tmp_path: Path, drop: Callable[[Path], Any], first: int) -> None:
    def check(root: Path) -> None:
        run = root / "outputs" / PLACES[2]
        assert len([*(run / "checkpoints").glob("*")]) in (0, 2)
        if care.checkpoint_folders(run):
            drop(run)
        assert {*content(run)} == {"config.yaml", "result.json"}
        assert not (run / ".removed").exists()

    at_operations(tmp_path, lambda root: drop(root / "outputs" / PLACES[2]), check, first=first, least=1)


@pytest.mark.thorough
def test_labels_are_the_old_ones_or_the_new_ones(tmp_path: Path, first: int) -> None:
    def label(root: Path) -> None:
        care.tag(all_runs(root), "paper")
        care.note(all_runs(root)[0], "seen")

    def check(root: Path) -> None:
        damage = list[str]()
        assert all(read_labels(run, damage) in ({}, {"tags": ["paper"]}) for run in all_runs(root)[1:])
        assert not damage
        label(root)
        assert json.loads((all_runs(root)[0] / "labels.json").read_text()) == {"tags": ["paper"], "note": "seen"}

    at_operations(tmp_path, label, check, first=first, least=8)
