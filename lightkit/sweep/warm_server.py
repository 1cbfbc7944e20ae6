"""The process that forks jobs, when it has imported what trainings need.

A forked job is as a fresh process that has just imported the same: in the server nothing is computed, CUDA is not
touched, no module of the project is imported, and no thread runs, as children would wait for it forever. As nothing is
computed, it need not limit PyTorch's threads: setting their number, even to what it was, may change results.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit.processes.forks import forked, missed_threads
from lightkit.sweep.run_job import tie_to_sweep
from lightkit.sweep.warm import TIED_TO

PRELOADED = (
    "lightkit.data.shapes",
    "lightkit.data.tables",
    "lightkit.metrics.drawing",
    "lightkit.metrics.figures",
    "lightkit.models",
    "lightkit.runner",
    "matplotlib.backends.backend_agg",
    "psutil",
    "sklearn.datasets",
    "tensorboard.plugins.hparams.api_pb2",
    "torch.utils.serialization.config",
    "torch.utils.tensorboard",
    "torchmetrics.classification",
    "torchmetrics.regression",
)
"""What most trainings import; what others need beside it, their own processes import."""


def serve() -> list[str]:
    """Fork a process for every request from standard input, until that ends.

    Returns:
        In a forked process, the arguments of lightkit with which it goes on. In the server itself this never returns.
    """
    tie_to_sweep()
    channel = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as none:
        os.dup2(none.fileno(), 0)
    for name in PRELOADED:
        with contextlib.suppress(Exception):  # the job that needs it says what is wrong
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a search for cycles in a child would copy all the memory that it shares
    running = dict[int, tuple[int, int]]()
    while True:
        for ready in select.select([channel.fileno(), *running], [], [])[0]:
            if ready in running:
                number, pid = running.pop(ready)
                os.close(ready)
                _say(channel, {"job": number, "code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})
            elif (arguments := _fork(channel, running)) is not None:
                return arguments


def _fork(channel: socket.socket, running: dict[int, tuple[int, int]]) -> list[str] | None:
    """Fork the process of the next request, or refuse to; return its arguments in that process, and None in this."""
    text, logs, _, _ = socket.recv_fds(channel, 1 << 16, 1)
    if not text:
        os._exit(0)  # without taking apart what was imported
    request, server = json.loads(text), os.getpid()
    if harmful := missed_threads():
        os.close(logs[0])
        why = f"what is imported runs threads ({', '.join(harmful)})"
        _say(channel, {"job": request["job"], "refused": why})
        return None
    with forked() as pid:
        if pid == 0:
            for handle in (channel.detach(), *running):
                os.close(handle)
            return _become(request, logs[0], server)
    os.close(logs[0])
    handle = os.pidfd_open(pid)
    running[handle] = (request["job"], pid)
    _say(channel, {"job": request["job"], "pid": pid}, handle)
    return None


def _say(channel: socket.socket, what: Mapping[str, Any], *handles: int) -> None:
    with contextlib.suppress(OSError):  # the sweep has ended, and so does all that was forked
        socket.send_fds(channel, [json.dumps(what).encode()], handles)


def _become(request: Mapping[str, Any], log: int, server: int) -> list[str]:
    """Be the process of a job as it is at its start; return its arguments."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ.update({**request["variables"], TIED_TO: str(server)})
    importlib.invalidate_caches()  # files may have been added since
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator does so by itself; PyTorch's starts with a constant
    sys.argv[1:] = request["args"]
    return list(request["args"])
