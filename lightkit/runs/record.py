"""What is known of a run without building anything, and what it ran with: versions, commit, machine, command."""

from __future__ import annotations

import math
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightkit.common import run_files
from lightkit.common.argument_checks import FOLDS
from lightkit.processes.children import output_of, usable_cpus
from lightkit.runs.catalog import count_members, run_name, started
from lightkit.runs.code import named_by_code

_TELLING = (f"{run_files.CONFIG}:", f"{run_files.RESULT}:")
"""How a line begins of damage to a file without which nothing is known of a run."""


@dataclass(frozen=True, eq=False)
class Section:
    """A top-level node of a configuration, which many runs may share; another one is another section.

    Attributes:
        node: The node under its name.
    """

    node: Mapping[str, Any]

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Its values by dotted keys."""
        return dict(_flat(self.node))


@dataclass(frozen=True)
class RunRecord:
    """What the files of a run say; what is missing or damaged stays empty.

    Attributes:
        folder: The run's.
        sections: The top-level nodes of its configuration.
        result: Parts of `result.json`; empty as long as the run has not ended.
        progress: How far a run without a result is; see `lightkit.runs.index`.
        overrides: What was typed on the command line.
        noted: When it began, as it wrote that down.
        data: Fingerprint of its data set.
        labels: Its tags and its note.
        damage: What cannot be read of it: each time the name of the file, and what is wrong.
        is_unlocked: Whether it has no lock, where somebody has just looked what is in its folder.
    """

    folder: Path
    sections: tuple[Section, ...]
    result: Mapping[str, Any]
    progress: Mapping[str, Any]
    overrides: tuple[str, ...]
    noted: str
    data: str
    labels: Mapping[str, Any] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    is_unlocked: bool = field(default=False, compare=False)

    def part(self, name: str) -> Any:
        """Return a top-level node of its configuration; None where there is none."""
        return next((one.node[name] for one in reversed(self.sections) if name in one.node), None)

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Its configuration by dotted keys; a list is one value."""
        found = dict[str, Any]()
        for section in self.sections:
            found.update(section.keys)
        return found

    @cached_property
    def status(self) -> str:
        """Return how it ended; `running` while a process holds its folder, `unfinished` where it was killed.

        It is `damaged` where its files cannot tell. It is found out anew for each record.
        """
        from lightkit.runs.lock import lock_holder

        if not self.is_unlocked and lock_holder(self.folder) is not None:
            return "running"
        if any(line.startswith(_TELLING) for line in self.damage):
            return "damaged"
        return self.result.get("status") or "unfinished"

    @cached_property
    def name(self) -> str:
        """See `lightkit.runs.catalog.run_name`."""
        return run_name(self.folder)

    @cached_property
    def started(self) -> datetime:
        """See `lightkit.runs.catalog.started`."""
        return started(self.folder, self.noted)

    @cached_property
    def members(self) -> int | None:
        """Number of models of a run that trains several; None for a run of one."""
        return count_members(self.folder) or None

    @cached_property
    def seed(self) -> int | None:
        """Its seed."""
        seed = self.part("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @cached_property
    def replicate(self) -> tuple[int, ...] | None:
        """Which repeat of its configuration it is: its seed, the split's, and its fold; None without a seed."""
        split = as_dict(as_dict(self.part("data")).get("split"))
        more = (split.get(key) for key in (("seed", "fold") if split.get("by") in FOLDS else ("seed",)))
        return None if self.seed is None else (self.seed, *(value if isinstance(value, int) else 0 for value in more))

    @property
    def tags(self) -> str:
        """Its tags, joined by commas; empty for none."""
        return ",".join(self.labels.get("tags") or ())

    @property
    def note(self) -> str:
        """The note that somebody has written about it; empty for none."""
        return str(self.labels.get("note") or "")

    @property
    def metric(self) -> str:
        """Name of the monitored value."""
        name = as_dict(self.result.get("objective")).get("name") or self.progress.get("name")
        return name if isinstance(name, str) else ""

    @property
    def best(self) -> float | None:
        """Its best value, of a run that goes on the best so far."""
        value = as_dict(self.result.get("objective")).get("value", self.progress.get("value"))
        return float(value) if _is_finite(value) else None

    @property
    def epochs(self) -> int | None:
        """Epochs done."""
        epochs = self.result.get("epochs", self.progress.get("epochs"))
        return epochs if isinstance(epochs, int) else None

    @cached_property
    def values(self) -> dict[str, float]:
        """The values that count: validation where the monitored one was best, the test, and of others the last."""
        found = [as_dict(self.result.get(part)) for part in ("metrics", "best", "test")]
        found += [as_dict(self.progress.get("values")), {self.metric: self.best} if self.metric else {}]
        return {name: value for part in found for name, value in part.items() if _is_finite(value)}


def _flat(node: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def as_dict(value: Any) -> Mapping[str, Any]:
    """Return a node as it is, and nothing in the place of what is none."""
    return value if isinstance(value, dict) else {}


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


PACKAGES = ("lightkit", "torch", "torchvision", "torchmetrics", "torchensemble", "numpy", "scikit-learn", "hydra-core",
            "omegaconf", "tensorboard", "timm", "optuna")  # fmt: skip
"""Packages that matter most, which `lightkit env` shows."""
_INSTALLED = re.compile(r"(?P<name>[\w.]+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info$")
"""Name of the folder in which an installed package says what it is."""
_VARIABLES = re.compile(
    "(CUDA|CUBLAS|CUDNN|NCCL|TORCH|PYTORCH|OMP|MKL|OPENBLAS|NVIDIA|SLURM_JOB|HF_HUB_OFF|HF_DATASETS_OFF)_.*|PYTHONHASHSEED"
)
"""Variables of the environment that may change what a run computes; others may hold secrets."""
DIFF_LIMIT = 200_000
"""Characters of an uncommitted diff that are kept."""


def environment(
    *, project: Path | str | None = None, known: Mapping[str, Any] = MappingProxyType({}), **facts: Any
) -> dict[str, Any]:
    """Gather what a run ran with, for later; of environment variables those that matter, as others hold secrets.

    Args:
        project: Folder whose git state is noted; None takes the working directory.
        known: What was gathered for the run as a whole, which asks git once, and what modules name as long as there
            are no more of them.
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
        "named": known["named"] if known.get("modules", ...) == facts.get("modules") else named_by_code(),
        "gpus": gpus,
        "variables": {name: text for name, text in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)},
        "git": known["git"] if "git" in known else git_state(Path(project) if project is not None else Path.cwd()),
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
            for name in sorted(entry.name for entry in Path(folder or ".").iterdir()):
                match = _INSTALLED.match(name)
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
    told, commit = _git(folder, "status", "--porcelain"), _git(folder, "rev-parse", "--verify", "HEAD")
    if told is None and commit is None:
        return None
    status = (told or "").splitlines()
    diff = (_git(folder, "diff", "HEAD") or "") if status else ""
    cut = f"\n… cut: {len(diff):,} characters in all\n"
    return {
        "commit": commit,
        "branch": _git(folder, "symbolic-ref", "--short", "HEAD"),
        "dirty": told != "",  # what git does not tell in time may be changed
        "status": status[:200],
        "diff": diff if len(diff) <= DIFF_LIMIT else diff[:DIFF_LIMIT] + cut,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where it fails, hangs or is missing."""
    said = output_of(["git", "-C", str(folder), "--no-optional-locks", *arguments])
    return None if said is None else said.rstrip()
