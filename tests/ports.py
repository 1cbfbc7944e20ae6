"""Ports for servers that the tests start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Hold a port that the system gives to nobody else inside; a server that reuses addresses can listen on it."""
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind(("127.0.0.1", 0))
        yield holding.getsockname()[1]
