"""A terminal to look at."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import struct
import termios
from fcntl import ioctl

import pytest


class Terminal:
    """The write end of a pseudo-terminal of a given width, and what a program wrote to it."""

    def __init__(self, columns):
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def resize(self, columns):
        ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def text(self):
        self.stream.flush()
        written = b""
        while select.select([self.master], [], [], 0.1)[0]:
            written += os.read(self.master, 65536)
        return written.decode()

    def close(self):
        with contextlib.suppress(OSError):
            self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal(request, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    made = Terminal(getattr(request, "param", 100))
    yield made
    made.close()
