"""What a run ran with: versions, commit, machine, command."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lightkit.processes.children import output_of, usable_cpus

PACKAGES = ("lightkit", "torch", "torchvision", "torchmetrics", "torchensemble", "numpy", "scikit-learn", "hydra-core",
            "omegaconf", "tensorboard", "timm", "optuna")  # fmt: skip
"""Packages that matter most, which `lightkit env` shows."""
_INSTALLED = re.compile(r"(?P<name>[\w.]+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info$")
"""Name of the folder in which an installed package says what it is."""
DIFF_LIMIT = 200_000
"""Characters of an uncommitted diff that are kept."""


def environment(*, project: Path | str | None = None, **facts: Any) -> dict[str, Any]:
    """Gather what a run ran with, for later, without environment variables: they hold secrets.

    Args:
        project: Folder whose git state is noted; None takes the working directory.
        facts: Whatever the caller knows besides, such as `device` and `seed`.

    Returns:
        Plain values, ready for JSON.
    """
    memory: float | None = None
    gpus = list[str]()
    with suppress(AttributeError, ValueError, OSError):  # not every system tells
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    torch = sys.modules.get("torch")  # only asked where it is already in use
    if torch is not None and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        **facts,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": list(sys.argv),
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": usable_cpus(),
        "memory_gib": memory,
        "python": platform.python_version(),
        "packages": installed(tuple(sys.path)),
        "gpus": gpus,
        "git": git_state(Path(project) if project is not None else Path.cwd()),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter most."""
    known = installed(tuple(sys.path))
    return {name: known[name] for name in PACKAGES if name in known}


@cache
def installed(paths: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of all packages, by the names of the folders that say so: to read these takes far longer.

    Args:
        paths: Folders in which Python looks for modules; of a package that is twice there the first counts.
    """
    found: dict[str, str] = {}
    for folder in paths:
        with suppress(OSError):
            for entry in sorted(Path(folder or ".").iterdir()):
                match = _INSTALLED.match(entry.name)
                if match is not None:
                    found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return dict(sorted(found.items()))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Find commit, branch and uncommitted changes of the repository around a folder.

    Args:
        folder: Any folder.

    Returns:
        None outside a repository or without git; else `commit` (None before the first), `branch`, `dirty`, `status`
        (changed and untracked files) and `diff` of tracked files, cut at `DIFF_LIMIT` characters.
    """
    if _git(folder, "rev-parse", "--show-toplevel") is None:
        return None
    status = (_git(folder, "status", "--porcelain") or "").splitlines()
    diff = (_git(folder, "diff", "HEAD") or "") if status else ""
    cut = f"\n… cut: {len(diff):,} characters in all\n"
    return {
        "commit": _git(folder, "rev-parse", "--verify", "HEAD"),
        "branch": _git(folder, "symbolic-ref", "--short", "HEAD"),
        "dirty": bool(status),
        "status": status[:200],
        "diff": diff if len(diff) <= DIFF_LIMIT else diff[:DIFF_LIMIT] + cut,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where it fails, hangs or is missing."""
    said = output_of(["git", "-C", str(folder), "--no-optional-locks", *arguments])
    return None if said is None else said.rstrip()
