"""What a configuration may make lightkit run, in one place: what may be named, by whom, and what it may reach.

A configuration is data that people pass on to each other, and a `_target_` is a function call. So nothing is called
because it exists, only because it is defined in a place that is allowed:

1. **What.** The parts of a few packages (`PLACES`), the user's own project, and what `trust` adds.
2. **By whom.** The user, on the command line or in the project, may name anything of that. The configuration of a run
   counts as the user's where this project signed it (`lightkit.config.provenance`). Of any other run the project's
   modules and its own `trust` are left out (`Trust.of_stranger`), and keys that only the user sets (`USER_ONLY` of the
   schema) have their defaults (`reset_user_only`).
3. **What it reaches.** Some allowed functions do harm with the right argument: they load what an address names
   (`FETCHING`), or fill any folder. These arguments are refused, unless `trust` names the function itself.

`lightkit.config.judging` applies this to targets: by their source, before anything is imported, and when they are built
once more by the object.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config.fields import default_of, marked_fields
from lightkit.config.modules import Module
from lightkit.config.origins import Key, dotted, parts_of
from lightkit.config.project import project_folders, project_root, shipped_experiments
from lightkit.config.schema import Config
from lightkit.config.schema.base import USER_ONLY

PLACES = (
    *(f"lightkit.{part}" for part in ("data", "losses", "metrics", "models", "optim", "trainer")),
    *("lightkit.ensemble", "lightkit.finetune", "lightkit.loggers.trackers"),
    *("torch.distributions", "torch.nn", "torch.optim"),
    *(f"torch.utils.data.{part}" for part in ("dataloader", "dataset", "sampler")),
    *("torchmetrics", "sklearn.metrics", "peft.tuners", "schedulefree", "torchao.optim"),
    *(f"torchvision.{part}" for part in ("datasets", "models", "ops", "transforms")),
    *(f"timm.{part}" for part in ("layers", "loss", "models", "optim", "scheduler")),
)
"""Modules whose classes and functions may be built, with all modules below them."""
EXCEPTIONS = (
    *("lightkit.metrics.drawing", "lightkit.metrics.figures", "timm.models._", "torchmetrics.utilities"),
    *(f"torchvision.datasets.{part}" for part in ("lsun", "utils", "video_utils")),
)
"""Beginnings of names in `PLACES` that may not: they fetch, unpack, write or unpickle what their arguments name."""
SETTINGS = ("peft.tuners", "config")
"""A place of `PLACES`, and the name of the modules below it that count: they hold settings, which are plain values; the
others load, fetch and write."""
FUNCTIONS = frozenset(
    f"torch.{name}" for name in ("arange", "as_tensor", "eye", "full", "linspace", "ones", "tensor", "zeros")
)
"""Compiled functions that make a tensor, such as class weights, out of plain values."""
FETCHING = {
    "peft": re.compile(r"tokenizer_|adapters$|cache_file$"),
    "timm.models": re.compile(r"pretrained_|checkpoint|weights|cache_dir$"),
    "torchmetrics": re.compile(r"feature_extractor_weights_path$|model_name_or_path$|baseline_url$"),
}
"""Arguments that name a file or an address to load, by the package whose functions take them. `pretrained` and
`weights=NAME` name what the package itself has published."""
UNPACKING = ("Caltech101", "Caltech256", "Cityscapes", "INaturalist", "ImageNet")
"""Data sets of torchvision that write into their folder without `download`."""
DATASETS = "LIGHTKIT_DATASETS"
"""Environment variable that names a folder for data sets outside of the project."""
USUAL = {
    "model": ("lightkit.models", "torch.nn", "torchvision.models", "timm.models"),
    "loss": ("lightkit.losses", "torch.nn", "torchvision.ops"),
    "optim": ("torch.optim", "lightkit.optim", "timm.optim", "schedulefree", "torchao.optim"),
    "scheduler": ("lightkit.optim", "torch.optim.lr_scheduler"),
    "metrics": (
        "torchmetrics",
        "torchmetrics.classification",
        "torchmetrics.regression",
        "lightkit.metrics",
        "sklearn.metrics",
    ),
    "data": ("lightkit.data", "torch.utils.data", "torchvision.datasets", "torchvision.transforms.v2"),
    "trainer": ("lightkit.trainer",),
    "finetune": ("peft",),
    "": ("lightkit", "torch.nn", "torch.optim", "torch.utils.data", "torchmetrics", "torchvision", "timm", "peft"),
}
"""Where the targets of a group are usually found, for the messages; `""` is any other group."""

_NO_SOURCES = (run_files.OUTPUTS, "multirun")
_LIGHTKIT = Path(__file__).resolve().parents[1]
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Trust:
    """What one configuration may build.

    Args:
        entries: What `trust` adds: packages, modules, or single classes and functions.
        roots: Folders of the user's project and of the shipped experiments.
        excluded: Folders in which nothing may be built, though they are in a project or are one.
    """

    entries: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    excluded: tuple[Path, ...] = ()

    @classmethod
    def of_run(cls, run: Path, entries: Iterable[str] = ()) -> Trust:
        """Return what a run may build that this project wrote: its modules, but for those in the folder of the run.

        These only where `rerun`, which knows that this project wrote the run, has named them.
        """
        roots = project_folders()
        return cls(tuple(entries), roots, () if run.resolve() / run_files.CODE in roots else (run.resolve(),))

    def of_stranger(self, named: Iterable[str]) -> Trust:
        """Return what is left of it for a run from elsewhere: no module of the project, and what the user has named."""
        root = project_root()
        return Trust(tuple(named), (shipped_experiments(),), (*self.excluded, *([root] if root else [])))

    def covers(self, name: str) -> bool:
        """Tell whether a module or object is at or below an entry."""
        return _below(name, self.entries)

    def passes(self, module: Module) -> bool:
        """Tell whether a path may lead through a module: it is allowed, or a package around what is allowed."""
        known = (*PLACES, *self.entries)
        is_way = any(place.startswith(f"{module.name}.") for place in known) or _below(module.name, SETTINGS[:1])
        return is_way or self.holds(module)

    def holds(self, module: Module, name: str = "") -> bool:
        """Tell whether what a module defines may be built; with `name`, that one class or function."""
        full = f"{module.name}.{name}" if name else module.name
        if self.covers(full) or full in FUNCTIONS:
            return True
        if not is_listed(module.name) or self._stands_in(module):
            return self.in_project(module)
        if _below(module.name, SETTINGS[:1]) and not module.name.endswith(f".{SETTINGS[1]}"):
            return False
        return _below(module.name, PLACES) and not full.startswith(EXCEPTIONS)

    def in_project(self, module: Module) -> bool:
        """Tell whether a module is the user's own, or one of the shipped experiments."""
        if top_of(module.name) in sys.stdlib_module_names:
            return False
        for path in _files(module):
            full = path.resolve()
            # As written too: a link in the project to a folder elsewhere was put there by the user.
            is_source = any(_is_source(one, root) for one in (path, full) for root in self.roots)
            if is_source and not any(full.is_relative_to(folder) for folder in self.excluded):
                return True
        return False

    def _stands_in(self, module: Module) -> bool:
        """Tell whether a module of a project has the name of a listed package that is not installed or comes later."""
        files = [path for path in _files(module) if not path.is_relative_to(_LIGHTKIT)]
        return any(_is_source(path, place) for path in files for place in (*self.roots, *self.excluded))


