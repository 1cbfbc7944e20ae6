from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import board
from lightkit.detached import boards as ports
from lightkit.detached import detach as systemd
from lightkit.detached.boards import BoardFiles, RunningBoard, board_files, free_port
from tests.conftest import ROOT, Outcome
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, until

Cli = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been served, and where."""
    calls: list[dict[str, Any]] = []

    def serve(_desk: object, folder: Path, options: Any, **rest: Any) -> int:
        calls.append({"folder": folder, "host": options.host, **rest})
        return 0

    monkeypatch.setattr(board, "_serve", serve)
    return calls


def begun(folder: Path) -> Path:
    """A folder that holds a run."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: run\n")
    return folder


def test_what_is_shown(cli: Cli, project: Path, served: list[dict[str, Any]]) -> None:
    outputs = project / "outputs"
    run = begun(outputs / "runs/2026-01-31/12-00-00-wine_mlp")
    sweep = outputs / "sweeps/2026-01-31/13-00-00-rates"
    sweep.mkdir(parents=True)
    (sweep / "sweep.jsonl").write_text("{}\n")
    for words in ([], ["outputs"], ["wine_mlp"], ["last"], ["runs"], ["rates"], [str(sweep)]):
        assert cli("board", *words).code == 0
    shown = [call["folder"] for call in served]
    assert shown == [outputs, outputs, run, run, outputs / "runs", sweep, sweep]


def test_nothing_to_show(cli: Cli, project: Path) -> None:
    done = cli("board")
    assert done.code == 2
    assert "no such folder" in done.err
    begun(project / "outputs/runs/2026-01-31/12-00-00-wine_mlp")
    assert "wine_mlp" in cli("board", "wine").err
    assert "no such folder" in cli("board", "a/b").err


def test_a_board_is_found_again(cli: Cli, project: Path) -> None:
    (project / "outputs").mkdir()
    files = board_files(project / "outputs", "127.0.0.1")
    with files.locked():
        files.announce(RunningBoard(project / "outputs", "127.0.0.1", 7007, 0.0, detached=True))
        for words in ([], ["--detach"], ["--port", "7007"]):
            done = cli("board", *words)
            assert done.code == 0
            assert "it runs since" in done.out
            assert "http://127.0.0.1:7007/" in done.out
        assert "-L 16006:127.0.0.1:7007 " in cli("board", "--local-port", "16006").out
        other = cli("board", "--port", "7008")
        assert other.code == 2
        assert "a board shows this already, on port 7007" in other.err
        assert "7007" in cli("board", "--list").out
        (row,) = json.loads(cli("board", "--list", "--json").out)
        assert row == {
            "folder": str(project / "outputs"),
            "host": "127.0.0.1",
            "port": 7007,
            "started": 0.0,
            "detached": True,
        }
    assert "no board of yours runs" in cli("board", "--list").out
    assert json.loads(cli("board", "--list", "--json").out) == []


def test_the_board_of_another_user_is_warned_of(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = ports.Holder(6006, "bob", is_ours=False, shows="/home/bob/outputs")
    monkeypatch.setattr(ports, "holder", lambda _: theirs)
    board._warn_of_port(6006)
    told = capsys.readouterr().err
    assert "port 6006 is taken by a TensorBoard of bob, which shows /home/bob/outputs" in told
    assert "is not yours" in told
    monkeypatch.setattr(ports, "holder", lambda _: ports.Holder(6006, "ada", is_ours=True, shows=None))
    board._warn_of_port(6006)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(ports, "holder", lambda _: None)
    board._warn_of_port(6006)
    assert "does not tell by whom" in capsys.readouterr().err


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A board that listens as TensorBoard would, complains, and ends at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what comes with TensorBoard is of long ago
        import tensorboard.default
        import tensorboard.program

    class Program:
        def __init__(self, **_: Any) -> None:
            self.socket = socket.socket()

        def configure(self, *, host: str, port: int, **_: Any) -> None:
            self.place = host, port

        def launch(self) -> None:
            with self.socket:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.socket.bind(self.place)
            sys.stderr.write("E1121 a file cannot be read\n")

    monkeypatch.setattr(tensorboard.program, "TensorBoard", Program)
    monkeypatch.setattr(BoardFiles, "is_asked_to_end", lambda _: True)
    monkeypatch.setattr(ports, "_ASK_SECONDS", 0.1)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("owner", "said"),
    [("other", "taken by a program of user 12345"), ("own", ""), ("unknown", "does not tell by whom")],
)
def test_beside_the_server_of_somebody_else_a_board_takes_the_next_port(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, count: int, owner: str, said: str
) -> None:
    (project / "outputs").mkdir()
    owners = ports._owners
    numbers = {"other": [12345], "own": [os.getuid()], "unknown": []}[owner]
    with ExitStack() as stack:
        taken = [stack.enter_context(reserved_port()) for _ in range(count)]
        for port in taken:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
        free = stack.enter_context(reserved_port())
        monkeypatch.setattr(ports, "USUAL_PORTS", [*taken, free])
        monkeypatch.setattr(ports, "_owners", lambda port: numbers if port in taken else owners(port))
        done = cli("board")
        assert done.code == 0, done.err
        assert f"http://127.0.0.1:{free}/" in done.out
        assert "E1121 a file cannot be read\n" in done.err
        assert done.err.count(said) == count if said else "warning" not in done.err
        monkeypatch.setattr(ports, "USUAL_PORTS", taken)  # none of them is free: then any is
        assert cli("board").code == 0
        refused = cli("board", "--port", str(taken[0]))
    assert refused.code == 2
    assert f"127.0.0.1:{taken[0]}" in refused.err
    assert (said if owner == "other" else "another --port") in refused.err.replace("(by", "taken by")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.skipif(not Path("/proc/net/tcp6").is_file() or not socket.has_ipv6, reason="needs IPv6 and Linux")
