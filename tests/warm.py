"""`lightkit` in processes that start in milliseconds: one that has imported everything forks each of them.

Importing torch takes seconds. A process from here has its own process group, streams, folder, variables, signals and
exit status, as one that a shell starts; so have those that it starts itself, for a sweep or for several ranks.
`python -m tests.warm SOCKET` serves until its standard input ends. With the folder and the arguments of pytest after
it, a second one imports the tests too, and forks the processes that run them: `SOCKET` is `workers` beside the first.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.waiting import PATIENCE_SECONDS, until

SHARED = "TESTS_COMPOSED"
"""The environment variable that names the folder in which the processes leave for each other what they worked out."""
FOR_ALL = ("tests.composing", "tests.drawing", "tests.own_code", "tests.parsing", "tests.metrics_in_parts")
"""Imported before any test."""
_CLIENT = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    words = [*{words!r}, *(word for word in sys.argv[1:] if word != "-u")]
    job = {{"module": words[1], "args": words[2:], "folder": os.getcwd(), "variables": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(job).encode() + b"\\n"], [0, 1, 2])
    answers = server.makefile()
    pid, code = answers.readline(), int(answers.readline() or 1)
    sys.exit(code if code >= 0 else 128 - code)
"""


@dataclass
class Running:
    """A process that was started."""

    pid: int
    _answers: IO[str]
    _code: list[int] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """Its exit status, negative when a signal ended it; None while it runs."""
        if not self._code and select.select([self._answers], [], [], 0)[0]:
            self._code.append(int(self._answers.readline() or 1))
            self._answers.close()
        return self._code[0] if self._code else None

    def wait(self) -> int:
        """Its exit status, when it has ended."""
        if not self._code:
            select.select([self._answers], [], [], PATIENCE_SECONDS)
        assert self.code is not None, "waited for the process to end"
        return self.code


def begin(socket: Path, workers_of: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start the server; it ends with its standard input, and what it has started ends with it.

    Args:
        socket: Where it listens.
        workers_of: The folder and the arguments of a pytest whose worker processes are forked too.
    """
    command = [sys.executable, "-m", "tests.warm", str(socket), *workers_of]
    return subprocess.Popen(command, cwd=Path(__file__).resolve().parents[1], stdin=subprocess.PIPE)


@dataclass(frozen=True)
class Warm:
    """Starts processes by the server."""

    socket: Path

    def _ready(self) -> None:
        until(self.socket.exists, "the server of warm processes")

    def client(self, place: Path, *words: str) -> Path:
        """Write a program that is `python WORDS… ARGUMENTS…` by the server; together they are `-m MODULE …`."""
        self._ready()
        place.write_text(_CLIENT.format(python=sys.executable, socket=str(self.socket), words=words))
        place.chmod(0o755)
        return place

    def start(
        self,
        args: Sequence[str],
        folder: Path,
        streams: Sequence[int],
        *,
        variables: Mapping[str, str] | None = None,
        module: str = "lightkit",
        **options: Any,
    ) -> Running:
        """Start `python -m module ARGS` in a folder.

        Args:
            args: What follows the name of the module.
            folder: Its working directory.
            streams: File descriptors for its standard input, output and error.
            variables: All of its environment; this process's when left out.
            module: `lightkit`, or another module with a `main(args)`.
            **options: `ignored` signals by name, `file_limit` in bytes, `clock_shift` in seconds, `terminal` where the
                standard input is one and ends its session when it is closed.
        """
        self._ready()
        job = {"module": module, "args": args, "folder": str(folder), "variables": dict(variables or os.environ)}
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self.socket))
            socket.send_fds(server, [json.dumps(job | options).encode() + b"\n"], list(streams))
            answers = server.makefile(buffering=1)
        return Running(int(answers.readline()), answers)

    def run(self, args: Sequence[str], folder: Path, variables: Mapping[str, str]) -> tuple[int, str, str]:
        """Exit status, output and errors of `python -m lightkit ARGS`."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as none:
            streams = [file.fileno() for file in (none, out, err)]
            code = self.start(args, folder, streams, variables=variables).wait()
            texts = [file.read() for file in (out, err) if file.seek(0) == 0]
        return code, texts[0], texts[1]


def main(args: Sequence[str]) -> None:
    """Be `python -c CODE`, by which pytest starts a worker."""
    exec(args[-1], {"__name__": "__main__"})
    atexit._run_exitfuncs()


def serve(path: str, *workers_of: str) -> None:
    """Fork a process for every connection; answer with its id, and with its exit status when it has ended."""
    running: dict[int, tuple[int, socket.socket]] = {}
    other, forks_workers = None, False
    if workers_of:
        _import()
        other = os.fork()
        if forks_workers := other == 0:
            path = str(Path(path).with_name("workers"))
            _import_tests(*workers_of)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the terminal sends to pytest too: that ends this one
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen()
        Path(f"{path}.new").rename(path)  # who finds it may connect
        if not forks_workers and 0 not in select.select([0, server], [], [])[0]:  # many a session starts no process
            _import()
            _hurry()
        while 0 not in (ready := select.select([0, server, *running], [], [])[0]):
            for handle in ready:
                if handle is server:
                    handle, pid, connection = _started(server)
                    running[handle] = (pid, connection)
                else:
                    _tell_end(handle, *running.pop(handle))
    for pid, _ in running.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    if other:
        os.waitpid(other, 0)
    os._exit(0)  # without taking apart what was imported


@cache
def _import() -> None:
    """Import everything, and do for the first time what takes longer then."""
    subprocess.Popen = _Forking  # type: ignore[misc]
    for name in (
        *FOR_ALL,
        "tests.preloaded",
        "lightkit.cli.entry",
        "lightkit.cli.train",
        "lightkit.cli.evaluate",
        "lightkit.doctor.checks",
        "PIL.PngImagePlugin",
    ):
        importlib.import_module(name)
    importlib.import_module("tests.drawing").draw_first()
    importlib.import_module("lightkit.config").compose(["data=wine"])  # reads torch's sources for their signatures
    _freeze()


def _import_tests(folder: str, *args: str) -> None:
    """Import what pytest does to collect tests; where that fails, its workers say so."""
    import pytest

    _Forking.forks = False
    gc.unfreeze = lambda: None  # nor does what is forked from here look at the end at what is left of all this

    class Imports:
        @pytest.hookimpl(tryfirst=True)
        def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
            if not isinstance(collector, pytest.Module):
                return None
            try:
                collector.obj  # noqa: B018
            except (Exception, pytest.skip.Exception):
                place = collector.path.with_suffix("").relative_to(collector.config.rootpath)
                sys.modules.pop(".".join(place.parts), None)  # a part of it is no module of tests
            return pytest.CollectReport(collector.nodeid, "passed", None, [])

    os.chdir(folder)
    streams = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "w") as none:
        for number in (1, 2):
            os.dup2(none.fileno(), number)
        with contextlib.suppress(BaseException):
            pytest.main([*args, "-n0", "--collect-only"], [Imports()])
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    vars(importlib.import_module("torchmetrics"))  # pytest looks at all names in modules of tests: here once for all
    _freeze()


