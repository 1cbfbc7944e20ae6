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
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import board
from lightkit.cli.board import find_route
from lightkit.common.errors import UserError
from lightkit.detached import boards as ports
from lightkit.detached import detach as systemd
from lightkit.detached.boards import BoardFiles, RunningBoard, board_files
from tests.conftest import ROOT, Cli
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, until

HERE = "10.0.0.2"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def outputs(project: Path) -> Path:
    (project / "outputs").mkdir()
    return project / "outputs"


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
def test_what_is_shown(cli: Cli, outputs: Path) -> None:
    outputs.rmdir()
    assert "`lightkit train` makes the first run" in cli("board").err
    run, sweep = outputs / "runs/2026-01-31/12-00-00-wine_mlp", outputs / "sweeps/2026-01-31/13-00-00-rates"
    for folder, mark in ((run, "config.yaml"), (sweep, "sweep.jsonl")):
        folder.mkdir(parents=True)
        (folder / mark).write_text("{}\n")
    shown = {"": outputs, "outputs": outputs, "wine_mlp": run, "runs": outputs / "runs", "rates": sweep}
    for words, folder in shown.items():
        assert cli("board", *words.split()).out.startswith(f"TensorBoard over {folder}\n")
    assert "wine_mlp" in cli("board", "wine").err
    assert "no such folder" in cli("board", "a/b").err


def test_a_board_is_found_again(cli: Cli, outputs: Path) -> None:
    files = board_files(outputs, "127.0.0.1")
    with files.locked():
        files.announce(RunningBoard(outputs, "127.0.0.1", 7007, 0.0, detached=True))
        for words in ([], ["--detach"], ["--port", "7007"]):
            done = cli("board", *words)
            assert (done.code, "it runs since" in done.out, "http://127.0.0.1:7007/" in done.out) == (0, True, True)
        assert "-L 16006:127.0.0.1:7007 " in cli("board", "--local-port", "16006").out
        other = cli("board", "--port", "7008")
        assert (other.code, "a board shows this already, on port 7007" in other.err) == (2, True)
        assert "7007" in cli("board", "--list").out
        (row,) = json.loads(cli("board", "--list", "--json").out)
        facts = {"folder": str(outputs), "host": "127.0.0.1", "port": 7007, "started": 0.0, "detached": True}
        assert row == {**facts, "table": False}
    assert "no board of yours runs" in cli("board", "--list").out
    assert json.loads(cli("board", "--list", "--json").out) == []


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("owner", "message", "count"),
    [("other", "taken by a program of user 12345", 3), ("own", "", 1), ("unknown", "does not tell by whom", 1)],
)
def test_beside_the_server_of_somebody_else_a_board_takes_the_next_port(
    cli: Cli, outputs: Path, monkeypatch: pytest.MonkeyPatch, count: int, owner: str, message: str
) -> None:
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
        assert done.err.count(message) == count if message else "warning" not in done.err
        monkeypatch.setattr(ports, "USUAL_PORTS", taken)  # none of them is free: then any is
        assert cli("board").code == 0
        refused = cli("board", "--port", str(taken[0]))
    assert (refused.code, f"127.0.0.1:{taken[0]}" in refused.err) == (2, True)
    assert (message if owner == "other" else "another --port") in refused.err.replace("(by", "taken by")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.skipif(not Path("/proc/net/tcp6").is_file() or not socket.has_ipv6, reason="needs IPv6 and Linux")
def test_a_port_that_is_taken_for_ipv6_only_is_passed(cli: Cli, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6) as listener, reserved_port() as free:
        try:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        listener.listen()
        monkeypatch.setattr(ports, "USUAL_PORTS", [listener.getsockname()[1], free])
        assert f"http://127.0.0.1:{free}/" in cli("board").out


@pytest.mark.parametrize(
    ("fate", "command", "note"),
    [
        ("scope", ["systemd-run", "x"], ""),
        ("killed", ["x"], "note: systemd ends the board when you log out; to let it go on:  loginctl enable-linger\n"),
        ("killed with the last session", ["x"], "when you log out everywhere"),
    ],
)
def test_what_systemd_would_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fate: str, command: list[str], note: str
) -> None:
    monkeypatch.setattr(systemd, "fate", lambda: fate)
    monkeypatch.setattr(systemd, "scope_command", lambda command: ["systemd-run", *command])
    assert board._outliving_logout(["x"]) == command
    assert note in capsys.readouterr().err