def is_listed(name: str) -> bool:
    """Tell whether a name begins with a package of `PLACES`."""
    return top_of(name) in {top_of(place) for place in PLACES}


def top_of(name: str) -> str:
    """Return the package or module that a dotted name begins with."""
    return name.partition(".")[0]


def _below(name: str, places: Iterable[str]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def _files(module: Module) -> tuple[Path, ...]:
    return (module.file,) if module.file is not None else module.folders


@cache
def _is_source(path: Path, root: Path) -> bool:
    """Tell whether a file is part of the project: not installed, hidden, or written by a run."""
    if not path.is_relative_to(root):
        return False
    parts = path.relative_to(root).parts
    is_hidden = any(part in _INSTALLED or part.startswith(".") for part in parts)
    return not is_hidden and not {*parts[:1]} & {*_NO_SOURCES}


def user_only_keys() -> tuple[Key, ...]:
    """Return every key that only the user sets; `*` stands for an item of a list and for a name of the user's."""
    return tuple(marked_fields(Config, *USER_ONLY))


def reset_user_only(tree: dict[str, Any], keys: Iterable[Key] | None = None) -> None:
    """Set keys that only the user sets to their defaults, wherever they are set.

    Args:
        tree: A configuration as plain values, interpolations as they are written; changed in place.
        keys: Some of `user_only_keys()`; None takes all.

    Raises:
        UserError: A node around such a key is an interpolation, which leads to another place.
    """
    fields = marked_fields(Config, *USER_ONLY)
    for key in fields if keys is None else keys:
        for node in _nodes(tree, key[:-1]):
            if key[-1] in node:
                node[str(key[-1])] = default_of(fields[key])


def _nodes(node: Any, way: Key, place: Key = ()) -> Iterator[dict[str, Any]]:
    """Yield the nodes that a way with `*` leads to."""
    if isinstance(node, str) and "${" in node:
        what = "refers to another place, which a run's file can't do around a key that grants trust"
        facts: dict[str, Any] = {"received": node, "fix": "write the values here", "family": "target-not-trusted"}
        raise UserError(what, key=dotted(place), **facts)
    if not way and isinstance(node, dict):
        yield node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, item in items if way else ():
        if way[0] in ("*", name):
            yield from _nodes(item, way[1:], (*place, name))


def changed_around(overrides: Iterable[str]) -> list[Key]:
    """List the user-only keys that answer for what stands beside them, where that is changed."""
    typed = [parts_of(text.lstrip("+~").partition("=")[0]) for text in overrides]
    typed += [key[3:] for key in typed if key[:2] == ("ensemble", "members")]  # values of one member
    nodes = [(key, key[:-1]) for key in user_only_keys() if len(key) > 1]
    return [key for key, node in nodes if any(_overlap(name, node) for name in typed)]


def _overlap(one: Key, other: Key) -> bool:
    """Tell whether one of two keys is at or below the other."""
    return all("*" in pair or pair[0] == pair[1] for pair in zip(one, other))


def without_user_only(text: str) -> str:
    """Write a configuration as YAML in which every key that only the user sets has its default.

    Raises:
        UserError: A key could be reached by an interpolation.
    """
    tree: Any = OmegaConf.to_container(OmegaConf.create(text))
    reset_user_only(tree)
    return OmegaConf.to_yaml(OmegaConf.create(tree))
