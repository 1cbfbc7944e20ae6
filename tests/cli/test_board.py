from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from lightkit.cli import board
from lightkit.cli.board import RunLinks, named_runs, short_name
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


NAMES = {
    "runs/2026-01-31/12-00-59-wine_mlp": "wine_mlp 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-wine_mlp/optim.lr=0.01,seed=0": "lr=0.01,seed=0 wine_mlp 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-a/data=wine": "data=wine a 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-a/optim.lr=1,finetune.head.lr=2": "optim.lr=1,finetune.head.lr=2 a 01-31 12-00",
    "mine/first": "mine first",
}


def run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.host.1.0").touch()
    return folder


@pytest.mark.parametrize(("path", "name"), NAMES.items())
def test_what_tells_a_run_from_others_comes_first(tmp_path: Path, path: str, name: str) -> None:
    assert short_name(tmp_path / path, tmp_path) == name


def test_every_run_has_a_link_of_its_own(tmp_path: Path) -> None:
    runs, place = tmp_path / "outputs", tmp_path / "links"
    place.mkdir()
    found = [run(runs / path) for path in NAMES]
    found.append(run(runs / "runs/2026-01-31/12-00-07-wine_mlp"))
    run(found[0] / "inner")
    (runs / "again").symlink_to(runs)
    links = RunLinks(runs, place)
    links.refresh()
    linked = {link.name: link.resolve() for link in place.iterdir()}
    assert sorted(linked.values()) == sorted(found)
    assert {*linked} == {*NAMES.values(), "wine_mlp 01-31 12-00 (2)"}


def test_runs_come_and_go_and_names_stay(tmp_path: Path) -> None:
    runs, place = tmp_path / "outputs", tmp_path / "links"
    place.mkdir()
    old = run(runs / "runs/2026-01-31/12-00-09-a")
    links = RunLinks(runs, place)
    links.refresh()
    new = run(runs / "runs/2026-01-31/12-00-01-a")
    links.refresh()
    assert (place / "a 01-31 12-00").resolve() == old
    assert (place / "a 01-31 12-00 (2)").resolve() == new
    (old / "events.out.tfevents.1.host.1.0").unlink()
    old.rmdir()
    links.refresh()
    assert [link.name for link in place.iterdir()] == ["a 01-31 12-00 (2)"]


def test_the_folder_of_a_run_itself(tmp_path: Path) -> None:
    with named_runs(run(tmp_path / "2026-01-31/12-00-00-a")) as place:
        assert [link.name for link in place.iterdir()] == ["a 01-31 12-00"]
    assert not place.exists()


def test_where_no_links_can_be_made_runs_go_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError

    folder = run(tmp_path / "outputs/a").parent
    monkeypatch.setattr(Path, "symlink_to", refuse)
    with named_runs(folder) as place:
        assert place == folder


def test_a_run_of_several_models_is_one_link_from_its_beginning(tmp_path: Path) -> None:
    run, place = tmp_path / "runs" / "demo", tmp_path / "links"
    member = run / "members" / "00"
    member.mkdir(parents=True)
    place.mkdir()
    (run / "config.yaml").touch()
    (member / "events.out.tfevents.1.host").touch()
    RunLinks(tmp_path / "runs", place).refresh()
    assert [link.name for link in place.iterdir()] == ["demo"]