def _hurry() -> None:
    """Let what commands wait for take less time."""
    # A worker that hangs is waited for, and a parent that is gone is noticed, in tenths of seconds instead of seconds.
    torch_data = importlib.import_module("torch.utils.data._utils")
    torch_data.MP_STATUS_CHECK_INTERVAL = torch_data.worker.MP_STATUS_CHECK_INTERVAL = 0.5
    importlib.import_module("lightkit.detached.line")._LOOK_SECONDS = 0.1  # as is a run that waits for its turn

    os.register_at_fork = _register  # type: ignore[assignment]


_programs, _register_at_fork = [0], os.register_at_fork


def _register(**calls: Callable[[], object]) -> None:
    """Do something at each fork of this program, but not at those of programs that it has started by a fork."""
    number = _programs[0]
    _register_at_fork(**{when: partial(_call_in, number, call) for when, call in calls.items()})  # type: ignore[arg-type]


def _call_in(number: int, call: Callable[[], object]) -> None:
    if _programs[0] == number:
        call()


def _freeze() -> None:
    importlib.import_module("lightkit.runs.code").own_files()  # looks at the files of all modules once
    gc.collect()
    gc.freeze()  # a search for cycles in a child would copy all the memory that it shares


def _started(server: socket.socket) -> tuple[int, int, socket.socket]:
    connection, _ = server.accept()
    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        _become(streams=streams, session=True, **json.loads(text))
    for stream in streams:
        os.close(stream)
    _tell(connection, pid)
    return os.pidfd_open(pid), pid, connection


def _tell_end(handle: int, pid: int, connection: socket.socket) -> None:
    os.close(handle)
    _tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    connection.close()


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        connection.sendall(f"{number}\n".encode())


class _Forking(subprocess.Popen):
    """Starts `python -m lightkit`, also behind `env NAME=VALUE…`, by a fork, and anything else as ever."""

    forks = True
    """False in processes that run tests: what they have imported and patched is theirs."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        words = [str(word) for word in args if word != "-u"] if isinstance(args, (list, tuple)) else []
        given = list[str]()
        if words[:1] == ["env"]:
            given = [*takewhile(lambda word: "=" in word, words[1:])]
            words = words[1 + len(given) :]
        if not self.forks or words[:3] != [sys.executable, "-m", "lightkit"]:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        _, _, _, _, folder, variables, _, _, _, *pipes = rest[:15]
        inner = [pipes[0], pipes[3], pipes[5]]
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate(inner)]
        self.pid = os.fork()
        if self.pid == 0:
            its = {**(variables or os.environ), **dict(word.split("=", 1) for word in given)}
            _become("lightkit", words[3:], folder or ".", its, streams=streams, session=bool(rest[20]))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _become(
    module: str,
    args: Sequence[str],
    folder: str,
    variables: Mapping[str, str],
    *,
    streams: Sequence[int],
    session: bool,
    ignored: Sequence[str] = (),
    file_limit: int | None = None,
    clock_shift: float = 0.0,
    terminal: bool = False,
) -> NoReturn:
    """Be the process that was asked for, from its first moment to its end."""
    code = 1
    _programs[0] += 1
    try:
        _reset(streams, session=session)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(folder)
        kept = dict(variables)
        os.environ.clear()
        os.environ.update(kept)
        for name in ignored:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        if clock_shift:
            now = time.time
            time.time = lambda: now() + clock_shift  # the monotonic clock goes on as it does
        code = importlib.import_module(f"{module}.cli" if module == "lightkit" else module).main(list(args)) or 0
        threading._shutdown()  # type: ignore[attr-defined]
        multiprocessing.util._exit_function()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            sys.stderr.write(f"{stop.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _reset(streams: Sequence[int], *, session: bool) -> None:
    """Leave nothing of the process this was forked from but what is imported."""
    if session:
        os.setsid()
    inner = [os.dup(stream) for stream in streams]
    for number, stream in enumerate(inner):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a pipe that stays open here would not end elsewhere
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    serve(*sys.argv[1:])
