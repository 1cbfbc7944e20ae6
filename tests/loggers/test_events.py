from __future__ import annotations

import threading

import pytest

from lightkit.loggers.events import leave_failures_to_the_writer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_of_a_writers_thread_is_left_to_the_next_write(capfd: pytest.CaptureFixture[str]) -> None:
    class Failing(threading.Thread):
        """Keeps its exception and raises it, as the threads of TensorBoard's writers do."""

        exception: Exception | None = None

        def __init__(self, keeps: bool) -> None:
            super().__init__()
            self.keeps = keeps

        def run(self) -> None:
            error = OSError("no space left")
            self.exception = error if self.keeps else None
            raise error

    before = threading.excepthook
    threading.excepthook = threading.__excepthook__
    try:
        leave_failures_to_the_writer()
        leave_failures_to_the_writer()
        for keeps in (True, False):
            thread = Failing(keeps)
            thread.start()
            thread.join()
            assert ("no space left" in capfd.readouterr().err) is not keeps
    finally:
        threading.excepthook = before
