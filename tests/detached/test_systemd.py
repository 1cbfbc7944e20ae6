"""What becomes of processes at logout, on machines that are made up: the files and programs of systemd."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.detached import detach as systemd
from lightkit.detached.detach import Logind, ask, fate, scope_command
from tests.conftest import Outcome

USER = pwd.getpwuid(os.getuid()).pw_name
SESSION = f"0::/user.slice/user-{os.getuid()}.slice/session-3.scope\n"
MANAGER = f"0::/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service/app.slice/vte-spawn.scope\n"
LOGINCTL = """#!/bin/sh
case "$*" in
show-session*) printf 'KillExcludeUsers={excluded}\\nKillOnlyUsers={only}\\nKillUserProcesses={kills}\\n';;
"show-user --property=Linger {user}") echo Linger={lingers};;
*) exit 1;;
esac
"""
Machine = Callable[..., None]
Run = Callable[..., Outcome]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """`machine(SESSION, kills="yes")`: this process is in a session of a machine with systemd."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setattr(systemd, "CGROUP", tmp_path / "cgroup")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def program(name: str, text: str) -> None:
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def make(cgroup: str, *, scopes: bool = True, **facts: str) -> None:
        (tmp_path / "cgroup").write_text(cgroup)
        known = {"kills": "yes", "lingers": "no", "excluded": "somebody", "only": "", "user": USER} | facts
        program("loginctl", LOGINCTL.format(**known))
        program("systemd-run", f"#!/bin/sh\nexit {0 if scopes else 1}\n")

    return make


@pytest.mark.parametrize(
    ("cgroup", "facts", "expected"),
    [
        (SESSION, {"kills": "no"}, "stays"),
        (SESSION, {}, "killed"),
        (SESSION, {"lingers": "yes"}, "scope"),
        (SESSION, {"excluded": f"x {USER}"}, "stays"),
        (SESSION, {"only": f"somebody {USER}", "kills": "no"}, "killed"),
        (MANAGER, {"kills": "no"}, "killed with the last session"),
        (MANAGER, {"lingers": "yes"}, "stays"),
        (f"12:cpuset:/\n1:name=systemd:{SESSION[3:]}", {}, "killed"),
        ("0::/\n", {}, "stays"),
    ],
)
def test_what_becomes_of_a_process_at_logout(
    machine: Machine, cgroup: str, facts: dict[str, str], expected: str
) -> None:
    machine(cgroup, **facts)
    assert fate() == expected


def test_a_machine_without_systemd_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask() == Logind(kills=False, lingers=Path("/var/lib/systemd/linger", USER).exists())
    monkeypatch.setattr(systemd, "CGROUP", tmp_path / "missing")
    assert fate() == "stays"
    assert scope_command(["true"]) is None


def test_a_run_that_logout_would_end_is_refused_with_the_command_that_mends_it(machine: Machine, cli: Run) -> None:
    machine(SESSION)
    for args in (["train", "-d", "data=wine"], ["resume", "-d", "last"], ["sweep", "resume", "-d", "last"]):
        refused = cli(*args)
        assert refused.code == 2
        assert "systemd ends what is left of this login session at its end (KillUserProcesses=yes)" in refused.err
        assert "loginctl enable-linger" in refused.err
    assert cli("train", "-d", "data=wine", "--cfg", "job").code == 0, "nothing is started"
    assert cli("resume", "last").err.startswith("error: no run here")


def test_where_the_user_lingers_it_starts_in_a_scope_of_its_own(
    machine: Machine, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def execute(_file: str, words: list[str]) -> None:
        started.append(words)
        raise SystemExit(0)  # another program has taken over

    monkeypatch.setattr(os, "execvp", execute)
    machine(SESSION, lingers="yes")
    assert cli("train", "-d", "data=wine", "seed=1").code == 0
    (words,) = started
    assert words[:4] == ["systemd-run", "--user", "--scope", "--quiet"]
    assert words[-4:] == ["train", "-d", "data=wine", "seed=1"]
    machine(SESSION, lingers="yes", scopes=False)
    refused = cli("train", "-d", "data=wine")
    assert (refused.code, "`systemd-run --user --scope` does not work here" in refused.err) == (2, True)


def test_what_may_end_it_otherwise_is_said_beforehand(
    machine: Machine, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(MANAGER)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    notes = cli("train", "-d", "data=nowhere").err
    assert "note: systemd ends this when you log out everywhere; to let it go on:  loginctl enable-linger" in notes
    assert "note: Slurm ends everything of a job with the job" in notes


def test_one_of_several_processes_of_torchrun_cannot_leave(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("lightkit.cli.ranks.launched", lambda: True)
    monkeypatch.setattr("lightkit.cli.leave", lambda code: code, raising=False)
    from lightkit.cli.entry import run

    assert run(["train", "-d", "data=wine"]) == 2
