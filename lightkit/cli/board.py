"""`lightkit board`: TensorBoard over the runs, on this machine only, with the way to see it from another."""

from __future__ import annotations

import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lightkit.cli.arguments import Parser
from lightkit.cli.board_names import RunLinks
from lightkit.cli.terminal import complain, say
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import of_signal
from lightkit.runs.catalog import project

HELP = {
    "board": """\
usage: lightkit board [FOLDER] [--port N] [--host ADDRESS]

Show the curves of all runs below FOLDER (default: outputs/) in a browser. Prints the address, and the `ssh` line to
type on a laptop when the runs are on a server. Ctrl-C ends it. Runs go by what tells them from each other, that first:
of a sweep what was swept, then the name and when it began. `tensorboard --logdir outputs` calls them by their paths.

options:
  --port N        port to listen on (default: 6006, or a free one when that is taken)
  --host ADDRESS  address to listen on (default: 127.0.0.1, which only this machine reaches)

examples:
  lightkit board
  lightkit board outputs/sweeps --port 7007""",
}

USUAL_PORT = 6006
_USUAL = re.compile(
    r"^\s*$|TensorFlow installation not found|NOTE: Using experimental fast data|--load_fast=false"
    r"|tensorboard/issues/4784|Press CTRL\+C"
)
"""Lines on standard error that tell a user nothing."""


def board(args: list[str]) -> int:
    """Run TensorBoard until it is interrupted."""
    parser = Parser("board")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--port")
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.read(args)
    folder = Path(options.folder) if options.folder else project() / run_files.OUTPUTS
    if not folder.is_dir():
        raise UserError("no such folder", key=str(folder), fix="`lightkit train` makes the first run")
    wanted = options.port
    if wanted is not None and (not wanted.isdecimal() or not 0 < int(wanted) < 65536):
        raise UserError("not a port", key="--port", received=wanted, expected="a number from 1 to 65535")
    port = free_port(options.host, wanted=None if wanted is None else int(wanted))
    say(f"TensorBoard over {folder.resolve()}\n\n  here:            http://{options.host}:{port}/")
    say(f"  from a laptop:   {forwarding(port)}")
    say(f"                   then open http://127.0.0.1:{port}/\n\nCtrl-C ends it.")
    sys.stdout.flush()
    return _serve(folder, host=options.host, port=port)


def _serve(folder: Path, *, host: str, port: int) -> int:
    """Run TensorBoard over the runs by their short names."""
    signal.signal(signal.SIGTERM, _end)
    with named_runs(folder) as runs:
        return _listen(runs, host=host, port=port)


@contextmanager
def named_runs(folder: Path) -> Iterator[Path]:
    """Make a folder in which the runs have short names while inside; where no links can be made, give `folder` back."""
    ended = threading.Event()
    with tempfile.TemporaryDirectory(prefix="lightkit-board-") as place:
        links = RunLinks(folder, Path(place))
        try:
            links.refresh()
        except OSError:
            yield folder.resolve()
            return
        follower = threading.Thread(target=links.follow, args=(ended,), daemon=True)
        follower.start()
        try:
            yield Path(place)
        finally:
            ended.set()
            follower.join()


def _listen(folder: Path, *, host: str, port: int) -> int:
    """Run TensorBoard until it ends or Ctrl-C ends it, and return its exit status."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", host]
    rest = ["--port", str(port), "--reload_interval", "5"]
    process = subprocess.Popen([*command, *rest], stderr=subprocess.PIPE, text=True, errors="replace")
    threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True).start()
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        return 0
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _pass_on(lines: Iterable[str]) -> None:
    """Print what TensorBoard complains about, without what it says every time."""
    for line in lines:
        if not _USUAL.search(line):
            complain(line.rstrip())


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    """End this process by an exception, so that TensorBoard is ended with it."""
    raise SystemExit(of_signal(signal.SIGTERM))


def free_port(host: str, *, wanted: int | None = None) -> int:
    """Find a port nobody listens on: the wanted one, else TensorBoard's usual one, else any.

    Args:
        host: Address to listen on.
        wanted: The port that was asked for; None where any will do.

    Raises:
        UserError: The wanted port is taken, or the address is not one of this machine.
    """
    for port in [wanted] if wanted is not None else [USUAL_PORT, 0]:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # As servers do: a port whose last connection is only winding down counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                reason = error.strerror or str(error)
                continue
            return int(probe.getsockname()[1])
    raise UserError(
        f"cannot listen there: {reason}",
        key=f"{host}:{wanted or USUAL_PORT}",
        fix="another --port, or none for a free one",
    )


def forwarding(port: int) -> str:
    """Return the `ssh` line that makes a port of this machine one of the laptop it is typed on.

    Args:
        port: Port on 127.0.0.1, here and there.
    """
    # SSH_CONNECTION is "client port server port": the server's address is one that the laptop has reached already.
    connection = os.environ.get("SSH_CONNECTION", "").split()
    host = connection[2] if len(connection) == 4 else socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "USER"
    return f"ssh -L {port}:127.0.0.1:{port} {user}@{host}"
