"""What a configuration may make lightkit run, in one place: what may be named, by whom, and what it may reach.

A configuration is data that people pass on to each other, and a `_target_` is a function call. So nothing is called
because it exists, only because it is defined in a place that is allowed:

1. **What.** The parts of a few packages (`PLACES`), the user's own project, and what `trust` adds.
2. **By whom.** The user, on the command line or in the project, may name anything of that. The configuration of a run
   counts as the user's where this project signed it (`lightkit.config.provenance`). Of any other run the project's
   modules and its own `trust` are left out (`Trust.of_stranger`), and keys that only the user sets (`USER_ONLY` of the
   schema) have their defaults.
3. **What it reaches.** Some allowed functions do harm with the right argument: they load what an address names
   (`FETCHING`), or fill any folder. These arguments are refused, unless `trust` names the function itself.

Targets are judged by their source, before anything is imported (`violations`), and when they are built once more by the
object (`verify`).
"""

from __future__ import annotations

import ast
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightkit.config.modules as modules
from lightkit.common import run_files
from lightkit.config.annotations import UNKNOWN
from lightkit.config.lookup import (
    Found,
    OpaqueSourceError,
    TargetError,
    defined_path,
    find_known,
    last_name,
    split,
    step,
)
from lightkit.config.modules import Module
from lightkit.config.origins import Key
from lightkit.config.project import beside, project_folders, project_root, shipped_experiments
from lightkit.config.signatures import read_known

PLACES = (
    *(f"lightkit.{part}" for part in ("data", "losses", "metrics", "models", "optim", "trainer")),
    *("lightkit.ensemble", "lightkit.finetune"),
    *("torch.distributions", "torch.nn", "torch.optim"),
    *(f"torch.utils.data.{part}" for part in ("dataloader", "dataset", "sampler")),
    *("torchmetrics", "peft.tuners"),
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
    "optim": ("torch.optim", "timm.optim"),
    "scheduler": ("lightkit.optim", "torch.optim.lr_scheduler"),
    "metrics": ("torchmetrics", "torchmetrics.classification", "torchmetrics.regression", "lightkit.metrics"),
    "data": ("lightkit.data", "torch.utils.data", "torchvision.datasets", "torchvision.transforms.v2"),
    "trainer": ("lightkit.trainer",),
    "finetune": ("peft",),
    "": ("lightkit", "torch.nn", "torch.optim", "torch.utils.data", "torchmetrics", "torchvision", "timm", "peft"),
}
"""Where the targets of a group are usually found, for the messages; `""` is any other group."""

_NO_SOURCES = (run_files.OUTPUTS, "multirun")
_LIGHTKIT = Path(__file__).resolve().parents[1]
_INSTALLED = ("site-packages", "dist-packages")
_CALLERS = ("hydra", "omegaconf")  # trusting all of them would allow everything, as they call what they are told
_VISION, _OWN_VISION = "torchvision.datasets", "lightkit.data.torchvision_sets.torchvision_dataset"

Violation = tuple[Key, str, dict[str, Any]]
"""Where the policy is broken, how, and what else the message says (`expected`, `received`, `fix`, `family`)."""


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
        """Return what a run may build that this project wrote: its modules, but for those in the folder of the run."""
        return cls(tuple(entries), project_folders(), (run.resolve(),))

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
        if not _is_listed(module.name) or self._stands_in(module):
            return self.in_project(module)
        if _below(module.name, SETTINGS[:1]) and not module.name.endswith(f".{SETTINGS[1]}"):
            return False
        return _below(module.name, PLACES) and not full.startswith(EXCEPTIONS)

    def in_project(self, module: Module) -> bool:
        """Tell whether a module is the user's own, or one of the shipped experiments."""
        if _top(module.name) in sys.stdlib_module_names:
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


