"""Hides all packages but those that lightkit requires, from a process that has this folder on its path."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder, distributions, packages_distributions
from types import ModuleType
from typing import ClassVar

from packaging.requirements import Requirement


def required_by(requirements: Sequence[str]) -> tuple[dict[str, Distribution], set[str]]:
    """The installed packages that requirements need, directly or not, and the names of those that are not there."""
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


class _Finder(PathFinder):
    """Finds packages on the path, but for those that are not required."""

    hidden: ClassVar[set[str]] = set()
    kept: ClassVar[set[str]] = set()

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module."""
        return None if name.partition(".")[0] in cls.hidden else super().find_spec(name, path, target)  # type: ignore[arg-type]

    @classmethod
    def find_distributions(cls, *context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Find what is installed."""
        found = super().find_distributions(*context)
        return (each for each in found if not cls.kept or _plain(each.metadata["Name"]) in cls.kept)


if "REQUIRED_OF" in os.environ:
    _found = Distribution.discover(name="lightkit", path=[os.environ["REQUIRED_OF"]])
    _texts = [text for each in _found for text in each.requires or () if "extra ==" not in text]
    _Finder.kept = {"lightkit", *required_by(_texts)[0]}
    _Finder.hidden = {
        module for module, owners in packages_distributions().items() if _Finder.kept.isdisjoint(map(_plain, owners))
    }
    sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder
