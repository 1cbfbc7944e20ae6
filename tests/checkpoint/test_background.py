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
from torch import nn

from lightkit.checkpoint import files
from lightkit.checkpoint.background import BackgroundStore, HostBuffers
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from tests.checkpoint.crashes import content, loaded_step
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


@pytest.mark.parametrize("shape", [(3,), (600, 600), (200, 1, 1)], ids=["small", "large", "many"])
def test_files_are_the_same_as_without_a_thread(tmp_path, shape):
    tied = torch.arange(3.0)
    parts = {"a": tied, "b": tied, "row": torch.arange(12.0).view(3, 4)[1], "t": torch.ones(2, 3).T}
    saved = content(1) | parts | {"rows": list(torch.ones(shape))}
    digests = []
    for kind in (CheckpointStore, BackgroundStore):
        store = kind(tmp_path / kind.__name__)
        path = store.save(saved, step=1, value=0.5, epoch=2)
        store.close()
        digests.append((path.name, files.sha256(path), (path.parent / "manifest.json").read_text()))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("value", [None, 0.5])
def test_training_goes_on_before_the_file_is_there_and_one_save_waits_for_another(tmp_path, gate, value):
    store, saved = BackgroundStore(tmp_path, keep_last=2), []
    weights = {"model": {"w": torch.full((1000,), 7.0)}, "state": {"step": 7}}
    path = store.save(weights, step=7, value=value)
    assert gate.entered.wait(PATIENCE_SECONDS)
    assert not path.exists()
    weights["model"]["w"].zero_()
    weights["state"]["step"] = 0
    waiting = threading.Thread(target=lambda: saved.append(store.save(content(8), step=8)))
    waiting.start()
    waiting.join(0.1)
    assert saved == []
    gate.set()
    waiting.join()
    store.flush()
    assert [entry.step for entry in store.entries()] == [7, 8]
    there = store.load(path)
    assert there["state"]["step"] == 7
    assert there["model"]["w"].eq(7.0).all()


@pytest.mark.parametrize("ask", ["newest", "best", "entries", "load_newest", "load", "close"])
def test_whoever_asks_waits_for_the_save_and_finds_what_was_handed_over(tmp_path, gate, ask):
    store, saved = BackgroundStore(tmp_path), content(3)
    path = store.save(saved, step=3, value=0.5)
    saved["model"]["w"].zero_()
    threading.Timer(0.02, gate.set).start()
    answer = store.load(path) if ask == "load" else getattr(store, ask)()
    assert path.exists()
    assert ask not in ("newest", "best") or answer == path
    assert loaded_step(store.load_newest()) == 3


def _full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("ask", ["save", "close", "newest", "with"])
def test_a_failed_write_is_told_once_at_the_next_occasion(tmp_path, monkeypatch, ask):
    store = BackgroundStore(tmp_path)
    store.save(content(1), step=1)
    store.flush()
    calls = {"save": lambda: store.save(content(3), step=3), "with": lambda: store.__exit__(None, None, None)}
    match = r"the checkpoint of step 2 could not be written: No space left on device\n.*step-00000001.pt is whole"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        store.save(content(2), step=2)
        with pytest.raises(UserError, match=match) as caught:
            calls.get(ask, getattr(store, ask, None))()
    assert caught.value.exit_code == 1
    store.close()
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


