"""Calls in a thread of their own: their order, what fails for a while, and what never arrives."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from matplotlib.figure import Figure

from lightkit.loggers import Logger, OwnLogger, outbox
from lightkit.loggers.outbox import Outbox


class Far(Logger):
    """Notes calls; fails as often as it is told, by method."""

    patient = True

    def __init__(self, **fails):
        self.fails, self.calls, self.closed = fails, [], 0
        self.heard, self.free = threading.Event(), None

    def _note(self, method, *what):
        if self.fails.get(method, 0):
            self.fails[method] -= 1
            raise ConnectionError("no route to host")
        self.calls.append((method, *what))

    def start(self, step, kept=()):
        if self.free is not None:
            self.free.wait(60)
        self._note("start", step)

    def text(self, name, markdown, *, step):
        self.heard.set()

    def scalars(self, values, *, step, epoch):
        self._note("scalars", step)

    def histogram(self, name, values, *, step):
        self._note("histogram", values.sum().item())

    def figure(self, name, figure, *, step):
        self._note("figure", len(figure.axes))

    def close(self):
        self.closed += 1
        self._note("close")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(outbox, "PAUSES_SECONDS", (0.0,))


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_calls_arrive_in_their_order_and_what_nobody_listens_to_is_not_kept():
    far = Far()
    box = Outbox("logger.more.far", far)
    box.start(0)
    box.message("hello")
    for step in range(50):
        box.scalars({"loss": 1.0}, step=step, epoch=0)
    box.close()
    box.close()
    assert far.calls == [("start", 0), *(("scalars", step) for step in range(50)), ("close",)]


def test_what_fails_for_a_while_is_told_once_and_arrives_in_its_turn(caplog):
    far = Far(start=2, scalars=3)
    box = Outbox("logger.more.far", far)
    box.start(0)
    box.scalars({}, step=1, epoch=0)
    box.text("a", "b", step=1)
    assert far.heard.wait(60)
    box.close()
    assert far.calls == [("start", 0), ("scalars", 1), ("close",)]
    first, last = told(caplog)
    assert (
        first
        == "logger.more.far: start fails: ConnectionError: no route to host; it is tried again, and the run goes on"
    )
    assert last == "logger.more.far: what failed for a while has arrived: scalars: ConnectionError: no route to host"


@pytest.mark.parametrize(("method", "lost"), [("start", 4), ("scalars", 3)])
def test_what_never_arrives_is_told_at_the_end(caplog, monkeypatch, method, lost):
    monkeypatch.setattr(outbox, "PAUSES_SECONDS", (60.0,))
    far = Far(**{method: 10_000})
    box = Outbox("logger.more.far", far)
    box.start(0)
    for step in range(3):
        box.scalars({}, step=step, epoch=0)
    box.close()
    assert far.closed == 1
    assert told(caplog)[-1].startswith(f"logger.more.far: {lost} calls did not arrive; the last failure: {method}:")


def test_one_call_that_always_fails_does_not_hold_back_the_others_at_the_end(caplog):
    far = Far(histogram=10_000)
    box = Outbox("logger.more.far", far)
    box.histogram("weights", torch.ones(3), step=1)
    box.scalars({}, step=1, epoch=0)
    box.close()
    assert far.calls == [("scalars", 1), ("close",)]
    assert "1 call did not arrive" in told(caplog)[-1]


def test_a_call_that_hangs_does_not_hold_the_end(caplog, monkeypatch):
    monkeypatch.setattr(outbox, "PATIENCE_SECONDS", 0.05)
    far = Far()
    far.free = threading.Event()
    box = Outbox("logger.more.far", far)
    box.start(0)
    box.close()
    far.free.set()
    assert told(caplog) == [
        "logger.more.far: 1 call did not arrive; the last failure: nothing has moved for 0.05 seconds"
    ]


def test_tensors_and_figures_are_those_of_the_moment():
    far, weights, figure = Far(), torch.ones(3), Figure()
    far.free = threading.Event()
    figure.subplots()
    box = Outbox("logger.more.far", far)
    box.start(0)
    box.histogram("weights", weights, step=1)
    box.figure("a", figure, step=1)
    weights.zero_()
    figure.clear()
    far.free.set()
    box.close()
    assert far.calls == [("start", 0), ("histogram", 3.0), ("figure", 1), ("close",)]


def test_pictures_that_wait_are_bounded(caplog, monkeypatch):
    monkeypatch.setattr(outbox, "_MOST_PICTURES", 2)
    far = Far()
    far.free = threading.Event()
    box = Outbox("logger.more.far", far)
    box.start(0)
    for _ in range(5):
        box.histogram("weights", torch.ones(1), step=1)
    far.free.set()
    box.close()
    assert [call[0] for call in far.calls] == ["start", "histogram", "histogram", "close"]
    assert "3 calls did not arrive" in told(caplog)[-1]


def test_a_logger_of_the_users_that_is_patient_never_ends_a_run():
    far = Far(start=10_000)
    own = OwnLogger("logger.more.far", lambda: far)
    own.start(0)
    own.end("finished")
    own.close()
    assert far.closed == 1
