"""What a `_target_` may name: the parts of a few packages, the user's own project, and what `trust` adds.

A configuration is data that people pass on to each other, and a `_target_` is a function call. So nothing is called
because it exists: only because it is defined in a place listed here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lightkit.common import run_files
from lightkit.config.modules import Module

PLACES = (
    "lightkit.data",
    "lightkit.ensemble",
    "lightkit.finetune",
    "lightkit.losses",
    "lightkit.metrics",
    "lightkit.models",
    "lightkit.optim",
    "lightkit.trainer",
    "peft.tuners",
    "torch.distributions",
    "torch.nn",
    "torch.optim",
    "torch.utils.data.dataloader",
    "torch.utils.data.dataset",
    "torch.utils.data.sampler",
    "torchmetrics",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.ops",
    "torchvision.transforms",
    "timm.layers",
    "timm.loss",
    "timm.models",
    "timm.optim",
    "timm.scheduler",
)
"""Modules whose classes and functions may be built, with all modules below them."""

NOT_THESE = (
    "lightkit.metrics.drawing",
    "lightkit.metrics.figures",
    "timm.models._",
    "torchmetrics.utilities",
    "torchvision.datasets.lsun",
    "torchvision.datasets.utils",
    "torchvision.datasets.video_utils",
)
"""Exceptions from `PLACES`: they fetch, unpack, write or unpickle what their arguments name."""

SETTINGS = ("peft.tuners", "config")
"""A place of `PLACES`, and the name of the modules below it that count: they hold settings, which are plain values; the
others load, fetch and write."""

FUNCTIONS = frozenset(
    f"torch.{name}" for name in ("arange", "as_tensor", "eye", "full", "linspace", "ones", "tensor", "zeros")
)
"""Compiled functions that make a tensor, such as class weights, out of plain values."""

SLOTS = {
    "model": ("lightkit.models", "torch.nn", "torchvision.models", "timm.models"),
    "loss": ("lightkit.losses", "torch.nn", "torchvision.ops"),
    "optim": ("torch.optim", "timm.optim"),
    "scheduler": ("lightkit.optim", "torch.optim.lr_scheduler"),
    "metrics": ("torchmetrics", "torchmetrics.classification", "torchmetrics.regression", "lightkit.metrics"),
    "data": ("lightkit.data", "torch.utils.data", "torchvision.datasets", "torchvision.transforms.v2"),
    "trainer": ("lightkit.trainer",),
    "finetune": ("peft",),
}
"""Where the targets of a group are usually found, for the messages."""

PACKAGES = ("lightkit", "torch.nn", "torch.optim", "torch.utils.data", "torchmetrics", "torchvision", "timm", "peft")
"""The same for any other place."""

_NO_SOURCES = (run_files.OUTPUTS, "multirun")
_LIGHTKIT = Path(__file__).resolve().parents[1]
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Trust:
    """What one configuration may build.

    Args:
        entries: What `trust` adds: packages, modules, or single classes and functions.
        roots: Folders of the user's project and of the shipped experiments.
        outside: Folders in which nothing may be built, though they are in a project or are one: that of the run that is
            read, and the project itself where it did not write the run.
    """

    entries: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    outside: tuple[Path, ...] = ()

    def names(self, target: str) -> bool:
        """Tell whether an entry names this very class or function."""
        return target in self.entries

    def covers(self, name: str) -> bool:
        """Tell whether a module or object is at or below an entry."""
        return _below(name, self.entries)

    def passes(self, module: Module) -> bool:
        """Tell whether a path may lead through a module: it is allowed, or a package around what is allowed."""
        around = f"{module.name}."
        known = (*PLACES, *self.entries)
        is_way = any(place.startswith(around) for place in known) or _below(module.name, SETTINGS[:1])
        return is_way or self.holds(module)

    def holds(self, module: Module, name: str = "") -> bool:
        """Tell whether what a module defines may be built; with `name`, that one class or function."""
        full = f"{module.name}.{name}" if name else module.name
        if self.covers(full) or full in FUNCTIONS:
            return True
        if is_listed(module.name) and not self._stands_in(module):
            beside = _below(module.name, SETTINGS[:1]) and not module.name.endswith(f".{SETTINGS[1]}")
            return _below(module.name, PLACES) and not beside and not any(full.startswith(one) for one in NOT_THESE)
        return self.in_project(module)

    def in_project(self, module: Module) -> bool:
        """Tell whether a module is the user's own, or one of the shipped experiments."""
        if module.name.partition(".")[0] in sys.stdlib_module_names:
            return False
        for path in _files(module):
            full = path.resolve()
            is_outside = any(full.is_relative_to(folder) for folder in self.outside)
            # As written too: a link in the project to a folder elsewhere was put there by the user.
            if not is_outside and any(_is_source(one, root) for one in (path, full) for root in self.roots):
                return True
        return False

    def _stands_in(self, module: Module) -> bool:
        """Tell whether a module of a project has the name of a listed package that is not installed or comes later."""
        places = (*self.roots, *self.outside)
        found = [path for path in _files(module) if not path.is_relative_to(_LIGHTKIT)]
        return any(_is_source(path, place) for path in found for place in places)


def is_listed(name: str) -> bool:
    """Tell whether a module belongs to one of the packages of `PLACES`."""
    return name.partition(".")[0] in {place.partition(".")[0] for place in PLACES}


def _files(module: Module) -> tuple[Path, ...]:
    return (module.file,) if module.file is not None else module.folders


def _below(name: str, places: Iterable[str]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def _is_source(path: Path, root: Path) -> bool:
    """Tell whether a file is part of the project: not installed, hidden, or written by a run."""
    if not path.is_relative_to(root):
        return False
    parts = path.relative_to(root).parts
    installed = any(part in _INSTALLED or part.startswith(".") for part in parts)
    return not installed and parts[:1] not in {(name,) for name in _NO_SOURCES}
