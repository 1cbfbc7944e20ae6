"""Targets judged by the policy: by their source, before anything is imported, and once more by the object.

Every step of a dotted path is followed in the source; what the policy says is in `lightkit.config.policy`.
"""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightkit.config.modules as modules
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
from lightkit.config.origins import Key
from lightkit.config.policy import DATASETS, FETCHING, FUNCTIONS, UNPACKING, USUAL, Trust, is_listed, top_of
from lightkit.config.project import beside, project_root
from lightkit.config.signatures import called, read_known

_CALLERS = ("hydra", "omegaconf")  # trusting all of them would allow everything, as they call what they are told
_VISION, _OWN_VISION = "torchvision.datasets", "lightkit.data.torchvision_sets.torchvision_dataset"
Violation = tuple[Key, str, dict[str, Any]]
"""Where the policy is broken, how, and what else the message says (`expected`, `received`, `fix`, `family`)."""


def violations(tree: Any, trust: Trust, key: Key = ()) -> Iterator[Violation]:
    """Yield every target of a configuration that may not be built, and every argument with which one reaches too far.

    Args:
        tree: The configuration, or a node of it, as plain values.
        trust: What it may build.
        key: Where it stands.
    """
    for place, node in paths_in(tree, key):
        refusal = judge(node["_target_"], trust)
        if refusal is not None:
            yield refusal.at(place, trust)
            continue
        yield from (((*place[:-1], name), what, facts) for name, what, facts in _overreaching(node, trust))


def targets_in(node: Any, key: Key = ()) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield every node with a `_target_` at any depth, with its key."""
    if isinstance(node, dict) and isinstance(node.get("_target_"), str):
        yield key, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, item in items:
        yield from targets_in(item, (*key, name))


def paths_in(tree: Any, key: Key = ()) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield the key of every path that leads to something to build or to call, with its node.

    Of a function that is given by its path alone the node is made from the one that it stands in.
    """
    for place, node in targets_in(tree, key):
        yield (*place, "_target_"), node
        yield from (((*place, name), inner) for name, inner in called(node).items())


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
        """Return the violation of a node with this target, whose path stands at `key`."""
        places, fix = USUAL.get(str(key[0]) if key else "", USUAL[""]), self.fix
        if self.entry:
            is_stray = "." not in self.entry and project_root() is None
            fix = (beside(self.entry) if is_stray else None) or self._ways_out(places, trust)
        expected = f"a class or function of {', '.join(places)}, or of your own project"
        facts = {"expected": expected, "received": self.target, "fix": fix, "family": "target-not-trusted"}
        return key, self.what, facts

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
            if trust.covers(here) and {top_of(here), top_of(stopped.module)} <= sys.stdlib_module_names:
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
    top, named = top_of(place), top_of(target)
    is_broad = top in sys.stdlib_module_names or is_listed(top) or top in _CALLERS
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
    if home.startswith("lightkit.models.") and given.get("trust_remote_code"):
        yield "trust_remote_code", f"{target} would run code of others", {"fix": _trusting(target, trust)}
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
