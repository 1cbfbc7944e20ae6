"""Whether a `_target_` may be built, told from source before anything is imported, and once more from the object."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lightkit.config.modules as modules
from lightkit.common.errors import UserError
from lightkit.config.lookup import Found, OpaqueSourceError, TargetError, find_known, last_name, split, step
from lightkit.config.modules import Module
from lightkit.config.origins import Key, dotted
from lightkit.config.project import beside, project_root
from lightkit.config.report import Report
from lightkit.config.trust import FUNCTIONS, PACKAGES, SLOTS, Trust, is_listed

_CALLERS = ("hydra", "omegaconf")  # trusting all of them would allow everything, as they call what they are told


@dataclass(frozen=True)
class Refusal:
    """Why a target may not be built.

    Args:
        what: The reason, in one sentence.
        entry: What would have to be trusted; empty where that would not help.
        fix: What to do about it where trust would not help.
    """

    what: str
    entry: str = ""
    fix: str | None = None


def judge(target: str, trust: Trust) -> Refusal | None:
    """Tell why a target may not be built, as far as its source tells; None also for what does not exist.

    Nothing is imported: every step of the path is followed in the source.
    """
    if trust.names(target):
        return None
    parts = target.split(".")
    if not all(part.isidentifier() for part in parts):
        return Refusal(f"{target} is not a dotted path", fix="write the full path: package.module.Name")
    private = next((i for i, part in enumerate(parts) if part.startswith("_")), None)
    if private is not None and not trust.covers(".".join(parts[: private + 1])):
        what = f"{target} may not be built: names that begin with _ are private"
        return Refusal(what, fix="write a public class or function around it in your project")
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
    found, trail = Found(module), [Found(module)]
    for position, name in enumerate(names, 1):
        try:
            found = step(found, name, last=position == len(names))
        except OpaqueSourceError as stopped:
            here = found.module.name
            if trust.covers(here) and {_top(here), _top(stopped.module)} <= sys.stdlib_module_names:
                return None  # the compiled half of a trusted module of Python's own: posix of os
            return _judge_unreadable(target, stopped.module, trust, last=position == len(names))
        if not trust.passes(found.module):
            return _not_allowed(target, found.module.name)
        trail.append(found)
    return _judge_definition(target, trail, trust)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _judge_definition(target: str, trail: list[Found], trust: Trust) -> Refusal | None:
    """Judge the last step of a path: something to call must be defined there, in a place that is allowed."""
    owner, found = trail[-2].node, trail[-1]
    if found.node is None:
        return Refusal(f"{target} is a module", fix="name a class or function in it")
    in_class = isinstance(owner, ast.ClassDef)
    decorators = {last_name(item) for item in getattr(found.node, "decorator_list", [])}
    if in_class and not decorators & {"classmethod", "staticmethod"}:
        what = f"{target} is a method, which wants an object"
        return Refusal(what, fix="name the class, one of its class methods, or a function")
    definition = owner if in_class else found.node
    allowed = trust.holds(found.module, getattr(definition, "name", ""))
    return None if allowed else _not_allowed(target, found.module.name)


def _judge_unreadable(target: str, place: str, trust: Trust, *, last: bool) -> Refusal | None:
    """Judge a name whose meaning the source of `place` does not tell; where the place is allowed, the object will."""
    if trust.covers(place) or target in FUNCTIONS:
        return None
    module = modules.load(place)
    if module is None or not trust.holds(module):
        return _not_allowed(target, place)
    if last:
        return None
    return Refusal(f"{target} may not be built: {place} does not tell in its source what that is", entry=target)


def _not_allowed(target: str, place: str) -> Refusal:
    """Make the refusal of what is defined in a place that is not allowed."""
    top, named = _top(place), _top(target)
    is_broad = top in sys.stdlib_module_names or is_listed(top) or top in _CALLERS
    way = "" if top == named else f" leads to {place}, which"
    return Refusal(f"{target}{way} is not among what may be built", entry=target if is_broad else top)


def verify(built: Any, target: str, trust: Trust) -> Refusal | None:
    """Tell why the object behind a target may not be called, though its source looked well.

    Args:
        built: What the path led to when it was imported.
        target: The path.
        trust: What may be built.
    """
    if not callable(built) or isinstance(built, types.ModuleType):
        kind = "a module" if isinstance(built, types.ModuleType) else f"a value of type {type(built).__name__}"
        return Refusal(f"{target} is {kind}", fix="name a class or function")
    home = getattr(built, "__module__", None)
    module = modules.load(home) if isinstance(home, str) and home else None
    if trust.names(target) or target in FUNCTIONS or _is_compiled(built, module, target, trust):
        return None
    if module is not None and trust.holds(module, getattr(built, "__name__", "")):
        return None
    return _not_allowed(target, str(home))


def _is_compiled(built: Any, module: Module | None, target: str, trust: Trust) -> bool:
    """Tell whether compiled code is taken at its name, as that of `torch.nn` and what is trusted; it says no more."""
    named = trust.covers(target) or target.startswith("torch.nn.functional.")
    return named and (module is None or module.opaque or isinstance(built, types.BuiltinFunctionType))


def _message_facts(refusal: Refusal, target: str, key: Key, trust: Trust) -> dict[str, Any]:
    """Return what the message about a refused target says beside the reason."""
    places = SLOTS.get(str(key[0]), PACKAGES) if key else PACKAGES
    expected = f"a class or function of {', '.join(places)}, or of your own project"
    facts = {"expected": expected, "received": target}
    if not refusal.entry:
        return {**facts, "fix": refusal.fix}
    hint = beside(refusal.entry) if "." not in refusal.entry and project_root() is None else None
    if hint is not None:
        return {**facts, "fix": hint}
    last = target.rpartition(".")[2]
    close = next((place for place in places if getattr(find_known(f"{place}.{last}"), "node", None)), None)
    instead = f"did you mean {close}.{last}? If not, " if close else ""
    added = f"trust=[{', '.join([*trust.entries, refusal.entry])}]"
    return {**facts, "fix": f"{instead}write a function of your own for it, or {added} if no harm can come of it"}


def entries_in(value: Any, report: Report) -> tuple[str, ...]:
    """Return the entries of `trust` in a configuration; what can't be one is reported and left out."""
    entries = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, str) and not all(part.isidentifier() for part in entry.split(".")):
            expected = "the dotted path of a package, module, class or function"
            report.add(
                ("trust", index), "can't be trusted", expected=expected, received=entry, family="target-not-trusted"
            )
    return tuple(entries)


def check_targets(tree: Any, report: Report) -> None:
    """Report every `_target_` of a configuration that may not be built."""
    for key, node in targets_in(tree):
        target = node["_target_"]
        refusal = judge(target, report.trust)
        if refusal is not None:
            report.add(
                (*key, "_target_"),
                refusal.what,
                **_message_facts(refusal, target, key, report.trust),
                family="target-not-trusted",
            )


def targets_in(node: Any, key: Key = ()) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield every node with a `_target_` at any depth, with its key."""
    if isinstance(node, dict) and isinstance(node.get("_target_"), str):
        yield key, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, item in items:
        yield from targets_in(item, (*key, name))


def refused(refusal: Refusal, target: str, key: Key, trust: Trust) -> UserError:
    """Make the error for a target that is about to be built."""
    return UserError(
        refusal.what,
        key=dotted((*key, "_target_")),
        **_message_facts(refusal, target, key, trust),
        family="target-not-trusted",
    )
