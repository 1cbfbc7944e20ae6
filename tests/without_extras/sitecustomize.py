"""Hides all packages but those that lightkit requires, from a process that has this folder on its path."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions, packages_distributions
from types import ModuleType

from packaging.requirements import Requirement


def required_by(requirements: Sequence[str]) -> tuple[dict[str, Distribution], set[str]]:
    """The installed packages that requirements need, also by those they need, and the names of those that are not there."""
    known = {_plain(each.metadata["Name"]): each for each in distributions()}
    extras, missing = dict[str, set[str]](), set[str]()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        name = _plain(one.name)
        if name not in known:
            missing.add(name)
        elif name not in extras or not one.extras <= extras[name]:
            extras[name] = extras.get(name, set()) | one.extras
            more = [Requirement(text) for text in known[name].requires or ()]
            waiting += [each for each in more if _holds(each, {"", *extras[name]})]
    return {name: known[name] for name in extras}, missing


def _holds(requirement: Requirement, extras: set[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Hidden:
    """Finds nothing of the packages that are not required."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if "REQUIRED_OF" in os.environ:
    _found = Distribution.discover(name="lightkit", path=[os.environ["REQUIRED_OF"]])
    _texts = [text for each in _found for text in each.requires or () if "extra ==" not in text]
    _kept = {"lightkit", *required_by(_texts)[0]}
    _hidden = {
        module for module, owners in packages_distributions().items() if _kept.isdisjoint(map(_plain, owners))
    }
    sys.meta_path.insert(0, _Hidden(_hidden))  # type: ignore[arg-type]
