"""The process that measures, seen from the run: it answers, is killed, or ends by itself."""

from __future__ import annotations

import pytest

from lightkit.common.errors import UserError
from lightkit.runner.memory.measuring import Child


def test_a_process_that_was_killed_for_its_memory_did_not_fit() -> None:
    code = (
        "import os, sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)"
    )
    with Child("{}", ("-c", code)) as child:
        assert child.answer() == {}
        assert child.ask(size=8, window=1) == {"size": 8, "peak": None}


def test_a_process_that_ends_by_itself_is_told() -> None:
    code = "import sys; sys.stderr.write('Segfault or worse'); sys.exit(3)"
    with (
        Child("{}", ("-c", code)) as child,
        pytest.raises(UserError, match=r"ended with status 3:\nSegfault or worse") as caught,
    ):
        child.answer()
    assert caught.value.exit_code == 1


def test_parts_that_cannot_be_built_end_the_search() -> None:
    code = 'print(\'{"error": "no such file", "exit_code": 2}\')'
    with Child("{}", ("-c", code)) as child, pytest.raises(UserError, match="no such file") as caught:
        child.answer()
    assert caught.value.exit_code == 2
