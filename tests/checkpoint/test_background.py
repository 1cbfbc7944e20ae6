from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lightkit.checkpoint import files
from lightkit.checkpoint.background import BackgroundStore
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from tests.checkpoint.crashes import Killed, content, kill_after, loaded_step
from tests.conftest import ROOT
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def gate(monkeypatch):
    """Holds every write of a file back until `gate.set()`; `gate.entered` tells that one has begun."""
    gate, entered, real = threading.Event(), threading.Event(), files.HashingFile.write

    def write(self, data):
        entered.set()
        assert gate.wait(PATIENCE_SECONDS)
        return real(self, data)

    monkeypatch.setattr(files.HashingFile, "write", write)
    gate.entered = entered
    yield gate
    gate.set()


def test_files_are_the_same_as_without_a_thread(tmp_path):
    tied = torch.arange(3.0)
    saved = content(1) | {"a": tied, "b": tied, "row": torch.arange(12.0).view(3, 4)[1], "t": torch.ones(2, 3).T}
    digests = []
    for kind in (CheckpointStore, BackgroundStore):
        store = kind(tmp_path / kind.__name__)
        path = store.save(saved, step=1, value=0.5, epoch=2)
        store.close()
        digests.append((path.name, files.sha256(path), (path.parent / "manifest.json").read_text()))
    assert digests[0] == digests[1]


def test_training_goes_on_before_the_file_is_there(tmp_path, gate):
    store = BackgroundStore(tmp_path)
    weights = {"model": {"w": torch.full((1000,), 7.0)}, "state": {"step": 7}}
    path = store.save(weights, step=7)
    assert gate.entered.wait(PATIENCE_SECONDS)
    assert not path.exists()
    weights["model"]["w"].zero_()
    weights["state"]["step"] = 0
    gate.set()
    store.flush()
    assert loaded_step(store.load_newest()) == 7


def test_one_save_at_a_time(tmp_path, gate):
    store, saved = BackgroundStore(tmp_path), []
    store.save(content(1), step=1)

    def second() -> None:
        store.save(content(2), step=2)
        saved.append(2)

    waiting = threading.Thread(target=second)
    waiting.start()
    waiting.join(0.2)
    assert saved == []
    gate.set()
    waiting.join()
    store.flush()
    assert [entry.step for entry in store.entries()] == [2]


@pytest.mark.parametrize("ask", ["newest", "best", "entries", "load_newest", "load", "close"])
def test_whoever_asks_waits_for_the_save(tmp_path, gate, ask):
    store = BackgroundStore(tmp_path)
    path = store.save(content(3), step=3, value=0.5)
    threading.Timer(0.05, gate.set).start()
    found = store.load(path) if ask == "load" else getattr(store, ask)()
    assert path.exists()
    if ask in ("newest", "best"):
        assert found == path


def _full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("ask", ["save", "flush", "close", "newest", "with"])
def test_a_failed_write_is_told_at_the_next_occasion(tmp_path, monkeypatch, ask):
    store = BackgroundStore(tmp_path)
    store.save(content(1), step=1)
    store.flush()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        store.save(content(2), step=2)
        store._writer.shutdown()
        store._writer = None
    calls = {"save": lambda: store.save(content(3), step=3), "with": lambda: store.__exit__(None, None, None)}
    match = r"the checkpoint of step 2 could not be written: No space left on device\n.*step-00000001.pt is whole"
    with pytest.raises(UserError, match=match) as caught:
        calls.get(ask, getattr(store, ask, None))()
    assert caught.value.exit_code == 1
    store.close()  # told once
    assert loaded_step(store.load_newest()) == 1
    store.save(content(4), step=4)
    assert loaded_step(store.load_newest()) == 4


def test_an_error_under_way_is_not_hidden_by_a_failed_write(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "fsync", _full)
    store = BackgroundStore(tmp_path)
    store.save(content(1), step=1)
    with pytest.raises(ZeroDivisionError), store:
        raise ZeroDivisionError
    assert "could not be written" in caplog.text
    store.save(content(1), step=1)
    with pytest.raises(UserError, match="could not be written"), store:
        raise SystemExit(143)  # a run that was asked to end has not saved


def test_what_cannot_be_saved_is_told_at_once(tmp_path):
    store = BackgroundStore(tmp_path)
    with pytest.raises(TypeError, match=r"checkpoint\.bad is a builtins\.set"):
        store.save({"bad": {1}}, step=1)
    assert store.newest() is None


