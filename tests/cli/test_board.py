from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from lightkit.cli import board
from lightkit.common.errors import UserError
from tests.conftest import Outcome
from tests.waiting import PATIENCE_SECONDS, until

Cli = Callable[..., Outcome]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_prints_address_and_forwarding(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(board, "_serve", lambda folder, **options: calls.append({"folder": folder, **options}) or 0)
    monkeypatch.setattr(board, "named_runs", nullcontext)
    monkeypatch.setattr(board.getpass, "getuser", lambda: "ada")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    (project / "outputs").mkdir()
    done = cli("board")
    port = calls[0]["port"]
    assert calls == [{"folder": project / "outputs", "host": "127.0.0.1", "port": port}]
    assert f"http://127.0.0.1:{port}/" in done.out
    assert f"ssh -L {port}:127.0.0.1:{port} ada@10.0.0.2\n" in done.out


def test_host_name_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(board.socket, "gethostname", lambda: "box")
    monkeypatch.setattr(board.getpass, "getuser", lambda: "ada")
    assert board.forwarding(7007) == "ssh -L 7007:127.0.0.1:7007 ada@box"


def test_missing_folder(cli: Cli) -> None:
    done = cli("board")
    assert done.code == 2
    assert "no such folder" in done.err


@pytest.mark.parametrize("text", ["0", "65536", "http", "-1"])
def test_port_must_be_one(cli: Cli, project: Path, text: str) -> None:
    done = cli("board", str(project), f"--port={text}")
    assert done.code == 2
    assert "--port: not a port" in done.err


def test_taken_port(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="cannot listen there"):
        board.free_port("127.0.0.1", wanted=taken)
    monkeypatch.setattr(board, "USUAL_PORT", taken)
    assert board.free_port("127.0.0.1") not in (taken, 0)


def test_address_of_another_machine() -> None:
    with pytest.raises(UserError, match="cannot listen there"):
        board.free_port("192.0.2.1")


def test_only_news_of_tensorboard_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    usual = [
        "TensorFlow installation not found - running with reduced feature set.\n",
        "\n",
        "NOTE: Using experimental fast data loading logic. To disable, pass\n",
        '    "--load_fast=false" and report issues on GitHub. More details:\n',
        "    https://github.com/tensorflow/tensorboard/issues/4784\n",
        "TensorBoard 2.21.0 at http://127.0.0.1:6006/ (Press CTRL+C to quit)\n",
    ]
    board._pass_on([*usual, "E1121 the disk is full\n"])
    assert capsys.readouterr().err == "E1121 the disk is full\n"


@pytest.mark.slow
def test_tensorboard_answers_and_ends_with_us(project: Path) -> None:
    import os
    import signal
    import subprocess
    import sys

    from tests.conftest import ROOT

    port = board.free_port("127.0.0.1")
    command = [sys.executable, "-m", "lightkit", "board", str(project), "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    try:
        assert "TensorBoard" in until(lambda: _page(f"http://127.0.0.1:{port}/"), "TensorBoard to answer")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 143
        assert board.free_port("127.0.0.1", wanted=port) == port
    finally:
        process.kill()
        process.wait()


def _page(url: str) -> str | None:
    """The text of a page; None while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return None
