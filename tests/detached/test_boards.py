from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.detached import boards
from lightkit.detached.boards import RunningBoard, desk_of, running_boards

HOLD = """
import sys, time
from pathlib import Path
from lightkit.detached.boards import RunningBoard, desk_of
folder = Path(sys.argv[1])
desk = desk_of(folder, "127.0.0.1")
with desk.taken():
    desk.announce(RunningBoard(folder, "127.0.0.1", 7007, 1.0, detached=True))
    print("there", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def board(folder: Path, host: str = "127.0.0.1", started: float = 1.0) -> RunningBoard:
    return RunningBoard(folder, host, 7007, started, detached=True)


def test_a_board_is_there_as_long_as_its_desk_is_taken(tmp_path: Path) -> None:
    desk = desk_of(tmp_path, "127.0.0.1")
    assert desk.board() is None
    with desk.taken():
        assert desk.board() is None  # it does not answer yet
        desk.announce(board(tmp_path))
        assert desk.board() == board(tmp_path)
        assert desk_of(tmp_path / "x" / "..", "127.0.0.1").board() == board(tmp_path)
        assert desk_of(tmp_path, "0.0.0.0").board() is None
        with pytest.raises(UserError, match="is running in this folder"), desk.taken():
            pass
    assert desk.board() is None
    assert running_boards() == []


def test_the_oldest_comes_first_and_other_machines_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = desk_of(tmp_path / "b", "127.0.0.1"), desk_of(tmp_path / "a", "127.0.0.1")
    with new.taken(), old.taken():
        new.announce(board(tmp_path / "a", started=2.0))
        old.announce(board(tmp_path / "b", started=1.0))
        assert running_boards() == [board(tmp_path / "b", started=1.0), board(tmp_path / "a", started=2.0)]
        monkeypatch.setattr(boards.socket, "gethostname", lambda: "another")
        assert running_boards() == []
        assert desk_of(tmp_path / "a", "127.0.0.1").board() is None


def test_what_is_left_of_a_killed_one_is_no_board(tmp_path: Path) -> None:
    desk = desk_of(tmp_path, "127.0.0.1")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert desk.board() == board(tmp_path)
        process.kill()
    assert desk.board() is None
    with desk.taken():
        assert desk.board() is None  # what the killed one has written does not count for the next
    assert running_boards() == []


def test_one_is_asked_to_end_and_waited_for(tmp_path: Path) -> None:
    desk, begun = desk_of(tmp_path, "127.0.0.1"), threading.Event()

    def serve() -> None:
        with desk.taken():
            begun.set()
            while not desk.is_asked_to_end():
                pass

    server = threading.Thread(target=serve)
    server.start()
    begun.wait()
    desk.end()
    assert desk._holder() is None
    server.join()
    with desk.taken():
        assert not desk.is_asked_to_end()


def test_one_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "PATIENCE_SECONDS", 0.0)
    desk = desk_of(tmp_path, "127.0.0.1")
    with desk.taken(), pytest.raises(UserError, match="has not ended"):
        desk.end()


def test_no_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write"), desk_of(tmp_path, "127.0.0.1").taken():
        pass

    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(UserError, match="no home"):
        running_boards()
