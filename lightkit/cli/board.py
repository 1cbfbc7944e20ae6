"""`lightkit board`: TensorBoard or a table over the runs, on this machine only, with the way to see it from another.

A browser on another machine gets to its port by a tunnel: there are lines for `ssh`, fields for PuTTY and Xshell.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import complain, report, say, table
from lightkit.common import run_files
from lightkit.common.errors import UserError, of_signal
from lightkit.detached.boards import BoardFiles, RunningBoard, board_files, bracketed, is_here, reached, running_boards
from lightkit.processes.children import Child
from lightkit.runs.catalog import find_run, places_of, project

_HOST = "127.0.0.1"
_LOOPBACK = (_HOST, "::1")
_TITLES = {False: "TensorBoard", True: "Table of runs"}
_SSH_PORT = 22
_HOP = re.compile(r"(?:[^\s@,;'\"]+@)?(?P<host>\[[0-9a-fA-F:.%]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?")
_LOOK_SECONDS = 0.5
_LINES = 20
"""Lines of a board that did not start, which are shown."""


def board(args: list[str]) -> int:
    """Run TensorBoard or the table of runs until it is interrupted, or start one that goes on by itself."""
    options = _read(args)
    if options.list:
        return _list(options)
    if options.stop:
        return _stop(options)
    folder, route = _folder(options.folder), find_route(options.via)
    port, local = _port("--port", options.port), _port("--local-port", options.local_port)
    options.host = options.host or _HOST
    files = board_files(folder, options.host, table=options.table)
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
    if options.table and options.host not in (None, *_LOOPBACK):
        what, fix = "the table is for this machine alone", "the tunnel that `lightkit board --table` prints"
        raise UserError(what, key="--host", received=options.host, choices=_LOOPBACK, fix=fix)
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
    say(f"{_TITLES[found.table]} over {found.folder}{since}\n")
    host = f"[{found.host}]" if ":" in found.host else found.host
    lines = [("here", f"http://{host}:{found.port}/")]
    lines += route.lines(found.port, host=found.host, local=local or found.port)
    for name, line in lines:
        say(f"  {name:<15}{line}")
    if found.detached:
        log = board_files(found.folder, found.host, table=found.table).log
        ends = f"It goes on without this terminal. `{_stop_command(found)}` ends it; its messages are in {log}"
    say(f"\n{ends or f'Ctrl-C in its terminal ends it, or `{_stop_command(found)}`.'}")
    sys.stdout.flush()
    return 0


def _stop_command(found: RunningBoard) -> str:
    shown = "" if found.folder == (project() / run_files.OUTPUTS).resolve() else f" {shlex.quote(str(found.folder))}"
    return f"lightkit board{' --table' * found.table} --stop{shown}"


def _since(found: RunningBoard) -> str:
    return f"{datetime.fromtimestamp(found.started):%Y-%m-%d %H:%M}"


def _serve(files: BoardFiles, folder: Path, options: Namespace, *, port: int | None, route: Route) -> int:
    """Run a board until it is to end; return the exit status."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(of_signal(signal.SIGTERM))  # an exception, so that all is put away

    signal.signal(signal.SIGTERM, end)
    is_detached = options.ready is not None
    with _locked(files, needed=is_detached) as files, _serving(files, folder, options, port) as port:
        found = RunningBoard(folder, options.host, port, time.time(), is_detached, options.table)
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
def _serving(files: BoardFiles, folder: Path, options: Namespace, port: int | None) -> Iterator[int]:
    """Serve the table, or TensorBoard over the runs by their short names, while inside; yield the port."""
    listening: dict[str, Any] = {"host": options.host, "wanted": port, "passed": _warn_of_port}
    if options.table:
        from lightkit.detached.run_table import serving_table

        with serving_table(folder, project(), **listening) as port:
            yield port
        return
    from lightkit.detached.tensorboard import named_runs, serving

    with named_runs(folder, files.runs) as runs, serving(runs, **listening) as port:
        yield port


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
    from lightkit.detached.boards import holder

    found = holder(port)
    if found is None:
        complain(f"warning: port {port} is taken; the system does not tell by whom. Look only at the address below")
    elif not found.is_ours:
        complain(f"warning: port {port} is taken by {found}: what http://127.0.0.1:{port}/ shows is not yours")


def _start(folder: Path, options: Namespace) -> RunningBoard | int:
    """Start a board in a session of its own, and wait until it answers; return its exit status where it does not."""
    if os.name == "nt":
        raise UserError("Windows has no sessions to detach from", key="--detach", fix="start /b lightkit board")
    files = board_files(folder, options.host, table=options.table)
    files.make()
    ready, told = os.pipe()
    command = [sys.executable, "-m", "lightkit", "board", str(folder), "--host", options.host, "--ready", str(told)]
    command += [*(["--port", options.port] if options.port else []), *["--table"] * options.table]
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
    from lightkit.detached.detach import LINGER, fate, scope_command

    found = fate()
    if found == "scope":
        return scope_command(command) or command
    if found != "stays":
        when = "when you log out" if found == "killed" else "when you log out everywhere"
        complain(f"note: systemd ends the board {when}; to let it go on:  {LINGER}")
    return command


