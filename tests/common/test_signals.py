"""Being told to end, from the first line on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from lightkit.common.signals import exiting, held, waiting
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_what_fails_in_tidying_up_does_not_hide_the_signal(number: int, code: int) -> None:
    with pytest.raises(SystemExit) as stop, exiting():  # noqa: PT012
        try:
            signal.raise_signal(number)
        finally:
            raise AttributeError("half-way")
    assert stop.value.code == code
    assert isinstance(stop.value.__cause__, AttributeError)


def test_an_error_of_its_own_stays_what_it_is() -> None:
    with pytest.raises(AttributeError), exiting():
        raise AttributeError("a bug")


def test_ctrl_c_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), exiting():
        signal.raise_signal(signal.SIGINT)


def test_a_signal_waits_for_the_end_of_an_import() -> None:
    done = []
    with pytest.raises(SystemExit) as stop, exiting():  # noqa: PT012
        with held():
            signal.raise_signal(signal.SIGTERM)
            done.append("imported")
        done.append("trained")
    assert (stop.value.code, done) == (143, ["imported"])


def test_the_second_signal_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr("os._exit", left.append)
    with pytest.raises(SystemExit), exiting(), held():  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert left == [143]


def test_what_comes_meanwhile_waits() -> None:
    reached = False
    with exiting(), pytest.raises(SystemExit) as left, waiting():  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)  # to this thread: others do not wait
        reached = True
    assert (reached, left.value.code) == (True, 143)


def test_a_signal_to_a_process_that_is_being_forked_reaches_it() -> None:
    for _ in range(4):
        with exiting():
            pid = 0
            try:
                with waiting():
                    pid = os.fork()
                if pid == 0:
                    time.sleep(PATIENCE_SECONDS)
                    os._exit(0)
            except SystemExit:
                os._exit(143)
            os.kill(pid, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 143
