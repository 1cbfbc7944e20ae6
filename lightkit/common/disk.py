"""The folder of a user's own state, outside of every project."""

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


def make_user_state(state: Path) -> Path:
    """Make the folder that `user_state` gave, for this user alone, and return it.

    Raises:
        OSError: It cannot be made.
    """
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700)
    except FileExistsError:
        if not state.is_dir():
            raise
    return state


def belongs_to_us(facts: os.stat_result) -> bool:
    """Tell whether this user owns a file or folder; where a system knows no owners, everybody does."""
    return not hasattr(os, "geteuid") or facts.st_uid == os.geteuid()
