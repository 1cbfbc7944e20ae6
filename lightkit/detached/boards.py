"""The boards that a user runs on this machine, found by the kernel's lock on a file of each.

A lock goes with the process that holds it, however that ends, so no board is listed that has ended. Each has, in the
user's state folder, a few files whose names begin with the machine's, as several may share a home.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError, writing_to
from lightkit.common.reading import parse_object, read_file
from lightkit.processes.files import make_user_state, user_state

_LOCK, _FACTS, _END, _LOG, _RUNS = run_files.LOCK, ".json", ".end", ".log", ".runs"
_ELSEWHERE = "the environment variable XDG_STATE_HOME names another folder"
_LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""How long a board that was asked to end may take for it."""


@dataclass(frozen=True)
class RunningBoard:
    """A board that runs."""

    folder: Path
    """What it shows."""
    host: str
    """Address it listens on."""
    port: int
    started: float
    """In seconds since 1970."""
    detached: bool
    """Whether it outlives the terminal it was started from."""
    table: bool = False
    """Whether it is the table of runs, not TensorBoard."""


@dataclass(frozen=True)
class BoardFiles:
    """The files by which others know of a board: its lock, its address, its log, and the wish that it ends.

    Args:
        place: The user's folder for all boards.
        name: What the names of this board's files begin with.
    """

    place: Path
    name: str

    @property
    def log(self) -> Path:
        """Return what a detached board has to say."""
        return self.place / f"{self.name}{_LOG}"

    @property
    def runs(self) -> Path:
        """A folder for links to the runs that it shows."""
        return self.place / f"{self.name}{_RUNS}"

    def make(self) -> None:
        """Make the folder that its files go to.

        Raises:
            UserError: It cannot be made.
        """
        with writing_to(self.place, fix=_ELSEWHERE):
            make_user_state(self.place.parent)
            self.place.mkdir(exist_ok=True, mode=0o700)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the one board of this name while inside.

        Raises:
            UserError: Another process is, or the files cannot be written.
        """
        from lightkit.runs.lock import locked

        self.make()
        with writing_to(self.place, fix=_ELSEWHERE), locked(self.place, f"{self.name}{_LOCK}"):
            for ending in (_FACTS, _END):
                self._file(ending).unlink(missing_ok=True)
            try:
                yield
            finally:
                self._file(_FACTS).unlink(missing_ok=True)

    def announce(self, board: RunningBoard) -> None:
        """Let others find the board, which answers now."""
        from lightkit.loggers.files import write_json

        write_json(self._file(_FACTS), {**vars(board), "folder": str(board.folder)})

    def is_asked_to_end(self) -> bool:
        """Tell whether somebody wants the board to end."""
        return self._file(_END).exists()

    def board(self) -> RunningBoard | None:
        """Return the board, if it runs and answers."""
        if self._holder() is None:
            return None
        with suppress(OSError, ValueError, TypeError, KeyError):
            facts: dict[str, Any] = parse_object(read_file(self._file(_FACTS)))
            return RunningBoard(**{**facts, "folder": Path(facts["folder"])})
        return None

    def end(self) -> None:
        """Ask the board to end, and wait until it has.

        Raises:
            UserError: It does not, or cannot be asked.
        """
        with writing_to(self.place, fix=_ELSEWHERE):
            self._file(_END).touch()
        patience = time.monotonic() + PATIENCE_SECONDS
        while holder := self._holder():
            if time.monotonic() > patience:
                what = f"the board has not ended within {PATIENCE_SECONDS:.0f} seconds"
                raise UserError(what, received=holder, fix="end this process")
            time.sleep(_LOOK_SECONDS)
        self._file(_END).unlink(missing_ok=True)

    def _holder(self) -> str | None:
        from lightkit.runs.lock import lock_holder

        return lock_holder(self.place, f"{self.name}{_LOCK}")

    def _file(self, ending: str) -> Path:
        return self.place / f"{self.name}{ending}"


def board_files(folder: Path, host: str, *, table: bool = False) -> BoardFiles:
    """Return the files of the board that shows a folder; there is one board for each address to listen on.

    Args:
        folder: The folder.
        host: The address.
        table: Whether those of the table of runs are meant.

    Raises:
        UserError: This user has no place for it.
    """
    told = f"{folder.resolve()}\n{host}" + "\ntable" * table
    digest = hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()
    return BoardFiles(_place(), f"{_machine()}-{digest[:12]}")


def running_boards() -> list[RunningBoard]:
    """List the boards that run on this machine, the oldest first."""
    place = _place()
    known = [BoardFiles(place, path.name.removesuffix(_LOCK)) for path in place.glob(f"{_machine()}-*{_LOCK}")]
    found = [board for files in known if (board := files.board()) is not None]
    return sorted(found, key=lambda board: (board.started, str(board.folder)))


def _machine() -> str:
    return socket.gethostname().replace(os.sep, "_") or "machine"


def _place() -> Path:
    state = user_state()
    if state is None:
        raise UserError("this user has no home to keep in which boards run", fix="XDG_STATE_HOME=FOLDER", family="file")
    return state / "boards"


USUAL_PORTS = range(6006, 6016)
"""TensorBoard's usual port, and those after it, so that the port stays the same from day to day."""
_LISTENING = "0A"
_ASK_SECONDS = 2.0