def test_a_port_that_is_taken_for_ipv6_only_is_passed(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "outputs").mkdir()
    with socket.socket(socket.AF_INET6) as listener, reserved_port() as free:
        try:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        listener.listen()
        monkeypatch.setattr(ports, "USUAL_PORTS", [listener.getsockname()[1], free])
        done = cli("board")
    assert done.code == 0, done.err
    assert f"http://127.0.0.1:{free}/" in done.out


@pytest.mark.parametrize(
    ("fate", "expected", "told"),
    [
        ("stays", ["x"], ""),
        ("scope", ["systemd-run", "x"], ""),
        ("killed", ["x"], "note: systemd ends the board when you log out; to let it go on:  loginctl enable-linger\n"),
        ("killed with the last session", ["x"], "when you log out everywhere"),
    ],
)
def test_what_systemd_would_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fate: str, expected: list[str], told: str
) -> None:
    monkeypatch.setattr(systemd, "fate", lambda: fate)
    monkeypatch.setattr(systemd, "scope_command", lambda command: ["systemd-run", *command])
    assert board._outliving_logout(["x"]) == expected
    assert told in capsys.readouterr().err


def page(port: int, name: str = "") -> str | None:
    """The text of a page; None while nobody answers."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=PATIENCE_SECONDS) as got:
        return str(got.read().decode())
    return None


@pytest.mark.slow
def test_tensorboard_answers_and_ends_with_us(project: Path, tmp_path: Path) -> None:
    (project / "outputs").mkdir()
    with reserved_port() as port:
        command = [sys.executable, "-m", "lightkit", "board", "outputs", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            assert "TensorBoard" in until(lambda: page(port), "TensorBoard to answer")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 143
            assert free_port("127.0.0.1", wanted=port) == port
            assert [path.suffix for path in (tmp_path / "state/lightkit/boards").iterdir()] == [".lock"]
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_detached_board_outlives_the_terminal_and_is_ended_from_another(cli: Cli, project: Path) -> None:
    (project / "outputs").mkdir()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lightkit", "board", "--detach"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as started:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # of a terminal that nobody has open on the other side any more
            while piece := os.read(ours, 1 << 16):
                seen += piece
    os.close(ours)
    assert started.returncode == 0, seen
    files = board_files(project / "outputs", "127.0.0.1")
    found = files.board()
    assert found is not None
    try:
        assert f"http://127.0.0.1:{found.port}/".encode() in seen
        assert found.detached
        assert "TensorBoard" in str(page(found.port))
        assert "it runs since" in cli("board", "-d").out
    finally:
        done = cli("board", "--stop")
    assert done.out.startswith("ended: TensorBoard over")
    assert page(found.port) is None
    assert files.board() is None


@pytest.mark.slow
def test_one_that_cannot_begin_says_so_in_the_terminal(cli: Cli, project: Path) -> None:
    (project / "outputs").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = cli("board", "--detach", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "cannot listen there" in done.err
    assert board_files(project / "outputs", "127.0.0.1").board() is None


def test_the_board_of_a_folder_that_is_gone_is_ended_from_anywhere(cli: Cli, project: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    files, begun = board_files(shown, "0.0.0.0"), threading.Event()

    def serve() -> None:
        with files.locked():
            files.announce(RunningBoard(shown, "0.0.0.0", 7007, 0.0, detached=True))
            begun.set()
            until(files.is_asked_to_end, "somebody who ends it")

    server = threading.Thread(target=serve)
    server.start()
    begun.wait()
    shown.rmdir()
    for words in (["--stop"], ["--stop", "nosuch"], ["--stop", str(shown), "--host", "127.0.0.1"]):
        done = cli("board", *words)
        assert done.code == 2
        assert "no board of yours shows this" in done.err
        assert (str(shown) in done.err.partition("choices")[2]) == ("--host" not in words)
    done = cli("board", "--stop", str(shown))
    server.join()
    assert (done.code, done.out) == (0, f"ended: TensorBoard over {shown}, port 7007\n")
