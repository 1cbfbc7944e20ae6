"""Ports to listen on, and who holds those that are taken."""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lightkit.common.errors import UserError

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
