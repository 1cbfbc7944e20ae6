"""What systemd ends when a user logs out, whatever it was told about hang-ups, and how to get out of its way."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightkit.processes.children import output_of

CGROUP = Path("/proc/self/cgroup")
LINGER = "loginctl enable-linger"
"""The command that lets a user's services go on when nobody is logged in; systemd keeps that for good."""
_SCOPE = ("systemd-run", "--user", "--scope", "--quiet")

Fate = Literal["stays", "scope", "killed", "killed with the last session"]
"""What becomes of a process at logout. `scope`: it is killed, but not in a scope of the user's own."""


@dataclass(frozen=True)
class Logind:
    """What `loginctl` says.

    Attributes:
        kills: Whether processes that are left over of this user are killed when a session ends.
        lingers: Whether the user's services go on when no session is left.
    """

    kills: bool
    lingers: bool


def fate() -> Fate:
    """Tell what becomes of the processes of this login session when its user logs out."""
    place = ""
    with suppress(OSError):
        place = CGROUP.read_text(encoding="utf-8")
    in_session = re.search(r"/session-[^/\s]+\.scope", place) is not None
    in_manager = f"/user@{os.getuid()}.service" in place
    if not (in_session or in_manager):
        return "stays"
    found = ask()
    if in_manager:  # it ends with the user's last session, and takes along everything it has started
        return "stays" if found.lingers else "killed with the last session"
    if not found.kills:
        return "stays"
    return "scope" if found.lingers else "killed"


def ask() -> Logind:
    """Ask the service that keeps the sessions; where there is none nothing is killed."""
    user = pwd.getpwuid(os.getuid()).pw_name
    manager = _properties("show-session", "KillUserProcesses", "KillExcludeUsers", "KillOnlyUsers")
    only = manager.get("KillOnlyUsers", "").split()
    kills = user in only if only else manager.get("KillUserProcesses") == "yes"
    kills = kills and user not in manager.get("KillExcludeUsers", "").split()
    own = _properties("show-user", "Linger", of=[user])
    lingers = own.get("Linger") == "yes" or Path("/var/lib/systemd/linger", user).exists()
    return Logind(kills, lingers)


def scope_command(command: Sequence[str]) -> list[str] | None:
    """Return a command that runs another one in a scope of the user's own; None where that does not work here."""
    folder = f"/run/user/{os.getuid()}"
    if "XDG_RUNTIME_DIR" not in os.environ and Path(folder).is_dir():
        os.environ["XDG_RUNTIME_DIR"] = folder  # after `su` it is missing
    return [*_SCOPE, *command] if output_of([*_SCOPE, "true"]) is not None else None


def _properties(command: str, *names: str, of: Sequence[str] = ()) -> dict[str, str]:
    options = [f"--property={name}" for name in names]
    lines = (output_of(["loginctl", command, *options, *of]) or "").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