def page(port: int) -> str | None:
    """The text of the page; None while nobody answers."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE_SECONDS) as got:
        return str(got.read().decode())
    return None


@pytest.mark.thorough(first=0)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "text", "title"), [([], "TensorBoard", "TensorBoard"), (["--table"], "js", "Table of runs")]
)
def test_a_detached_board_outlives_the_terminal_and_is_ended_from_another(
    cli: Cli, outputs: Path, table: list[str], text: str, title: str
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lightkit", "board", "--detach", *table]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as started:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # of a terminal that nobody has open on the other side any more
            while piece := os.read(ours, 1 << 16):
                seen += piece
    os.close(ours)
    assert started.returncode == 0, seen
    files = board_files(outputs, "127.0.0.1", table=bool(table))
    there = files.board()
    assert there is not None
    try:
        assert f"http://127.0.0.1:{there.port}/".encode() in seen
        assert there.detached
        assert text in str(page(there.port))
        assert title in cli("board", "--list").out
        assert "it runs since" in cli("board", "-d", *table).out
    finally:
        done = cli("board", "--stop", *table)
    assert done.out.startswith(f"ended: {title} over")
    assert (page(there.port), files.board()) == (None, None)


@pytest.mark.usefixtures("in_this_process")
def test_the_table_of_runs_is_a_board_of_its_own(cli: Cli, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoardFiles, "is_asked_to_end", lambda files: page(files.board().port))  # type: ignore[union-attr]
    beside = board_files(outputs, "127.0.0.1")
    with beside.locked():
        beside.announce(RunningBoard(outputs, "127.0.0.1", 7007, 0.0, detached=True))
        done = cli("board", "--table")
        assert (done.code, done.out.startswith(f"Table of runs over {outputs}\n")) == (0, True)
        assert ("http://127.0.0.1:7007/" in done.out, "ssh -L " in done.out) == (False, True)
        assert "no board of yours shows this" in cli("board", "--table", "--stop").err


@pytest.mark.thorough(first=0)
def test_one_that_cannot_begin_says_so_in_the_terminal(cli: Cli, outputs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = cli("board", "--detach", "--port", str(taken.getsockname()[1]))
    assert (done.code, "cannot listen there" in done.err) == (2, True)
    assert board_files(outputs, "127.0.0.1").board() is None


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
        assert (done.code, "no board of yours shows this" in done.err) == (2, True)
        assert (str(shown) in done.err.partition("choices")[2]) == ("--host" not in words)
    done = cli("board", "--stop", str(shown))
    server.join()
    assert (done.code, done.out) == (0, f"ended: TensorBoard over {shown}, port 7007\n")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine named `box` with one address, and a user `ada`."""
    for name in ("SSH_CONNECTION", "SLURM_JOB_ID", "SLURM_SUBMIT_HOST", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(board.socket, "gethostname", lambda: "box")
    monkeypatch.setattr(board.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(board, "is_here", lambda address: address == HERE)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("environment", "host", "line"),
    [
        ({}, "127.0.0.1", "ssh -L 7007:127.0.0.1:7007 ada@box"),
        ({}, "::", "ssh -L 7007:[::1]:7007 ada@box"),
        ({}, "10.0.0.2", "ssh -L 7007:10.0.0.2:7007 ada@box"),
        ({"SSH_CONNECTION": f"10.0.0.1 50000 {HERE} 22"}, "0.0.0.0", f"ssh -L 7007:127.0.0.1:7007 ada@{HERE}"),
        ({"SSH_CONNECTION": f"10.0.0.1 50000 {HERE} 2222"}, "::1", f"ssh -p 2222 -L 7007:[::1]:7007 ada@{HERE}"),
        ({"SSH_CONNECTION": "damaged"}, "localhost", "ssh -L 7007:localhost:7007 ada@box"),
        ({"SUDO_USER": "grace"}, "::1", "ssh -L 7007:[::1]:7007 grace@box"),
        # a job of a cluster, which has the environment of the machine that it was submitted on
        ({"SSH_CONNECTION": "::1 50000 fd00::9 22"}, "::1", "ssh -J ada@[fd00::9] -L 7007:[::1]:7007 ada@box"),
        ({"SLURM_JOB_ID": "1", "SLURM_SUBMIT_HOST": "login"}, "::1", "ssh -J ada@login -L 7007:[::1]:7007 ada@box"),
        ({"SLURM_JOB_ID": "1", "SLURM_SUBMIT_HOST": "box"}, "::1", "ssh -L 7007:[::1]:7007 ada@box"),
    ],
)
def test_the_tunnel_goes_by_the_connection_to_where_the_board_listens(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], host: str, line: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_route().lines(7007, host=host, local=7007)[0][1] == line


@pytest.mark.usefixtures("machine")
def test_another_port_on_the_laptop_and_machines_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"10.0.0.1 50000 {HERE} 2222")
    lines = find_route("grace@login:2022,inner").lines(7007, host="127.0.0.1", local=16006)
    assert lines[0][1] == f"ssh -J grace@login:2022,inner -p 2222 -L 16006:127.0.0.1:7007 ada@{HERE}"
    assert [name for name, _ in lines if name] == ["from a laptop", "PuTTY", "Xshell"]
    text = "\n".join(line for _, line in lines)
    for part in (
        "http://127.0.0.1:16006/",
        f"Host Name ada@{HERE}, Port 2222",
        "Source port 16006, Destination 127.0.0.1:7007, Local",
        "use port forwarding, host inner, port 22\n",
        "grace@login:2022 has to be its own proxy",
        "Listen Port 16006",
        "Destination Host 127.0.0.1, Destination Port 7007",
        "Type JUMPHOST, host login, port 2022, user name grace, then host inner, port 22",
    ):
        assert part in text


@pytest.mark.parametrize("text", ["", "a b", "-oProxyCommand=x", "host:0", "host:99999", "a@", "host;rm", "a,,b"])
def test_what_is_no_machine(text: str) -> None:
    with pytest.raises(UserError, match="not a machine"):
        find_route(text)


def test_which_addresses_are_of_this_machine() -> None:
    assert [board.is_here(each) for each in ("127.0.0.1", "192.0.2.1", "not an address")] == [True, False, False]