def _stop(options: Namespace) -> int:
    """End the board that shows a folder, and wait until it has ended; the folder may be gone by now."""
    there = [board for board in running_boards() if board.table == options.table]
    everything = [board for board in there if options.host in (None, board.host)]
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
        board_files(board.folder, board.host, table=board.table).end()
        say(f"ended: {_TITLES[board.table]} over {board.folder}, port {board.port}")
    return 0


def _list(options: Namespace) -> int:
    """Print the boards of this user on this machine."""
    found = running_boards()
    rows = [
        [f"http://{each.host}:{each.port}/", _TITLES[each.table], _since(each), "yes" * each.detached, str(each.folder)]
        for each in found
    ]
    text = table(["address", "shows", "since", "detached", "folder"], rows)
    nothing = "no board of yours runs on this machine; `lightkit board` starts one"
    return report(options, list(map(vars, found)), lambda: text if found else nothing)


class Route(NamedTuple):
    """The way from a laptop to this machine."""

    user: str
    """Name of the user here."""
    host: str
    """Name or address of this machine."""
    port: int
    """Port of its ssh server."""
    via: tuple[str, ...]
    """Machines in between, as `ssh -J` takes them."""

    def lines(self, port: int, *, host: str, local: int) -> list[tuple[str, str]]:
        """Return what to type or to fill in to get from a port of the laptop to `host:port` here, by program."""
        target = reached(host)
        jump = f"-J {','.join(self.via)} " if self.via else ""
        by_port = "" if self.port == _SSH_PORT else f"-p {self.port} "
        page = f"http://127.0.0.1:{local}/"
        found = [
            ("from a laptop", f"ssh {jump}{by_port}-L {local}:{target}:{port} {self.user}@{self.host}"),
            ("", f"(in a terminal of Linux, macOS or Windows), then open {page}"),
            ("PuTTY", f"Session: Host Name {self.user}@{self.host}, Port {self.port}"),
            ("", f"Connection > SSH > Tunnels: Source port {local}, Destination {target}:{port}, Local, Add"),
        ]
        if self.via:
            *before, last = self.via
            found.append(("", f"Connection > Proxy: type SSH to proxy and use port forwarding, {_fields(last)}"))
            if before:
                own = f"{', '.join(before)} has to be its own proxy"
                found.append(("", f"(it takes one machine in between only: {own})"))
        found += [
            ("Xshell", f"Connection: Host {self.host}, Port {self.port}; Authentication: User Name {self.user}"),
            ("", f"Connection > SSH > Tunneling > Add: Type Local (Outgoing), Listen Port {local},"),
            ("", f"Destination Host {target.strip('[]')}, Destination Port {port}"),
        ]
        if self.via:
            hops = ", then ".join(_fields(hop) for hop in self.via)
            found.append(("", f"Connection > Proxy > Browse > Add: Type JUMPHOST, {hops}"))
        return found


def find_route(via: str | None = None) -> Route:
    """Find the way to this machine: that of the ssh connection this process runs in, if it runs in one.

    Args:
        via: Machines in between, `USER@HOST:PORT` each, separated by commas; the user and the port may be left out.

    Raises:
        UserError: They cannot be read.
    """
    user, host, port = "USER", socket.gethostname(), _SSH_PORT
    with suppress(KeyError, OSError):
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    hops = _hops(via) if via is not None else ()
    # SSH_CONNECTION is "client port server port": the server's address is one that the laptop has reached already.
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4 and connection[3].isdecimal():
        if is_here(connection[2]):
            host, port = connection[2], int(connection[3])
        elif via is None:  # a job of a cluster has it from the machine that it was submitted on
            hops = (f"{user}@{bracketed(connection[2])}" + ("" if connection[3] == "22" else f":{connection[3]}"),)
    elif via is None and os.environ.get("SLURM_JOB_ID") and os.environ.get("SLURM_SUBMIT_HOST", host) != host:
        hops = (f"{user}@{os.environ['SLURM_SUBMIT_HOST']}",)
    return Route(user, host, port, hops)


def _hops(text: str) -> tuple[str, ...]:
    hops = tuple(part.strip() for part in text.split(","))
    for hop in hops:
        found = _HOP.fullmatch(hop)
        if found is None or hop.startswith("-") or not 0 < int(found["port"] or _SSH_PORT) < 65536:
            expected = "USER@HOST or USER@HOST:PORT, several with commas between them"
            raise UserError("not a machine to jump over", key="--via", received=text, expected=expected)
    return hops


def _fields(hop: str) -> str:
    """Name what programs with a mouse ask for about a machine in between."""
    user, _, place = hop.rpartition("@")
    found = _HOP.fullmatch(place)
    host, port = (found["host"], found["port"]) if found else (place, None)
    return f"host {host.strip('[]')}, port {port or _SSH_PORT}" + (f", user name {user}" if user else "")
