"""The folder in which lightkit keeps what is of a user, and not of a project."""

from __future__ import annotations

import os
from pathlib import Path


def user_state() -> Path | None:
    """Return lightkit's folder below `$XDG_STATE_HOME` or `~/.local/state`; None where there is no home.

    It need not exist.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".local" / "state") / "lightkit"
    except RuntimeError:  # this user has no home
        return None
