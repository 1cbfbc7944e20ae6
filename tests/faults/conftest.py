"""Real runs in processes of their own, to be hurt: `lightkit("train", …)` starts one, `.wait()` tells how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import TRAIN, Process
from tests.warm import Warm

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def whole(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    project = tmp_path_factory.mktemp("whole")
    process = starter(warm, project, tmp_path_factory, [])(*TRAIN)
    assert process.wait() == 0, process.err
    return project / "run"


@pytest.fixture
def lightkit(warm: Warm, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Process]]:
    """`lightkit("train", "data=wine")` starts the command in a process of its own, inside `project`."""
    started: list[Process] = []
    yield starter(warm, project, tmp_path_factory, started)
    for process in started:
        if process.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-process.pid, signal.SIGKILL)
            process.wait()


def starter(
    warm: Warm, project: Path, places: pytest.TempPathFactory, started: list[Process]
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
        options = {"ignored": ignored, "file_limit": file_limit, "clock_shift": clock_shift}
        with open(os.devnull) as none, (place / "out").open("a") as out, (place / "err").open("a") as err:
            streams = [file.fileno() for file in (none, out, err)]
            running = warm.start(args, project, streams, variables={**os.environ, **variables}, **options)
        started.append(Process(place, project, running))
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
