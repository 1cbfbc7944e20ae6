from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.detached import boards as ports
from lightkit.detached.boards import Holder, free_port, holder
from tests.waiting import PATIENCE_SECONDS

SERVER = """
import encodings.idna, http.server, json, os, sys
class RunningBoard(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data_location": "/home/bob/outputs"}).encode())
    def log_message(self, *_):
        pass
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
server = http.server.HTTPServer(("127.0.0.1", 0), RunningBoard)
print(server.server_port, flush=True)
server.serve_forever()
"""
NOBODY = 65534


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens without ever answering is not waited for."""
    monkeypatch.setattr(ports, "_ASK_SECONDS", 0.1)


@contextmanager
def a_board(*user: int) -> Iterator[int]:
    """A port on which another process answers as TensorBoard does, of the user of that number."""
    command = [sys.executable, "-c", SERVER, *map(str, user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_a_taken_port(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, wanted in (("127.0.0.1", taken), ("192.0.2.1", None)):  # of another machine
        with pytest.raises(UserError, match="cannot listen there"):
            free_port(address, wanted=wanted)
    monkeypatch.setattr(ports, "USUAL_PORTS", range(taken, taken + 1))
    passed: list[int] = []
    assert free_port("127.0.0.1", passed=passed.append) not in (taken, 0)
    assert passed == [taken]


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="only Linux tells")
def test_a_port_that_is_taken_on_another_address_of_the_machine() -> None:
    """A browser that is told `localhost` would get there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match="another address"):
            free_port("127.0.0.1", wanted=port)
    assert free_port("127.0.0.1", wanted=port) == port


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="only Linux tells")
def test_who_holds_a_port(taken: int) -> None:
    owner = holder(taken)
    assert owner is not None
    assert (owner.is_ours, owner.shows, str(owner)) == (True, None, "a program of yours")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert holder(free.getsockname()[1]) is None
    assert str(Holder(1, None, is_ours=False, shows=None)) == "a program"
    assert str(Holder(1, "bob", is_ours=False, shows="")) == "a TensorBoard of bob"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="only Linux tells")
@pytest.mark.parametrize("user", [(NOBODY,) if os.geteuid() == 0 else ()])  # only root has other users
def test_a_board_says_what_it_shows(monkeypatch: pytest.MonkeyPatch, user: tuple[int, ...]) -> None:
    monkeypatch.setattr(ports, "_ASK_SECONDS", PATIENCE_SECONDS)
    with a_board(*user) as port:
        owner = holder(port)
        assert owner is not None
        assert owner.is_ours == (not user)
        with pytest.raises(UserError, match=r"\(by a TensorBoard of \w+, which shows /home/bob/outputs\)"):
            free_port("127.0.0.1", wanted=port)