def test_without_a_thread_it_writes_at_once(tmp_path, monkeypatch):
    def none(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    path = BackgroundStore(tmp_path).save(content(1), step=1)
    assert path.exists()


def test_a_closed_store_goes_on(tmp_path):
    store = BackgroundStore(tmp_path, keep_last=3)
    for step in (1, 2):
        store.save(content(step), step=step)
        store.close()
    store.close()
    assert [entry.step for entry in store.entries()] == [1, 2]
    assert store._writer is None


def test_rules_are_those_of_the_plain_store(tmp_path):
    with BackgroundStore(tmp_path, keep_last=1, keep_best=1, keep_every=4, mode="min") as store:
        for step in range(1, 11):
            store.save(content(step), step=step, value=abs(step - 6.4))
    assert [entry.step for entry in store.entries()] == [4, 6, 8, 10]
    with pytest.raises(UserError, match="at least the newest is kept"):
        BackgroundStore(tmp_path, keep_last=0)


SCRIPT = """
import sys, torch
from pathlib import Path
from lightkit.checkpoint.background import BackgroundStore
from tests.checkpoint.crashes import content
store = BackgroundStore(Path(sys.argv[1]))
store.save(content(1, size=3_000_000), step=1)
{end}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("raise SystemExit(143)", 143), ("1 / 0", 1)], ids=["end", "exit", "error"]
)
def test_the_process_ends_only_when_the_file_is_there(tmp_path, end, code):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end=end), str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == code
    assert loaded_step(CheckpointStore(tmp_path).load_newest()) == 1


@pytest.mark.thorough
def test_an_error_nobody_asked_for_is_told_at_the_exit(tmp_path):
    script = "from tests.checkpoint.test_background import _full, os; os.fsync = _full" + SCRIPT.format(end="")
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "the checkpoint of step 1 could not be written: No space left on device" in done.stderr


@pytest.mark.thorough
def test_a_crash_at_any_moment_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    """After operation n of the thread nothing reaches the disk any more, as if the process had been killed there."""
    moment, outcomes = 0, []
    while not outcomes or outcomes[-1] != "survived":
        folder = tmp_path / str(moment)
        store = BackgroundStore(folder, keep_last=1, keep_best=0)
        for step in (10, 20):
            store.save(content(step), step=step)
        store.flush()
        with monkeypatch.context() as patch:
            kill_after(patch, moment)
            try:
                store.save(content(30, size=2000), step=30)
                store.flush()
                outcomes.append("survived")
            except Killed:
                outcomes.append("killed")
        after = BackgroundStore(folder)
        assert loaded_step(after.load_newest()) in (20, 30), f"after operation {moment}"
        after.save(content(40), step=40)
        assert loaded_step(after.load_newest()) == 40
        moment += 1
    assert moment > 12


def _train(folder: Path, told: int) -> None:
    """Save step after step for ever; tell each step that is on the disk for certain."""
    store = BackgroundStore(folder, keep_last=2)
    store.prepare()
    found = store.load_newest()
    step = 0 if found is None else loaded_step(found)
    while True:
        step += 1
        weights = content(step, size=100_000)
        store.save(weights, step=step, value=0.0)
        weights["model"]["w"].fill_(-1.0)
        if step % 3 == 0:
            store.flush()
            os.write(told, step.to_bytes(8, "big"))


def _killed_after(folder: Path, seconds: float) -> int:
    """Train in a process of its own until SIGKILL, some time after a step was told; returns the last that was."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            _train(folder, write)
        finally:
            os._exit(70)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read(8)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        told += pipe.read()
    return int.from_bytes(told[-8:], "big")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kills", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_kill_9_in_the_middle_of_saves_loses_nothing_that_was_written(tmp_path, kills):
    draw, newest = random.Random(kills), 0
    for _ in range(kills):
        told = _killed_after(tmp_path, draw.uniform(0.005, 0.15))
        found = CheckpointStore(tmp_path).load_newest()
        step = 0 if found is None else loaded_step(found)
        assert step >= max(told, newest)
        newest = step
    assert newest > 0  # how far it comes is the machine's affair
    CheckpointStore(tmp_path).prepare()
    kept = {entry.file for entry in CheckpointStore(tmp_path).entries()}
    assert {path.name for path in tmp_path.iterdir()} == kept | {"manifest.json"}
