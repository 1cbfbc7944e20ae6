"""The programs of the page on messages send what they say, to servers that stand in for those of the world."""

from __future__ import annotations

import json
import os
import re
import socketserver
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli
from tests.docs.pages import blocks

PROGRAMS = {block.title: block.code for block in blocks(ROOT / "docs/guides/messages.md") if block.title}
SECRET = "-".join(("nobody", "may", "know", "this"))  # not as one text: runs keep the code of this file
TRAIN = (
    "train",
    "data=wine",
    "model.hidden=[4]",
    "trainer.steps=2",
    "metrics.figures=[]",
    "logger.tensorboard.enabled=false",
    "trainer.test=none",
    "logger.console.style=quiet",
)


class Http(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        head = [self.rfile.readline().decode().strip()]
        while line := self.rfile.readline().decode().strip():
            head.append(line)
        size = next(int(line.split(": ")[1]) for line in head if line.lower().startswith("content-length"))
        self.server.got.append([head[0], self.rfile.read(size).decode()])  # type: ignore[attr-defined]
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


class Smtp(socketserver.StreamRequestHandler):
    """A server of mail that has neither encryption nor accounts."""

    def handle(self) -> None:
        got = self.server.got  # type: ignore[attr-defined]
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().decode().strip():
            got.append(line)
            if line.upper() == "DATA":
                self.wfile.write(b"354 go on\r\n")
                while (line := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    got.append(line)
            self.wfile.write(b"221 bye\r\n" if line == "QUIT" else b"250 yes\r\n")
            if line == "QUIT":
                return


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    got: list[object]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), request.param) as found:
        found.got = []
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture
def home(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with the files of secrets."""
    folder = project.parent / "home"
    (folder / ".config").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    for name, code in PROGRAMS.items():
        (project / name).write_text(code)
    return folder / ".config"


def put(file: Path, text: str) -> None:
    file.touch(stat.S_IRUSR | stat.S_IWUSR)
    file.write_text(text)


def run_with(cli: Cli, project: Path, program: str, *more: str) -> str:
    """Run to the end, and return what was printed; the secret is nowhere in what the run has written."""
    done = cli(*TRAIN, "name=told", f"on_end=[python,{program}]", *more)
    for place, _, names in os.walk(project / "outputs"):
        for name in names:
            assert SECRET.encode() not in Path(place, name).read_bytes(), name
    assert SECRET not in done.out + done.err
    return done.out + done.err


@pytest.mark.parametrize("server", [Http], indirect=True)
@pytest.mark.parametrize(("program", "file"), [("tell_ntfy.py", "ntfy-topic"), ("tell_slack.py", "slack-webhook")])
def test_a_line_is_posted(cli: Cli, project: Path, home: Path, server: Server, program: str, file: str) -> None:
    put(home / file, f"http://127.0.0.1:{server.server_address[1]}/{SECRET}\n")
    assert "on_end" not in run_with(cli, project, program)
    run_with(cli, project, program, "optim.lr=1e30", "trainer.steps=50")
    (first, good), (_, bad) = server.got  # type: ignore[misc]
    assert first.startswith(f"POST /{SECRET} ")  # type: ignore[attr-defined]
    texts = [json.loads(body)["text"] if "slack" in program else body for body in (good, bad)]  # type: ignore[arg-type]
    assert texts[0].startswith("told: finished val/accuracy ")
    assert re.match(r"told(-\d)?: failed ", texts[1])


@pytest.mark.parametrize("server", [Smtp], indirect=True)
def test_a_mail_is_sent_and_no_password_in_the_clear(cli: Cli, project: Path, home: Path, server: Server) -> None:
    account = {"host": "127.0.0.1", "port": server.server_address[1], "from": "a@example.org", "to": "b@example.org"}
    put(home / "mail.json", json.dumps(account))
    assert "on_end" not in run_with(cli, project, "tell_mail.py")
    assert {"Subject: told: finished", "From: a@example.org", "To: b@example.org"} <= {*server.got}
    server.got.clear()
    put(home / "mail.json", json.dumps({**account, "user": "a", "password": SECRET}))
    assert "on_end: python tell_mail.py: ended with exit status 1" in run_with(cli, project, "tell_mail.py")
    assert [line for line in server.got if line != "QUIT"] == [server.got[0]], "it only says hello"


def test_without_its_file_it_fails_and_the_run_does_not(cli: Cli, project: Path, home: Path) -> None:
    for program in PROGRAMS:
        assert f"on_end: python {program}: ended with exit status 1" in run_with(cli, project, program)
