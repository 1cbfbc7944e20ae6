from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.detached import boards
from lightkit.detached.boards import Holder, RunningBoard, board_files, free_port, holder, running_boards
from tests.waiting import PATIENCE_SECONDS

HOLD = """
import sys, time
from pathlib import Path
from lightkit.detached.boards import RunningBoard, board_files
folder = Path(sys.argv[1])
files = board_files(folder, "127.0.0.1")
with files.locked():
    files.announce(RunningBoard(folder, "127.0.0.1", 7007, 1.0, detached=True))
    print("there", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards of a user of its own; who listens on a port without ever answering is not waited for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(boards, "_ASK_SECONDS", 0.1)


def board(folder: Path, host: str = "127.0.0.1", started: float = 1.0) -> RunningBoard:
    return RunningBoard(folder, host, 7007, started, detached=True)


def test_a_board_is_there_as_long_as_its_files_are_locked(tmp_path: Path) -> None:
    files = board_files(tmp_path, "127.0.0.1")
    assert files.board() is None
    with files.locked():
        assert files.board() is None  # it does not answer yet
        files.announce(board(tmp_path))
        assert files.board() == board(tmp_path)
        assert board_files(tmp_path / "x" / "..", "127.0.0.1").board() == board(tmp_path)
        assert board_files(tmp_path, "0.0.0.0").board() is None
        with pytest.raises(UserError, match="is running in this folder"), files.locked():
            pass
    assert files.board() is None
    assert running_boards() == []


def test_the_oldest_comes_first_and_other_machines_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = board_files(tmp_path / "b", "127.0.0.1"), board_files(tmp_path / "a", "127.0.0.1")
    with new.locked(), old.locked():
        new.announce(board(tmp_path / "a", started=2.0))
        old.announce(board(tmp_path / "b", started=1.0))
        assert running_boards() == [board(tmp_path / "b", started=1.0), board(tmp_path / "a", started=2.0)]
        monkeypatch.setattr(boards.socket, "gethostname", lambda: "another")
        assert running_boards() == []
        assert board_files(tmp_path / "a", "127.0.0.1").board() is None


def test_what_is_left_of_a_killed_one_is_no_board(tmp_path: Path) -> None:
    files = board_files(tmp_path, "127.0.0.1")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert files.board() == board(tmp_path)
        process.kill()
    assert files.board() is None
    with files.locked():
        assert files.board() is None  # what the killed one has written does not count for the next
    assert running_boards() == []


def test_one_is_asked_to_end_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, begun = board_files(tmp_path, "127.0.0.1"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(boards, "PATIENCE_SECONDS", 0.0)
        with files.locked(), pytest.raises(UserError, match="has not ended"):
            files.end()

    def serve() -> None:
        with files.locked():
            begun.set()
            while not files.is_asked_to_end():
                pass

    server = threading.Thread(target=serve)
    server.start()
    begun.wait()
    files.end()
    with files.locked():  # it has given its lock up
        server.join()
        assert not files.is_asked_to_end()


def test_no_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write"), board_files(tmp_path, "127.0.0.1").locked():
        pass

    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(UserError, match="no home"):
        running_boards()


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
    monkeypatch.setattr(boards, "USUAL_PORTS", range(taken, taken + 1))
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
    monkeypatch.setattr(boards, "_ASK_SECONDS", PATIENCE_SECONDS)
    with a_board(*user) as port:
        owner = holder(port)
        assert owner is not None
        assert owner.is_ours == (not user)
        with pytest.raises(UserError, match=r"\(by a TensorBoard of \w+, which shows /home/bob/outputs\)"):
            free_port("127.0.0.1", wanted=port)
