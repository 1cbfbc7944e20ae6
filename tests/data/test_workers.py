"""Samples read in worker processes, and how those may end."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import pytest
import torch
from torch.utils.data import dataloader

from lightkit.common.errors import UserError
from lightkit.data import waiting
from tests.data.pictures import Images, Silent, joined, same

KILLED = r"worker 0 \(pid \d+\) was killed by SIGKILL"


def test_workers_live_on_and_survive_an_epoch_broken_off(made: Any) -> None:
    train = made(Images(), num_workers=1).train
    whole = joined(made(Images(), num_workers=1, persistent_workers=False).train, 0)
    batches = train.epoch(1)
    next(batches)
    batches.close()
    assert same(joined(train, 0), whole)
    train.close()
    assert same(joined(train, 0), whole)


class Bad(Silent):
    """Row 20 ends the process, raises or is not like the others."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.how = how

    def __getitem__(self, row: int) -> Any:
        if row != 20:
            return super().__getitem__(row)
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(self.how, Exception):
            raise self.how
        return self.how


LABEL = (torch.zeros(1, 4, 4), 7)
BAD: list[tuple[Any, str]] = [
    (KeyError("a key"), r"(?s)sample 20 of the data set could not be read: KeyError.*at: .*test_workers\.py:\d+"),
    (UserError("this sample is damaged", key="somewhere"), "^somewhere: this sample is damaged"),
    ((torch.zeros(1, 2, 2), 0), "do not make a batch"),
    ((torch.full((1, 4, 4), torch.nan), 0), "Bad: row 20 of the inputs holds nan"),
    (LABEL, r"the label of row 20 is out of range\n.*0 to 2\n.*received:.*7"),
    ((torch.zeros(1, 4, 4), 0.5), r"classes are whole numbers[\s\S]*received:.*0\.5 in row 20"),
]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("how", "text"), BAD, ids=["raises", "user", "shape", "nan", "label", "part of a label"])
def test_bad_sample_is_named(made: Any, how: Any, text: str, workers: int) -> None:
    with pytest.raises(UserError, match=text):
        joined(made(Bad(how), num_workers=workers).train, 0)


def test_dead_worker_is_explained(made: Any) -> None:
    train = made(Bad("killed"), num_workers=1).train
    with pytest.raises(UserError, match=rf"{KILLED} while it was reading row 20 of[\s\S]*fewer data.num_workers"):
        joined(train, 0)
    train.source.base.how = LABEL
    with pytest.raises(UserError, match="the label of row 20 is out of range"):
        joined(train, 0)  # read by new processes


def test_a_stopped_worker_is_named_and_let_go_on(
    made: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.01)
    train = made(Images(), num_workers=1).train
    whole = joined(train, 0)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid or 0, signal.SIGSTOP)
    watched = waiting.WorkerWatch.look

    def look(watch: Any, *args: Any) -> None:
        watched(watch, *args)
        if "is stopped" in caplog.text:
            os.kill(worker.pid or 0, signal.SIGCONT)

    monkeypatch.setattr(waiting.WorkerWatch, "look", look)
    assert same(joined(train, 0), whole)
    lines = [record.getMessage() for record in caplog.records]
    stopped = f"worker 0 (pid {worker.pid}) is stopped, until `kill -CONT {worker.pid}` lets it go on"
    assert [line.partition(": ")[2] for line in lines if line.startswith("no batch comes")] == [stopped]
    assert lines[-1].startswith("batches come again")


def test_a_worker_that_dies_raises_nothing_elsewhere(made: Any) -> None:
    batches = made(Images(), num_workers=1).train.epoch(0)
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()  # a handler of SIGCHLD would raise here
    with pytest.raises(UserError, match="was killed by SIGKILL"):
        list(batches)


def test_a_worker_that_dies_while_it_hands_a_batch_over_is_explained(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(self: Any, *_: Any) -> None:
        for worker in self._workers:
            worker.kill()
            worker.join()
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter, "_try_get_data", cut_off)
    with pytest.raises(UserError, match=rf"{KILLED}[\s\S]*fewer data\.num_workers"):
        joined(made(Silent(), num_workers=1).train, 0)