@dataclass(frozen=True)
class Holder:
    """Who listens on a port."""

    port: int
    user: str | None
    """Name of the user; None where the system does not tell."""
    is_ours: bool
    shows: str | None
    """Folder that a TensorBoard there shows; None where it is no TensorBoard."""

    def __str__(self) -> str:
        what = "a program" if self.shows is None else "a TensorBoard"
        of = " of yours" if self.is_ours else f" of {self.user}" if self.user else ""
        return f"{what}{of}" + (f", which shows {self.shows}" if self.shows else "")


def free_port(host: str, *, wanted: int | None = None, passed: Callable[[int], None] = lambda _: None) -> int:
    """Find a port nobody listens on: the wanted one, else the first free one of the usual ones, else any.

    Args:
        host: Address to listen on.
        wanted: The port that was asked for; None where any will do.
        passed: Called with each of the usual ports that is taken.

    Raises:
        UserError: The wanted port is taken, or the address is not one of this machine.
    """
    for port in [wanted] if wanted is not None else [*USUAL_PORTS, 0]:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # As servers do: a port whose last connection is only winding down counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                found = int(probe.getsockname()[1])
                reason = "somebody listens on another address of it" if _owners(found) else ""
            except OSError as error:
                reason = error.strerror or str(error)
        if not reason:
            return found
        if wanted is None:
            passed(port)
    taken = holder(wanted) if wanted is not None else None
    raise UserError(
        f"cannot listen there: {reason}" + (f" (by {taken})" if taken else ""),
        key=f"{host}:{wanted or USUAL_PORTS[0]}",
        fix="another --port, or none for a free one",
        family="wrong-command",
    )


def holder(port: int) -> Holder | None:
    """Find out who listens on a port of this machine; None where nobody does, or nothing is known.

    A browser that is told `localhost` may reach it on any of its addresses, so all of them count.
    """
    owners, shows = _owners(port), _shown_by(port)
    if not owners:
        return Holder(port, None, is_ours=False, shows=shows) if shows is not None else None
    import pwd  # not on Windows, where nothing is known

    owner = next((owner for owner in owners if owner != os.getuid()), owners[0])
    with suppress(KeyError):
        return Holder(port, pwd.getpwuid(owner).pw_name, is_ours=owner == os.getuid(), shows=shows)
    return Holder(port, f"user {owner}", is_ours=False, shows=shows)


def _owners(port: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the numbers of the users who listen on a port, on whatever address; Linux tells everybody."""
    found = []
    for name in ("net/tcp", "net/tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in (proc / name).read_text(encoding="ascii").splitlines()[1:]:
                # number, local address:port, remote one, state, queues, timer, retransmissions, user
                words = line.split()
                if words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    found.append(int(words[7]))
    return found


def _shown_by(port: int) -> str | None:
    """Ask whether a TensorBoard listens on a port, and which folder it shows."""
    for host in ("127.0.0.1", "[::1]"):
        with suppress(OSError, ValueError, AttributeError):
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{host}:{port}/data/environment", timeout=_ASK_SECONDS) as answer:
                facts = json.loads(answer.read(1 << 16))
            return str(facts["data_location"]) if "data_location" in facts else None
    return None


def is_here(address: str) -> bool:
    """Tell whether an address is one of this machine; a process may have its environment from another one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def reached(host: str) -> str:
    """Return the address on which this machine reaches what listens on `host`."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "[::1]"
    return bracketed(host)


def bracketed(host: str) -> str:
    """Write an address as it stands before a port."""
    return f"[{host}]" if ":" in host else host
