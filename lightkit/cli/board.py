"""`lightkit board`: TensorBoard over the runs, on this machine only, with the way to see it from another."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import complain, json_text, say, table
from lightkit.cli.tunnel import Route, find_route
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import of_signal
from lightkit.detached.boards import BoardFiles, RunningBoard, board_files, running_boards
from lightkit.processes.children import Child
from lightkit.runs.catalog import find_run, places_of, project

_HOST = "127.0.0.1"
_LOOK_SECONDS = 0.5
_LINES = 20
"""Lines of a board that did not start, which are shown."""


def board(args: list[str]) -> int:
    """Run TensorBoard until it is interrupted, or start one that goes on by itself."""
    options = _read(args)
    if options.list:
        return _list(as_json=options.json)
    if options.stop:
        return _stop(options)
    folder, route = _folder(options.folder), find_route(options.via)
    port, local = _port("--port", options.port), _port("--local-port", options.local_port)
    options.host = options.host or _HOST
    files = board_files(folder, options.host)
    if (found := files.board()) is not None:
        if port is not None and port != found.port:
            what = f"a board shows this already, on port {found.port}"
            fix = "lightkit board --stop ends it; --local-port is the port on the laptop"
            raise UserError(what, key="--port", received=options.port, fix=fix)
        return 0 if options.ready else _print_addresses(found, route, local=local, is_new=False)
    if options.detach:
        begun = _start(folder, options)
        return begun if isinstance(begun, int) else _print_addresses(begun, route, local=local, is_new=True)
    return _serve(files, folder, options, port=port, route=route)


def _read(args: list[str]) -> Namespace:
    parser = Parser("board", "folder?")
    parser.add_argument("--ready", type=int, help=SUPPRESS)
    options = parser.read(args)
    if options.json and not options.list:
        raise UserError("goes with --list", key="--json")
    if options.stop and options.detach:
        raise UserError("--stop ends a board, --detach begins one", key="lightkit board")
    return options


def _folder(text: str | None) -> Path:
    """Return what is to be shown: a folder, a run or a sweep by its name."""
    root, places = project(), _places(text)
    for place in places:
        if place.is_dir():
            return place.resolve()
    if text is None or "/" in text.removeprefix(f"{run_files.OUTPUTS}/").strip("/"):
        fix = "`lightkit train` makes the first run" if text is None else "`lightkit runs` lists the runs"
        raise UserError("no such folder", key=str(places[0]), fix=fix, family="file")
    try:
        return find_run(text, root)
    except UserError:
        from lightkit.sweep.plan import all_sweeps, find_sweep

        if any(sweep.name.endswith(text) for sweep in all_sweeps(root, everywhere=True)):
            return find_sweep(text, root)
        raise


def _places(text: str | None) -> tuple[Path, ...]:
    """Return the folders that are meant where it is no name: what was typed, or the folder of all runs."""
    return (project() / run_files.OUTPUTS,) if text is None else places_of(text, project())


def _port(key: str, text: str | None) -> int | None:
    expected = "a number from 1 to 65535"
    return None if text is None else whole_number(key, text, least=1, most=65535, what="not a port", expected=expected)


def _print_addresses(found: RunningBoard, route: Route, *, local: int | None, is_new: bool, ends: str = "") -> int:
    """Print where a board is to be seen; return the exit status."""
    since = "" if is_new else f" (it runs since {_since(found)})"
    say(f"TensorBoard over {found.folder}{since}\n")
    host = f"[{found.host}]" if ":" in found.host else found.host
    lines = [("here", f"http://{host}:{found.port}/")]
    lines += route.lines(found.port, host=found.host, local=local or found.port)
    for name, line in lines:
        say(f"  {name:<15}{line}")
    if found.detached:
        log = board_files(found.folder, found.host).log
        ends = f"It goes on without this terminal. `{_stop_command(found)}` ends it; its messages are in {log}"
    say(f"\n{ends or f'Ctrl-C in its terminal ends it, or `{_stop_command(found)}`.'}")
    sys.stdout.flush()
    return 0


def _stop_command(found: RunningBoard) -> str:
    shown = "" if found.folder == (project() / run_files.OUTPUTS).resolve() else f" {shlex.quote(str(found.folder))}"
    return f"lightkit board --stop{shown}"


def _since(found: RunningBoard) -> str:
    return f"{datetime.fromtimestamp(found.started):%Y-%m-%d %H:%M}"


def _serve(files: BoardFiles, folder: Path, options: Namespace, *, port: int | None, route: Route) -> int:
    """Run TensorBoard over the runs by their short names until it is to end; return the exit status."""
    from lightkit.detached.tensorboard import named_runs, serving

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(of_signal(signal.SIGTERM))  # an exception, so that all is put away

    signal.signal(signal.SIGTERM, end)
    is_detached = options.ready is not None
    with (
        _locked(files, needed=is_detached) as files,
        named_runs(folder, files.runs) as runs,
        serving(runs, host=options.host, wanted=port, passed=_warn_of_port) as port,
    ):
        found = RunningBoard(folder, options.host, port, time.time(), detached=is_detached)
        files.announce(found)
        if is_detached:
            os.close(options.ready)
        else:
            _print_addresses(found, route, local=_port("", options.local_port), is_new=True, ends="Ctrl-C ends it.")
        try:
            while not files.is_asked_to_end():
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            return 0
    return 0


@contextmanager
def _locked(files: BoardFiles, *, needed: bool) -> Iterator[BoardFiles]:
    """Lock the files of a board while inside; ones that nobody finds where the user's folder cannot be written."""
    there = next(place for place in (files.place, *files.place.parents) if place.exists())
    if not needed and not os.access(there, os.W_OK | os.X_OK):
        with tempfile.TemporaryDirectory(prefix="lightkit-board-") as place:
            yield BoardFiles(Path(place), files.name)
        return
    with files.locked():
        yield files


