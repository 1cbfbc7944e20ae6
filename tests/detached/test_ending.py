"""Ending a run from elsewhere, and what status it ended with."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.detached import following
from lightkit.detached.following import ask_to_end, exit_status
from lightkit.detached.liveness import look, wait_until_free
from tests.detached.made import going_on, make_run


def result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def test_a_run_is_asked_once_however_often_it_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal would end it without saving."""

    def refuse(*_: object) -> None:
        raise PermissionError

    folder = make_run(project)
    with going_on(folder, seconds=0.5):
        standing = look(folder)
        with monkeypatch.context() as patch:
            patch.setattr(following.signal, "pidfd_send_signal", refuse, raising=False)
            patch.setattr(following.os, "kill", refuse)
            with pytest.raises(UserError, match="belongs to another user"):
                ask_to_end(standing, now=True)
        assert [ask_to_end(standing), ask_to_end(standing), ask_to_end(look(folder))] == [True, False, False]
        assert wait_until_free(folder)
    assert result(folder)["count"] == 1
    assert exit_status(look(folder)) == 143
    assert not ask_to_end(standing)  # it has ended, and its number may be that of another process
    assert not ask_to_end(replace(standing, pid=os.getpid()), now=True)
    monkeypatch.delattr(following.os, "pidfd_open", raising=False)  # a system without handles of processes
    with going_on(folder):  # the note of the last time is older than this process
        assert ask_to_end(look(folder))
        assert wait_until_free(folder)
    assert result(folder)["reason"] == "SIGTERM at step 7"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"host": "elsewhere", "pid": 4711}, "it runs on another machine, elsewhere"),
        ({"host": None, "pid": None}, "it is not known which process runs there"),
    ],
)
def test_a_process_that_cannot_be_reached(project: Path, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        ask_to_end(replace(look(make_run(project)), **facts))
    assert error.value.exit_code == 1


@pytest.mark.parametrize(
    ("status", "facts", "code"),
    [
        ("finished", {}, 0),
        ("paused", {}, 0),
        ("pruned", {}, 0),
        ("failed", {"exit_status": 4}, 4),
        ("failed", {}, 1),
        ("failed", {"exit_status": "4"}, 1),
        ("failed", {"exit_status": 4000}, 1),
        ("interrupted", {"exit_status": 130}, 130),
        ("interrupted", {"reason": "SIGUSR1 at step 4"}, 138),
        ("interrupted", {"reason": "SIGNONSENSE"}, 130),
        ("interrupted", {}, 130),
        (None, {}, 1),
    ],
)
def test_the_status_that_a_run_ended_with(project: Path, status: str | None, facts: dict[str, Any], code: int) -> None:
    folder = make_run(project, status=status, **facts)
    os.utime(folder / "result.json", (time.time(),) * 2) if status else None
    assert exit_status(look(folder)) == code