def test_what_cannot_be_saved_is_told_at_once_and_without_a_thread_it_writes_at_once(tmp_path, monkeypatch):
    store = BackgroundStore(tmp_path)
    with pytest.raises(TypeError, match=r"checkpoint\.bad is a builtins\.set"):
        store.save({"bad": {1}}, step=1)
    assert store.newest() is None

    def none(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert BackgroundStore(tmp_path).save(content(1), step=1).exists()


def test_rules_are_those_of_the_plain_store_and_a_closed_store_goes_on(tmp_path):
    store = BackgroundStore(tmp_path, keep_last=1, keep_best=1, keep_every=4, mode="min")
    for step in range(1, 11):
        store.save(content(step), step=step, value=abs(step - 6.4))
        if step % 5 == 0:
            store.close()
    store.close()
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


def ended(folder: Path, end: str, begin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", begin + SCRIPT.format(end=end), str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(("end", "code"), [("raise SystemExit(143)", 143), ("", 0)])
def test_the_process_ends_only_when_the_file_is_there(tmp_path, end, code):
    assert ended(tmp_path, end).returncode == code
    assert loaded_step(CheckpointStore(tmp_path).load_newest()) == 1


@pytest.mark.thorough
def test_an_error_nobody_asked_for_is_told_at_the_exit(tmp_path):
    begin = "from tests.checkpoint.test_background import _full, os; os.fsync = _full"
    assert "step 1 could not be written: No space left on device" in ended(tmp_path, "", begin).stderr


def _train(folder: Path, pipe: int) -> None:
    """Save step after step for ever; tell each step that is on the disk for certain."""
    store = BackgroundStore(folder, keep_last=2)
    store.prepare()
    newest = store.load_newest()
    step = 0 if newest is None else loaded_step(newest)
    while True:
        step += 1
        weights = content(step, size=100_000)
        store.save(weights, step=step, value=0.0)
        weights["model"]["w"].fill_(-1.0)
        if step % 3 == 0:
            store.flush()
            os.write(pipe, step.to_bytes(8, "big"))


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
        steps = pipe.read(8)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        steps += pipe.read()
    return int.from_bytes(steps[-8:], "big")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kills", [3, 40])
def test_kill_9_in_the_middle_of_saves_loses_nothing_that_was_written(tmp_path, kills):
    draw, newest = random.Random(kills), 0
    for _ in range(kills):
        certain = _killed_after(tmp_path, draw.uniform(0.005, 0.15))
        loaded = CheckpointStore(tmp_path).load_newest()
        step = 0 if loaded is None else loaded_step(loaded)
        assert step >= max(certain, newest)
        newest = step
    assert newest > 0  # how far it comes is the machine's affair
    CheckpointStore(tmp_path).prepare()
    kept = {entry.file for entry in CheckpointStore(tmp_path).entries()}
    assert {path.name for path in tmp_path.iterdir()} == kept | {"manifest.json"}


def test_the_memory_of_copies_is_used_again_for_the_same_shapes_and_types():
    buffers = HostBuffers()
    first = buffers.copy({"a": torch.ones(1000), "b": torch.ones(5), "deep": [{"n": None, "steps": 3}]})
    assert first["deep"] == [{"n": None, "steps": 3}]
    again = buffers.copy({"a": torch.full((1000,), 2.0), "b": torch.zeros(6)})
    assert again["a"].data_ptr() == first["a"].data_ptr()
    assert (again["a"].unique().tolist(), again["b"].tolist()) == ([2.0], [0.0] * 6)
    assert buffers.copy({"b": torch.ones(6)})["b"].data_ptr() == again["b"].data_ptr()
    assert buffers.copy({"b": torch.ones(6, dtype=torch.int32)})["b"].dtype == torch.int32
    with pytest.raises(TypeError, match=r"checkpoint\.b\.c is a builtins\.set"):
        buffers.copy({"b": {"c": {1}}})


LAYOUTS = {
    "transposed": torch.arange(12.0).view(3, 4).T,
    "slice": torch.arange(10.0)[2:5],
    "column": torch.arange(12.0).view(3, 4)[:, 1],
    "channels last": torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "expanded": torch.ones(3).expand(4, 3),
    "empty": torch.zeros(0, 3),
    "conj": torch.ones(2, dtype=torch.complex64).conj(),
    "parameter": nn.Parameter(torch.ones(2)),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_copied(layout):
    buffers, tensor = HostBuffers(), LAYOUTS[layout]
    for _ in range(2):
        copied = buffers.copy({"x": tensor})["x"]
        assert torch.equal(copied.to_dense(), tensor.detach().to_dense())
        assert not copied.requires_grad
        if copied.numel() and not copied.is_sparse:
            assert copied.data_ptr() != tensor.data_ptr()


def test_tied_weights_stay_one_and_others_apart():
    weight, empty = nn.Parameter(torch.ones(3, 3)), {"e": torch.zeros(0, 3), "f": torch.zeros(3, 0)}
    own = {"other": torch.ones(3, 3), "part": weight[:2], "few": torch.zeros(1_000_000)[:10]}
    copied = HostBuffers().copy({"a": weight, "b": weight, **own, **empty})
    assert copied["a"].data_ptr() == copied["b"].data_ptr()
    assert len({copied[name].data_ptr() for name in ("a", "other", "part")}) == 3
    assert (copied["e"].shape, copied["f"].shape) == ((0, 3), (3, 0))
    assert copied["few"].untyped_storage().nbytes() == 40


@pytest.mark.gpu
def test_a_copy_from_a_gpu_holds_the_state_of_the_moment():
    buffers, weight = HostBuffers(), torch.zeros(50_000_000, device="cuda")
    for value in (1.0, 2.0):
        weight.fill_(value)
        copied = buffers.copy({"w": weight})["w"]
        weight.fill_(-1.0)  # training goes on while the copy is queued
        buffers.wait()
        assert copied.is_pinned()
        assert (copied.min(), copied.max()) == (value, value)
