"""How a browser on another machine gets to a port of this one: lines for `ssh`, fields for PuTTY and Xshell."""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

from lightkit.common.errors import UserError

_SSH_PORT = 22
_HOP = re.compile(r"(?:[^\s@,;'\"]+@)?(?P<host>\[[0-9a-fA-F:.%]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class Route:
    """The way from a laptop to this machine.

    Args:
        user: Name of the user here.
        host: Name or address of this machine.
        port: Port of its ssh server.
        via: Machines in between, as `ssh -J` takes them.
    """

    user: str
    host: str
    port: int = _SSH_PORT
    via: tuple[str, ...] = ()

    def lines(self, port: int, *, host: str, local: int) -> list[tuple[str, str]]:
        """Return what to type or to fill in, each with the name of the program that it is for.

        Args:
            port: The port here.
            host: The address that is listened on.
            local: The port on the laptop.
        """
        target = _reached(host)
        jump = f"-J {','.join(self.via)} " if self.via else ""
        own = "" if self.port == _SSH_PORT else f"-p {self.port} "
        page = f"http://127.0.0.1:{local}/"
        found = [
            ("from a laptop", f"ssh {jump}{own}-L {local}:{target}:{port} {self.user}@{self.host}"),
            ("", f"(in a terminal of Linux, macOS or Windows), then open {page}"),
            ("PuTTY", f"Session: Host Name {self.user}@{self.host}, Port {self.port}"),
            ("", f"Connection > SSH > Tunnels: Source port {local}, Destination {target}:{port}, Local, Add"),
        ]
        if self.via:
            *before, last = self.via
            found.append(("", f"Connection > Proxy: type SSH to proxy and use port forwarding, {_fields(last)}"))
            if before:
                found.append(
                    ("", f"(it takes one machine in between only: {', '.join(before)} has to be its own proxy)")
                )
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
        if _is_here(connection[2]):
            host, port = connection[2], int(connection[3])
        elif via is None:  # a job of a cluster has it from the machine that it was submitted on
            hops = (f"{user}@{_bracketed(connection[2])}" + ("" if connection[3] == "22" else f":{connection[3]}"),)
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


def _is_here(address: str) -> bool:
    """Tell whether an address is one of this machine; a process may have its environment from another one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def _reached(host: str) -> str:
    """Return the address on which this machine reaches what listens on `host`."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "[::1]"
    return _bracketed(host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