def _warn_of_port(port: int) -> None:
    """Say that a usual port is another user's: whoever opens it sees what is not theirs, and takes it for their own."""
    from lightkit.detached.ports import holder

    found = holder(port)
    if found is None:
        complain(f"warning: port {port} is taken; the system does not tell by whom. Look only at the address below")
    elif not found.is_ours:
        complain(f"warning: port {port} is taken by {found}: what http://127.0.0.1:{port}/ shows is not yours")


def _start(folder: Path, options: Namespace) -> RunningBoard | int:
    """Start a board in a session of its own, and wait until it answers; return its exit status where it does not."""
    if os.name == "nt":
        raise UserError("Windows has no sessions to detach from", key="--detach", fix="start /b lightkit board")
    files = board_files(folder, options.host)
    files.make()
    ready, told = os.pipe()
    command = [sys.executable, "-m", "lightkit", "board", str(folder), "--host", options.host, "--ready", str(told)]
    command += ["--port", options.port] if options.port else []
    command = _outliving_logout(command)
    with files.log.open("wb") as log:
        process = Child(command, output=log, pass_fds=[told])
    os.close(told)
    try:
        os.read(ready, 1)  # it is closed when the board answers, or has ended
    except BaseException:
        process.terminate()
        raise
    finally:
        os.close(ready)
    found = files.board()
    lines = files.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:]
    for line in lines:
        complain(line)
    if found is None and (code := process.wait()) == 0:
        raise UserError("the board has ended at once", key=str(folder), fix=f"what it said is in {files.log}")
    return found if found is not None else code


def _outliving_logout(command: list[str]) -> list[str]:
    """Return a command that runs another one where systemd lets it be at logout; say what does, where it will not."""
    from lightkit.detached.systemd import LINGER, fate, scope_command

    found = fate()
    if found == "scope":
        return scope_command(command) or command
    if found != "stays":
        when = "when you log out" if found == "killed" else "when you log out everywhere"
        complain(f"note: systemd ends the board {when}; to let it go on:  {LINGER}")
    return command


def _stop(options: Namespace) -> int:
    """End the board that shows a folder, and wait until it has ended; the folder may be gone by now."""
    everything = [board for board in running_boards() if options.host in (None, board.host)]
    meant = [place.resolve() for place in _places(options.folder)]
    boards = [board for board in everything if board.folder in meant]
    if not boards and options.folder is not None:
        with suppress(UserError):  # no run has this name: what boards show helps more than the names of runs
            meant = [_folder(options.folder)]
            boards = [board for board in everything if board.folder in meant]
    if not boards:
        shown = [str(board.folder) for board in everything]
        what, fix = "no board of yours shows this", "lightkit board --list"
        raise UserError(what, key=options.folder or str(meant[0]), choices=shown, fix=fix, family="file")
    for board in boards:  # one for each address that it listens on
        board_files(board.folder, board.host).end()
        say(f"ended: TensorBoard over {board.folder}, port {board.port}")
    return 0


def _list(*, as_json: bool) -> int:
    """Print the boards of this user on this machine."""
    found = running_boards()
    if as_json:
        say(json_text(list(map(vars, found))))
        return 0
    if not found:
        say("no board of yours runs on this machine; `lightkit board` starts one")
        return 0
    rows = [
        [f"http://{other.host}:{other.port}/", _since(other), "yes" if other.detached else "", str(other.folder)]
        for other in found
    ]
    say(table(["address", "since", "detached", "folder"], rows))
    return 0
