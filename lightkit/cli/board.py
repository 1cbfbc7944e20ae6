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
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, say
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import of_signal
from lightkit.runs.catalog import dated, project

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
_EVENTS = "tfevents"
_REFRESH_SECONDS = 5.0
_LONGEST_NAME = 200
"""Characters of a name; file systems take a few more."""


def board(args: list[str]) -> int:
    """Run TensorBoard until it is interrupted."""
    parser = Parser("board")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--port")
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.read(args)
    folder = Path(options.folder) if options.folder else project() / run_files.OUTPUTS
    if not folder.is_dir():
        raise UserError("no such folder", key=str(folder), fix="`lightkit train` makes the first run", family="file")
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
    """Run TensorBoard over the runs by their short names until it ends or Ctrl-C ends it; return its exit status."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(of_signal(signal.SIGTERM))  # an exception, so that TensorBoard is ended with this process

    signal.signal(signal.SIGTERM, end)
    with named_runs(folder) as runs:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(runs), "--host", host]
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


def _pass_on(lines: Iterable[str]) -> None:
    """Print what TensorBoard complains about, without what it says every time."""
    for line in lines:
        if not _USUAL.search(line):
            complain(line.rstrip())


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
        family="wrong-command",
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


class RunLinks:
    """A folder with a link to every run below another folder.

    TensorBoard calls a run by its folder, and its lists have room for the first letters of a path only: here the links
    are called after what tells the runs from each other.

    Args:
        runs: Folder with the runs at any depth.
        place: Where the links go.
    """

    def __init__(self, runs: Path, place: Path) -> None:
        self.runs, self.place = runs.resolve(), place
        self._known = dict[Path, Path]()

    def follow(self, ended: threading.Event) -> None:
        """Take new runs up as they come, until the end."""
        while not ended.wait(_REFRESH_SECONDS):
            with suppress(OSError):
                self.refresh()

    def refresh(self) -> None:
        """Link runs that are new; one that was deleted loses its link. A name stays once it is given.

        Raises:
            OSError: Links cannot be made here.
        """
        for run, link in [*self._known.items()]:
            if not run.is_dir():
                link.unlink(missing_ok=True)
                del self._known[run]
        for run in sorted(_with_curves(self.runs)):
            if run in self._known:
                continue
            name = short_name(run, self.runs)[:_LONGEST_NAME]
            taken = {link.name for link in self._known.values()}
            names = (name, *(f"{name} ({count})" for count in range(2, len(taken) + 3)))
            link = self.place / next(text for text in names if text not in taken)
            link.symlink_to(run, target_is_directory=True)
            self._known[run] = link


def _with_curves(folder: Path) -> Iterator[Path]:
    """Find the folders that hold files of TensorBoard's; it looks into those below one by itself."""
    seen = set[tuple[int, int]]()
    for place, below, files in os.walk(folder, followlinks=True):
        facts = Path(place).stat()
        # a run of several models has curves of its own only when it has ended; those of its members belong to it
        is_run = any(_EVENTS in name for name in files) or (run_files.CONFIG in files and run_files.MEMBERS in below)
        if is_run and (facts.st_dev, facts.st_ino) not in seen:
            yield Path(place)
        if is_run or (facts.st_dev, facts.st_ino) in seen:
            below.clear()
        seen.add((facts.st_dev, facts.st_ino))


def short_name(run: Path, runs: Path) -> str:
    """Name a run by what tells it from others, that first: `lr=0.1,seed=0 wine_mlp 01-31 12-00`.

    Args:
        run: The folder of the run; one whose name is the user's own goes by its path.
        runs: The folder that paths are seen from.
    """
    found = dated(run)
    if found is None:
        below = run.relative_to(runs).parts if run.is_relative_to(runs) else ()
        return " ".join(below) or run.name
    # `optim.lr=0.1,seed=0` is shortened to the last part of each key, where that is of one key only.
    parts = [part.partition("=") for part in found.job.removeprefix("/").split(",")]
    last = {key: key.rpartition(".")[2] for key, mark, _ in parts if mark}
    count = Counter(last.values())
    names = [(last[key] if mark and count[last[key]] == 1 else key) + mark + value for key, mark, value in parts]
    job = [",".join(names)] if found.job else []
    return " ".join([*job, found.name, found.date[5:], found.time[:5]])
