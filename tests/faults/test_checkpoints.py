"""Damaged, lost and half-written files of a run, clocks that jump, and saves that are cut off."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint import files
from lightkit.checkpoint.background import BackgroundStore
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config.provenance import sign_run
from tests.faults.harness import TRAIN, Process, assert_same_end, at, log, newest, result, rows
from tests.warm import Warm

Run = Callable[..., Process]
DAY = 86_400


@pytest.fixture(scope="module")
def stopped(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run that was told to end at step 9, after a checkpoint of step 7."""
    from tests.faults.conftest import starter

    project = tmp_path_factory.mktemp("stopped")
    assert starter(warm, project, tmp_path_factory, [])(*TRAIN, at(9, ":TERM")).wait() == 143
    return project / "run"


@pytest.fixture
def run(stopped: Path, project: Path) -> Path:
    """A copy of that run, as if it were of this project; what ended it is mended."""
    shutil.copytree(stopped, project / "run")
    sign_run(project / "run", (project / "run" / "config.yaml").read_text(encoding="utf-8"))
    (project / "fine").touch()
    return project / "run"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 16
    path.write_bytes(raw)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [flipped, gone])
def test_of_a_damaged_newest_file_the_one_before_is_taken(ran: Run, run: Path, whole: Path, damage: Any) -> None:
    damage(run / "checkpoints" / "step-00000009.pt")
    process = ran("resume", "run")
    assert process.code == 0, process.err
    assert "resumed at step 7" in process.out
    for text in (process.err, log(run)):
        assert "step-00000009.pt is damaged (" in text
        assert "trying the one before" in text
    assert_same_end(whole, run)


def test_a_damaged_list_is_made_anew_from_the_files(ran: Run, run: Path, whole: Path) -> None:
    gone(run / "checkpoints" / "manifest.json")
    process = ran("resume", "run")
    assert process.code == 0, process.err
    assert "resumed at step 9" in process.out
    for text in (process.err, log(run)):
        assert "listed anew from 2 files" in text
    assert_same_end(whole, run)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "damage"), [((*TRAIN, at(9, ":TERM"), "resume=auto"), truncated), (("resume", "run"), gone)]
)
def test_when_all_files_are_damaged_nothing_starts_anew(ran: Run, run: Path, damage: Any, command: Any) -> None:
    for path in (run / "checkpoints").glob("*.pt"):
        damage(path)
    kept = [path for path in run.rglob("*") if path.is_file() and path.name not in ("run.log", ".lock")]
    before = {path: path.read_bytes() for path in kept}
    process = ran(*command)
    assert process.code == 5, process.out + process.err
    assert "no checkpoint can be read: step-00000009.pt: " in process.err
    assert "Traceback" not in process.err
    assert "epoch" not in process.out
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.thorough
def test_the_clock_may_jump_between_two_parts(lightkit: Run, ran: Run, project: Path, whole: Path) -> None:
    killed(lightkit(*TRAIN, "logger.tensorboard.enabled=true", at(9, "hold"), clock_shift=DAY))
    (project / "fine").touch()
    assert ran("resume", "run").code == 0
    assert_same_end(whole, project / "run")
    assert [step for step, _ in curve(project / "run", "train/loss_step")] == list(range(1, 22))
    assert 0 <= result(project / "run")["seconds"] < DAY / 2


def killed(process: Process) -> None:
    """Let a process die where it holds, after the checkpoint of step 7."""
    process.hold_after(7)
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """What TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


@pytest.mark.thorough
def test_event_and_metric_files_cut_by_a_crash(lightkit: Run, ran: Run, project: Path, whole: Path) -> None:
    cut = 7
    killed(lightkit(*TRAIN, "logger.tensorboard.enabled=true", at(12, "hold")))
    events = next((project / "run").rglob("events.out.tfevents.*"))
    events.write_bytes(events.read_bytes() + b"\x18\0\0\0\0\0\0\0" + b"x" * cut)
    metrics = project / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-cut])
    (project / "fine").touch()
    assert ran("resume", "run").code == 0
    assert_same_end(whole, project / "run")
    logged = [(row["step"], row["train/loss_step"]) for row in rows(project / "run") if "train/loss_step" in row]
    shown = curve(project / "run", "train/loss_step")
    assert [step for step, _ in shown] == [step for step, _ in logged]
    assert [value for _, value in shown] == pytest.approx([value for _, value in logged])


def content(step: int) -> dict[str, Any]:
    return {"version": 1, "model": {str(i): torch.full((500,), float(step)) for i in range(3)}, "state": {"step": step}}


class Fuse:
    """Kills this very process at the n-th chunk, flush, rename or removal of a save."""

    def __init__(self, left: int) -> None:
        self.left = left

    def burn(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(self, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.burn()
            return function(*args, **options)

        return call

    def light(self) -> None:
        files.HashingFile.write = self.wrapped(files.HashingFile.write)  # type: ignore[method-assign]
        for name in ("fsync", "replace", "rename", "unlink"):
            setattr(os, name, self.wrapped(getattr(os, name)))
        Path.replace = self.wrapped(Path.replace)  # type: ignore[method-assign]
        Path.unlink = self.wrapped(Path.unlink)  # type: ignore[method-assign]


def killed_at(left: int, folder: Path) -> bool:
    """Save step 20 in a process that is killed on the way; False when it got through."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
        pid = os.fork()
    if pid == 0:
        try:
            Fuse(left).light()
            store = BackgroundStore(folder, keep_last=1, keep_best=0)
            store.save(content(20), step=20)
            store.close()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.thorough
def test_a_kill_at_any_chunk_of_a_save_leaves_a_whole_file(tmp_path: Path) -> None:
    moments, seen = 0, set()
    while True:
        folder = tmp_path / str(moments)
        CheckpointStore(folder, keep_last=1, keep_best=0).save(content(10), step=10)
        killed = killed_at(moments, folder)
        found = CheckpointStore(folder).load_newest()
        assert found is not None
        step = found[1]["state"]["step"]
        seen.add(step)
        assert all((tensor == step).all() for tensor in found[1]["model"].values())
        assert killed or step == 20
        after = CheckpointStore(folder, keep_last=1, keep_best=0)
        after.prepare()
        newest = after.newest()
        assert newest is not None
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", newest.name]
        after.save(content(30), step=30)
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "step-00000030.pt"]
        if not killed:
            break
        moments += 1
    assert seen == {10, 20}
    assert moments > 20


@pytest.mark.thorough
def test_weights_of_dataparallel_load_without_it(ran: Run, project: Path, whole: Path) -> None:
    assert ran(*TRAIN, "device.parallel=dp", at(9, ":TERM")).code == 143
    assert not [name for name in newest(project / "run")["model"] if name.startswith("module.")]
    (project / "fine").touch()
    process = ran("resume", "run", "device.parallel=none")
    assert process.code == 0, process.err
    assert_same_end(whole, project / "run")


def test_a_file_with_tensors_of_a_gpu_loads_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(torch.serialization, "location_tag", lambda storage: "cuda:3")
        path = store.save(content(10), step=10)
    assert b"cuda:3" in path.read_bytes()
    found = store.load_newest()
    assert found is not None
    assert all(tensor.device.type == "cpu" for tensor in found[1]["model"].values())
