"""Real runs in processes of their own, to be hurt: `lightkit("train", …)` starts one, `.wait()` tells how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import TRAIN, Process
from tests.waiting import until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    """The process that forks the others."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", "from tests.faults.server import serve; serve()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture(scope="session")
def whole(server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    project = tmp_path_factory.mktemp("whole")
    process = starter(server, project, tmp_path_factory, [])(*TRAIN)
    assert process.wait() == 0, process.err
    return project / "run"


@pytest.fixture
def lightkit(
    server: subprocess.Popen[str], project: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Process]]:
    """`lightkit("train", "data=wine")` starts the command in a process of its own, inside `project`."""
    started: list[Process] = []
    yield starter(server, project, tmp_path_factory, started)
    for process in started:
        if process.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-process.pid, signal.SIGKILL)


def starter(
    server: subprocess.Popen[str], project: Path, places: pytest.TempPathFactory, started: list[Process]
) -> Callable[..., Process]:
    """What starts processes in a project."""
    (project / "experiments").mkdir(exist_ok=True)
    (project / "faulty.py").write_text((HERE / "faulty.py").read_text())

    def start(
        *args: str,
        ignored: Sequence[str] = (),
        file_limit: int | None = None,
        clock_shift: float = 0.0,
        **variables: str,
    ) -> Process:
        place = places.mktemp("process")
        job = {
            "args": args,
            "place": str(place),
            "project": str(project),
            "variables": variables,
            "ignored": list(ignored),
            "file_limit": file_limit,
            "clock_shift": clock_shift,
        }
        assert server.stdin is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        pid = int(until(lambda: (place / "pid").exists() and (place / "pid").read_text(), "the process to start"))
        started.append(Process(place, project, pid))
        return started[-1]

    return start


@pytest.fixture
def ran(lightkit: Callable[..., Process]) -> Callable[..., Process]:
    """The same, and waits until it has ended."""

    def run(*args: str, **options: Any) -> Process:
        process = lightkit(*args, **options)
        process.wait()
        return process

    return run
