"""`lightkit` as a shell command that starts in milliseconds: a process that has imported everything forks one for each.

`python -m tests.warm SOCKET` serves; `client(SOCKET, python)` is the text of the command.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from typing import NoReturn

_CLIENT = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    job = {{"args": sys.argv[1:], "folder": os.getcwd(), "variables": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(job).encode() + b"\\n"], [0, 1, 2])
    sys.exit(int(server.makefile().readline() or 1))
"""


def client(path: str, python: str) -> str:
    """The text of a program that has the server at `path` be `lightkit`, with its own streams, folder and variables."""
    return _CLIENT.format(socket=path, python=python)


def serve(path: str) -> None:
    """Fork a process for every connection, and answer with its exit status."""
    for name in ("sklearn.datasets", "torch.utils.tensorboard", "torchmetrics.classification", "lightkit.runner"):
        importlib.import_module(name)
    importlib.import_module("lightkit.config").compose(["data=wine"])  # reads torch's sources for their signatures
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        _run(json.loads(text), streams)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(f"{status if status >= 0 else 128 - status}\n".encode())
    os._exit(0)


def _run(job: dict, streams: list[int]) -> NoReturn:
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["variables"])
        from lightkit.cli import main

        code = main(job["args"])
        threading._shutdown()  # type: ignore[attr-defined]
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
