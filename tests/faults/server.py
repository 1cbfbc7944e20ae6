"""A process that has imported everything, and forks one real `lightkit` process per line it reads.

Importing torch takes seconds, forking takes milliseconds: each test gets a process of its own, with its own process
group, standard streams, signals and exit status.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing.util
import os
import resource
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn


def serve() -> None:
    """Fork a process for every JSON line on standard input."""
    _import_everything()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if os.fork() == 0:
            _watch(json.loads(line))


def _import_everything() -> None:
    for name in (
        "sklearn.datasets",
        "tensorboard.compat.proto.summary_pb2",
        "torch.utils.tensorboard",
        "torchmetrics.classification",
        "lightkit.cli.entry",
        "lightkit.cli.train",
        "lightkit.cli.evaluate",
        "lightkit.runner",
    ):
        importlib.import_module(name)
    importlib.import_module("lightkit.config").compose(["data=wine"])  # reads torch's sources for their signatures
    # A worker that hangs is waited for, and a parent that is gone is noticed, in tenths of seconds instead of seconds.
    torch_data = importlib.import_module("torch.utils.data._utils")
    torch_data.MP_STATUS_CHECK_INTERVAL = torch_data.worker.MP_STATUS_CHECK_INTERVAL = 0.5


def _watch(job: dict[str, Any]) -> NoReturn:
    """Start the process, write down how it ended, and end too."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _run(job)
    place = Path(job["place"])
    _write(place / "pid", str(pid))
    _, status = os.waitpid(pid, 0)
    _write(place / "code", str(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def _run(job: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(Path(job["place"]) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(job["project"])
        os.environ.update(job["variables"])
        for name in job["ignored"]:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        if job["file_limit"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_limit"],) * 2)
        if job["clock_shift"]:
            _shift_clock(job["clock_shift"])
        from lightkit.cli import main

        code = main(job["args"])
        threading._shutdown()  # type: ignore[attr-defined]
        multiprocessing.util._exit_function()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _shift_clock(seconds: float) -> None:
    """Let this process see another time of day; the monotonic clock goes on as it does."""
    now = time.time
    time.time = lambda: now() + seconds
