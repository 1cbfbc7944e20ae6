"""Signals that ask a run to end. Whole runs are in tests/faults."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from lightkit.common.signals import exiting
from lightkit.trainer.interrupt import AskedToEnd, Interrupt, Interrupted, Signals
from tests.trainer.parts import saving, trainer

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test does, the handlers are as before."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    after = {number: signal.getsignal(number) for number in NUMBERS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert before == after


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_is_noted(number: int) -> None:
    with Signals().caught() as signals:
        assert signals.number == 0
        os.kill(os.getpid(), number)
        assert signals.number == number
        with pytest.raises(Interrupted) as caught:
            signals.raise_at(7)
    assert caught.value.code == 128 + number
    assert str(caught.value) == f"{signal.Signals(number).name} at step 7"
    Interrupt().raise_at(3)
    with Signals().caught() as signals:
        signals.raise_at(3)


def ended_by(*numbers: int) -> int:
    """Exit status of a process that gets these signals in a run and then ends by itself with 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        with Signals().caught():
            for number in numbers:
                os.kill(os.getpid(), number)
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.thorough(first=3)
@pytest.mark.parametrize(
    ("first", "second"), [*zip(NUMBERS, [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGTERM])]
)
def test_a_second_signal_ends_the_process_at_once_and_a_hang_up_is_never_the_second(first: int, second: int) -> None:
    assert ended_by(first, second) == 128 + second
    assert ended_by(first, signal.SIGHUP, signal.SIGHUP) == 0
    assert ended_by(first, signal.SIGHUP, signal.SIGTERM) == 143


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals().caught() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.number == 0
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_caught() -> None:
    seen: list[Any] = []

    def work() -> None:
        with Signals().caught() as signals:
            seen.append((signals.number, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, signal.getsignal(signal.SIGTERM))]


def test_a_signal_ends_a_wait_and_only_that() -> None:
    with Signals().caught() as signals:
        signals.waiting = True
        with pytest.raises(AskedToEnd):
            os.kill(os.getpid(), signal.SIGTERM)
        assert not signals.waiting
        assert signals.number == signal.SIGTERM


class Asks(Interrupt):
    """A signal that comes after some questions."""

    def __init__(self, after: int) -> None:
        self.left = after

    @property
    def number(self) -> int:  # type: ignore[override]
        self.left -= 1
        return signal.SIGTERM if self.left < 0 else 0


@pytest.mark.parametrize("after", range(12))
def test_the_loop_saves_the_step_it_ends_at(after: int) -> None:
    run, saved = saving(trainer(interrupt=Asks(after), timetable={"save_epochs": None, "epochs": 3}))
    with pytest.raises(Interrupted) as caught:
        run.fit()
    assert saved[-1][0] == caught.value.step == run.state.step


def test_a_signal_while_a_batch_is_waited_for_saves_the_step_before() -> None:
    with Signals().caught() as signals:
        run, saved = saving(trainer(interrupt=signals, timetable={"save_epochs": None}))
        batches = run.learner.data.train.epoch

        def slow(epoch: int, start: int = 0, **more: Any) -> Iterator[Any]:
            for index, batch in enumerate(batches(epoch, start, **more)):
                if index == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

        run.learner.data.train.epoch = slow
        with pytest.raises(Interrupted) as caught:
            run.fit()
        assert [step for step, _ in saved] == [caught.value.step] == [2]

        def broken(epoch: int, start: int = 0, **more: Any) -> Iterator[Any]:
            raise ValueError("no data")
            yield

        run = trainer(interrupt=signals)
        signals.number = 0
        run.learner.data.train.epoch = broken
        with pytest.raises(ValueError, match="no data"):
            run.fit()
        assert not signals.waiting


class Careless:
    """Is taken apart while a signal comes: Python ignores what is raised there."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_was_swallowed_still_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with exiting():
        Careless()
        with Signals().caught() as signals:
            assert signals.asked()
            assert signals.number == signal.SIGTERM
    with exiting(), Signals().caught() as signals:
        assert not signals.asked()
