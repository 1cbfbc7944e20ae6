"""Runs in terminals of their own, and the processes that outlive these."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightkit.detached.liveness import look
from tests.detached.terminal import Terminal
from tests.faults.conftest import HERE as FAULTS
from tests.faults.conftest import starter
from tests.faults.harness import TRAIN
from tests.warm import Warm


@pytest.fixture(scope="session")
def whole(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    project = tmp_path_factory.mktemp("whole")
    process = starter(warm, project, tmp_path_factory, [])(*TRAIN)
    assert process.wait() == 0, process.err
    return project / "run"


@pytest.fixture
def terminal(warm: Warm, project: Path) -> Iterator[Callable[..., Terminal]]:
    """`terminal("train", "-d", …)` starts the command in a terminal; whatever is left at the end is killed."""
    (project / "faulty.py").write_text((FAULTS / "faulty.py").read_text())
    terminals: list[Terminal] = []

    def run(*args: str, **variables: str) -> Terminal:
        terminals.append(Terminal.run(warm, args, project, variables))
        return terminals[-1]

    yield run
    for one in terminals:
        one.close()
    for lock in [*project.rglob(".job"), *project.rglob(".lock")]:
        while (pid := look(lock.parent).pid) is not None and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
