"""What kind of failure an error is; the user's own line among those of libraries, below the errors that wrap it."""

from __future__ import annotations

import inspect
import json

from lightkit.common.errors import UserError
from lightkit.common.failures import exit_status, in_short, is_dead_worker, is_out_of_memory, user_frame


def caught(call: object) -> Exception:
    try:
        call()  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def load() -> None:
    json.loads("{")


def wrapped() -> None:
    try:
        load()
    except ValueError as error:
        raise RuntimeError("wrapped") from error


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_the_deepest_line_outside_of_libraries() -> None:
    assert str(user_frame(caught(load))).endswith(f"test_failures.py:{line_of(load, 'json.loads')}")


def test_the_error_at_the_bottom_counts() -> None:
    assert str(user_frame(caught(wrapped))).endswith(f"test_failures.py:{line_of(load, 'json.loads')}")


def test_errors_of_libraries_alone_have_no_line() -> None:
    assert user_frame(ValueError("never raised")) is None


def test_in_short_is_one_line() -> None:
    assert in_short(ValueError("two\n  lines")) == "ValueError: two lines"
    assert in_short(KeyError()) == "KeyError"


def test_memory_that_ran_out_is_told_in_many_ways() -> None:
    for text in (
        *("CUDA error: out of memory", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ):
        assert is_out_of_memory(RuntimeError(text)), text
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_is_dead_worker() -> None:
    assert is_dead_worker(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "))
    assert is_dead_worker(RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"))
    assert not is_dead_worker(RuntimeError("DataLoader timed out after 5 seconds"))
    assert not is_dead_worker(ValueError("DataLoader worker (pid 7) is killed by signal: Killed. "))


def test_the_status_of_a_process_that_an_error_ends() -> None:
    for error, status in (
        *((UserError("wrong"), 2), (UserError("not finite", exit_code=3), 3), (KeyboardInterrupt(), 130)),
        *((SystemExit(143), 143), (SystemExit(None), 0), (SystemExit("why"), 1), (ValueError(), 1)),
        *((MemoryError(), 4), (RuntimeError("CUDA error: out of memory"), 4)),
    ):
        assert exit_status(error) == status
