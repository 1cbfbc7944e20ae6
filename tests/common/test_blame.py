"""The user's own line is found among those of libraries, and below the errors that wrap it."""

from __future__ import annotations

import inspect
import json

from lightkit.common.blame import in_short, user_frame


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
    assert str(user_frame(caught(load))).endswith(f"test_blame.py:{line_of(load, 'json.loads')}")


def test_the_error_at_the_bottom_counts() -> None:
    assert str(user_frame(caught(wrapped))).endswith(f"test_blame.py:{line_of(load, 'json.loads')}")


def test_errors_of_libraries_alone_have_no_line() -> None:
    assert user_frame(ValueError("never raised")) is None


def test_in_short_is_one_line() -> None:
    assert in_short(ValueError("two\n  lines")) == "ValueError: two lines"
    assert in_short(KeyError()) == "KeyError"
