from __future__ import annotations

import pytest

from lightkit.cli import board as tunnel
from lightkit.cli.board import Route, find_route
from lightkit.common.errors import UserError

HERE = "10.0.0.2"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine named `box` with one address, and a user `ada`."""
    for name in ("SSH_CONNECTION", "SLURM_JOB_ID", "SLURM_SUBMIT_HOST", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tunnel.socket, "gethostname", lambda: "box")
    monkeypatch.setattr(tunnel.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(tunnel, "_is_here", lambda address: address == HERE)


def line(found: Route, *, host: str = "127.0.0.1", local: int = 7007) -> str:
    return found.lines(7007, host=host, local=local)[0][1]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "ssh -L 7007:127.0.0.1:7007 ada@box"),
        ({"SSH_CONNECTION": f"10.0.0.1 50000 {HERE} 22"}, f"ssh -L 7007:127.0.0.1:7007 ada@{HERE}"),
        ({"SSH_CONNECTION": f"10.0.0.1 50000 {HERE} 2222"}, f"ssh -p 2222 -L 7007:127.0.0.1:7007 ada@{HERE}"),
        ({"SSH_CONNECTION": "damaged"}, "ssh -L 7007:127.0.0.1:7007 ada@box"),
        ({"SUDO_USER": "grace"}, "ssh -L 7007:127.0.0.1:7007 grace@box"),
        # a job of a cluster, which has the environment of the machine that it was submitted on
        ({"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.9 22"}, "ssh -J ada@10.0.0.9 -L 7007:127.0.0.1:7007 ada@box"),
        ({"SSH_CONNECTION": "::1 50000 fd00::9 22"}, "ssh -J ada@[fd00::9] -L 7007:127.0.0.1:7007 ada@box"),
        ({"SLURM_JOB_ID": "1", "SLURM_SUBMIT_HOST": "login"}, "ssh -J ada@login -L 7007:127.0.0.1:7007 ada@box"),
        ({"SLURM_JOB_ID": "1", "SLURM_SUBMIT_HOST": "box"}, "ssh -L 7007:127.0.0.1:7007 ada@box"),
    ],
)
def test_the_line_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert line(find_route()) == expected


@pytest.mark.parametrize(
    ("host", "target"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.2", "10.0.0.2"), ("localhost", "localhost")],
)
def test_the_end_of_the_tunnel_is_where_the_board_listens(host: str, target: str) -> None:
    assert line(find_route(), host=host) == f"ssh -L 7007:{target}:7007 ada@box"


def test_another_port_on_the_laptop_and_machines_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"10.0.0.1 50000 {HERE} 2222")
    found = find_route("grace@login:2022,inner").lines(7007, host="127.0.0.1", local=16006)
    text = "\n".join(line for _, line in found)
    assert found[0][1] == f"ssh -J grace@login:2022,inner -p 2222 -L 16006:127.0.0.1:7007 ada@{HERE}"
    assert [name for name, _ in found if name] == ["from a laptop", "PuTTY", "Xshell"]
    assert "http://127.0.0.1:16006/" in text
    assert f"Host Name ada@{HERE}, Port 2222" in text
    assert "Source port 16006, Destination 127.0.0.1:7007, Local" in text
    assert "use port forwarding, host inner, port 22\n" in text
    assert "grace@login:2022 has to be its own proxy" in text
    assert "Listen Port 16006" in text
    assert "Destination Host 127.0.0.1, Destination Port 7007" in text
    assert "Type JUMPHOST, host login, port 2022, user name grace, then host inner, port 22" in text


@pytest.mark.parametrize("text", ["", "a b", "-oProxyCommand=x", "host:0", "host:99999", "a@", "host;rm", "a,,b"])
def test_what_is_no_machine(text: str) -> None:
    with pytest.raises(UserError, match="not a machine"):
        find_route(text)


def test_which_addresses_are_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert tunnel._is_here("127.0.0.1")
    assert not tunnel._is_here("192.0.2.1")
    assert not tunnel._is_here("not an address")
