from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.detached import boards
from lightkit.detached.boards import RunningBoard, board_files, running_boards

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
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


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