def _is_listed(name: str) -> bool:
    return _top(name) in {_top(place) for place in PLACES}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _below(name: str, places: Iterable[str]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def _files(module: Module) -> tuple[Path, ...]:
    return (module.file,) if module.file is not None else module.folders


def _is_source(path: Path, root: Path) -> bool:
    """Tell whether a file is part of the project: not installed, hidden, or written by a run."""
    if not path.is_relative_to(root):
        return False
    parts = path.relative_to(root).parts
    is_hidden = any(part in _INSTALLED or part.startswith(".") for part in parts)
    return not is_hidden and not {*parts[:1]} & {*_NO_SOURCES}


def violations(tree: Any, trust: Trust, key: Key = ()) -> Iterator[Violation]:
    """Yield every target of a configuration that may not be built, and every argument with which one reaches too far.

    Args:
        tree: The configuration, or a node of it, as plain values.
        trust: What it may build.
        key: Where it stands.
    """
    for place, node in targets_in(tree, key):
        refusal = judge(node["_target_"], trust)
        if refusal is not None:
            yield refusal.at(place, trust)
            continue
        yield from (((*place, name), what, facts) for name, what, facts in _overreaching(node, trust))


def targets_in(node: Any, key: Key = ()) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield every node with a `_target_` at any depth, with its key."""
    if isinstance(node, dict) and isinstance(node.get("_target_"), str):
        yield key, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, item in items:
        yield from targets_in(item, (*key, name))


@dataclass(frozen=True)
class Refusal:
    """Why a target may not be built.

    Args:
        target: Its path.
        what: The reason, in one sentence.
        entry: What would have to be trusted; empty where that would not help.
        fix: What to do about it where trust would not help.
    """

    target: str
    what: str
    entry: str = ""
    fix: str | None = None

    def at(self, key: Key, trust: Trust) -> Violation:
        """Return the violation of a node with this target."""
        places, fix = USUAL.get(str(key[0]) if key else "", USUAL[""]), self.fix
        if self.entry:
            is_stray = "." not in self.entry and project_root() is None
            fix = (beside(self.entry) if is_stray else None) or self._ways_out(places, trust)
        expected = f"a class or function of {', '.join(places)}, or of your own project"
        facts = {"expected": expected, "received": self.target, "fix": fix, "family": "target-not-trusted"}
        return (*key, "_target_"), self.what, facts

    def _ways_out(self, places: Iterable[str], trust: Trust) -> str:
        last = self.target.rpartition(".")[2]
        close = next((place for place in places if getattr(find_known(f"{place}.{last}"), "node", None)), None)
        instead = f"did you mean {close}.{last}? If not, " if close else ""
        return f"{instead}write a function of your own for it, or {_trusting(self.entry, trust)}"


def _trusting(entry: str, trust: Trust) -> str:
    return f"trust=[{', '.join([*trust.entries, entry])}] if no harm can come of it"


def judge(target: str, trust: Trust) -> Refusal | None:
    """Tell why a target may not be built, as far as its source tells; None also for what does not exist.

    Nothing is imported: every step of the path is followed in the source.
    """
    if target in trust.entries:
        return None
    parts = target.split(".")
    if not all(part.isidentifier() for part in parts):
        return Refusal(target, f"{target} is not a dotted path", fix="write the full path: package.module.Name")
    private = next((i for i, part in enumerate(parts) if part.startswith("_")), None)
    if private is not None and not trust.covers(".".join(parts[: private + 1])):
        what = f"{target} may not be built: names that begin with _ are private"
        return Refusal(target, what, fix="write a public class or function around it in your project")
    try:
        return _follow(target, trust)
    except TargetError:
        return None
    except RecursionError:
        return _not_allowed(target, target)


def _follow(target: str, trust: Trust) -> Refusal | None:
    module, names = split(target)
    if not trust.passes(module):
        return _not_allowed(target, module.name)
    trail = [Found(module)]
    for position, name in enumerate(names, 1):
        try:
            trail.append(step(trail[-1], name, last=position == len(names)))
        except OpaqueSourceError as stopped:
            here = trail[-1].module.name
            if trust.covers(here) and {_top(here), _top(stopped.module)} <= sys.stdlib_module_names:
                return None  # the compiled half of a trusted module of Python's own: posix of os
            return _judge_unreadable(target, stopped.module, trust, last=position == len(names))
        if not trust.passes(trail[-1].module):
            return _not_allowed(target, trail[-1].module.name)
    return _judge_definition(target, trail[-2].node, trail[-1], trust)


def _judge_definition(target: str, owner: ast.AST | None, found: Found, trust: Trust) -> Refusal | None:
    """Judge the last step of a path: something to call must be defined there, in a place that is allowed."""
    if found.node is None:
        return Refusal(target, f"{target} is a module", fix="name a class or function in it")
    decorators = {last_name(item) for item in getattr(found.node, "decorator_list", [])}
    if isinstance(owner, ast.ClassDef) and not decorators & {"classmethod", "staticmethod"}:
        what = f"{target} is a method, which wants an object"
        return Refusal(target, what, fix="name the class, one of its class methods, or a function")
    definition = owner if isinstance(owner, ast.ClassDef) else found.node
    allowed = trust.holds(found.module, getattr(definition, "name", ""))
    return None if allowed else _not_allowed(target, found.module.name)


def _judge_unreadable(target: str, place: str, trust: Trust, *, last: bool) -> Refusal | None:
    """Judge a name whose meaning the source of `place` does not tell; where the place is allowed, the object will."""
    if trust.covers(place) or target in FUNCTIONS:
        return None
    module = modules.load(place)
    if module is None or not trust.holds(module):
        return _not_allowed(target, place)
    what = f"{target} may not be built: {place} does not tell in its source what that is"
    return None if last else Refusal(target, what, entry=target)


def _not_allowed(target: str, place: str) -> Refusal:
    """Make the refusal of what is defined in a place that is not allowed."""
    top, named = _top(place), _top(target)
    is_broad = top in sys.stdlib_module_names or _is_listed(top) or top in _CALLERS
    way = "" if top == named else f" leads to {place}, which"
    return Refusal(target, f"{target}{way} is not among what may be built", entry=target if is_broad else top)


def verify(built: Any, target: str, trust: Trust) -> Refusal | None:
    """Tell why the object behind a target may not be called, though its source looked well.

    Args:
        built: What the path led to when it was imported.
        target: The path.
        trust: What may be built.
    """
    if not callable(built) or isinstance(built, types.ModuleType):
        kind = "a module" if isinstance(built, types.ModuleType) else f"a value of type {type(built).__name__}"
        return Refusal(target, f"{target} is {kind}", fix="name a class or function")
    home = getattr(built, "__module__", None)
    module = modules.load(home) if isinstance(home, str) and home else None
    if target in trust.entries or target in FUNCTIONS:
        return None
    # Compiled code says no more of itself, and is taken at its name: that of `torch.nn`, and what is trusted.
    is_compiled = module is None or module.opaque or isinstance(built, types.BuiltinFunctionType)
    if is_compiled and (trust.covers(target) or target.startswith("torch.nn.functional.")):
        return None
    allowed = module is not None and trust.holds(module, getattr(built, "__name__", ""))
    return None if allowed else _not_allowed(target, str(home))


def _overreaching(node: Mapping[str, Any], trust: Trust) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the arguments with which an allowed target would fetch from, or write to, a place nobody has agreed to."""
    target, home = node["_target_"], defined_path(node["_target_"])
    if trust.covers(target) or trust.covers(home):
        return
    given = _arguments_by_name(node)
    for pattern in (pattern for package, pattern in FETCHING.items() if home.startswith(f"{package}.")):
        for name in filter(pattern.match, given):
            received = None if given[name] is UNKNOWN else given[name]
            fix = f"finetune.weights.path=FILE loads weights from a file; {_trusting(target, trust)}"
            yield name, f"{target} would load what {name} names, from anywhere", {"received": received, "fix": fix}
    if home == _OWN_VISION or home.startswith(f"{_VISION}."):
        yield from _written_folder(home, given, trust)


def _arguments_by_name(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a node by name, those given by position too."""
    positional = node.get("_args_")
    signature = read_known(node["_target_"]) if isinstance(positional, list) else None
    by_position = dict(zip(signature.names(), positional)) if signature is not None and positional else {}
    return by_position | {str(name): value for name, value in node.items() if name != "_target_"}


def _written_folder(home: str, given: Mapping[str, Any], trust: Trust) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Refuse to fill a folder with a data set outside of those that belong to the user's work."""
    options = given.get("options") if isinstance(given.get("options"), dict) else {}
    name = str(given.get("name")) if home == _OWN_VISION else home.rpartition(".")[2]
    root = given.get("root", "datasets" if home == _OWN_VISION else None)
    fetches = any(part.get("download") not in (None, False, UNKNOWN) for part in (given, options or {}))
    if root in (None, UNKNOWN) or not (fetches or name in UNPACKING):
        return
    if trust.covers(f"{_VISION}.{name}") or _is_users_folder(root):
        return
    stated = os.environ.get(DATASETS)
    expected = f"a folder in the project, or in that of the environment variable {DATASETS}"
    expected += f" ({stated})" if stated else ""
    fix = f"{DATASETS}=FOLDER for all data sets; {_trusting(f'{_VISION}.{name}', trust)}"
    yield "root", f"{name} would write outside of the project", {"expected": expected, "received": root, "fix": fix}


def _is_users_folder(root: Any) -> bool:
    """Tell whether a folder, as written or as it is, is in the project, where the command runs, or the stated one."""
    if not isinstance(root, str):
        return False
    path, stated = Path(root).expanduser(), os.environ.get(DATASETS)
    # As written too: a link in the project to a folder elsewhere was put there by the user.
    places = [path.resolve(), *([] if ".." in path.parts else [path.absolute()])]
    folders = [folder for folder in (Path.cwd(), project_root(), Path(stated) if stated else None) if folder]
    bases = {base for folder in folders for base in (folder.absolute(), folder.resolve())}
    return any(place.is_relative_to(base) for place in places for base in bases)
