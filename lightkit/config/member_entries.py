"""What an entry of `ensemble.members` may say, and how errors in it are told: by its key, from where it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from lightkit.common.errors import UserError
from lightkit.config.defaults import unknown_option
from lightkit.config.fields import valid_keys
from lightkit.config.loader import ConfigLoader
from lightkit.config.member_values import REMOVE, flat
from lightkit.config.origins import Key, Sources, command_line, dotted
from lightkit.config.provenance import user_only_keys
from lightkit.config.sources import GROUP

KEY = "ensemble.members"
_LIST = ("ensemble", "members")
SHARED = {
    "data": "the members of an ensemble learn from the same data",
    "device": "the device is that of the whole run",
    "metrics": "all members are measured alike",
    "trainer.test": "all members are tested alike",
    "checkpoint": "checkpoints are those of the whole run",
    "logger": "what is logged is the same for all members",
    "profile": "it is the whole run that is profiled",
    "resume": "it is the whole run that is resumed",
    "sweep": "a sweep runs whole runs",
    "ensemble": "a member is a single model",
    "hydra": "Hydra's own settings are those of the whole run",
    **{dotted(key): "trust is granted to the whole run" for key in user_only_keys()},
    "on_end": "it follows the end of the whole run",
}
"""Keys that all members have from the run, and why."""
_FIXES = {
    "data": "train another run, and `lightkit ensemble RUN1 RUN2` makes one ensemble of both",
    "ensemble": "take it out",
}
_MEANT = re.compile(r"did you mean ([\w.]+)\?(.*)", re.DOTALL)
_ENTRY = "a mapping of keys and values, such as {model: mlp, optim.lr: 0.01}"


def chosen_options(entry: Mapping[str, Any], loader: ConfigLoader) -> dict[str, list[str]]:
    """Return the options of groups that an entry chooses."""
    found = dict[str, list[str]]()
    for name, value in entry.items():
        options = value if isinstance(value, list) and value else [value]
        if (name == GROUP or loader.is_group(name)) and all(isinstance(option, str) for option in options):
            found[name] = options
    return found


def wrong_entry(entry: Any, loader: ConfigLoader) -> Iterator[UserError]:
    """Yield what is wrong with an entry before it is composed, by keys of its own."""
    if not isinstance(entry, dict):
        option = entry if isinstance(entry, str) else ""
        group = next((group for group in loader.groups() if option and loader.is_option(group, option)), None)
        fix = f"{{{group}: {option}}}" if group else None
        received = "null" if entry is None else entry
        yield UserError("wrong type", expected=_ENTRY, received=received, fix=fix, family="wrong-value")
        return
    for name, value in entry.items():
        if isinstance(name, str) and not (name.startswith("+") or "/" in name or "@" in name):
            yield from _wrong_value(name, value)
            yield from _unknown_options(name, value, loader)
            continue
        plain = str(name).lstrip("+")
        fix = f"{plain}: {value}" if plain != name else None
        expected = "a key such as optim.lr, or a group such as model"
        yield UserError(
            "no key of a member", key=str(name), expected=expected, received=name, fix=fix, family="unknown-key"
        )


def _wrong_value(name: str, value: Any) -> Iterator[UserError]:
    """Yield an error for each value that a member has from the run."""
    for place in flat({name: value}):
        key = ".".join(place).removeprefix(REMOVE)
        shared = next((shared for shared in SHARED if f"{key}.".startswith(f"{shared}.")), None)
        if shared is not None:
            yield not_own(".".join(place), shared, SHARED[shared])


def _unknown_options(name: str, value: Any, loader: ConfigLoader) -> Iterator[UserError]:
    """Yield an error for each option of a group that there is not."""
    for option in chosen_options({name: value}, loader).get(name, ()):
        if not loader.is_option(name, option):
            several = value if isinstance(value, list) else ()
            yield unknown_option(loader, name, option, origin="", several=several)


def not_own(key: str, shared: str, what: str) -> UserError:
    """Return the error of a member with values of its own where it has those of the run.

    Args:
        key: Key of the entry.
        shared: The one of `SHARED` that it is at or below.
        what: What is wrong.
    """
    fix = _FIXES.get(shared, f"set {key.removeprefix(REMOVE)} beside {KEY}, for all of them")
    return UserError(what, key=key, fix=fix, family="contradiction")


def error_in_entry(error: UserError, place: str, origin: str | None = None) -> UserError:
    """Return an error of one member with the full key, also where it says how to mend it."""
    key, fix = f"{place}.{error.key}" if error.key else place, error.fix
    meant = _MEANT.match(fix) if fix else None
    if meant and meant[1].partition(".")[0] in _groups():
        fix = f"did you mean {place}.{meant[1]}?{meant[2]}"
    elif fix == f"remove it: ~{error.key}":
        fix = f"remove it from {place}"
    facts: Any = {"expected": error.expected, "received": error.received, "choices": error.choices, "fix": fix}
    return UserError(error.what, key=key, origin=origin or error.origin, family=error.families[0].slug, **facts)


@cache
def _groups() -> frozenset[str]:
    """Return the first parts of all keys."""
    return frozenset(key.partition(".")[0] for key in valid_keys())


class EntrySources(Sources):
    """Tells where the values of a member come from: those of its entry from where that is written.

    Args:
        run: Origins of the values of the run.
        place: Key of the entry.
        said: Places that the entry sets.
        sources: Origins of everything else.
    """

    def __init__(self, run: Sources, place: str, said: Sequence[Key], sources: Sources | None = None) -> None:
        super().__init__()
        base = sources or run
        self.layers, self.overrides = base.layers, base.overrides
        self.run, self.place, self.said = run, tuple(place.split(".")), said

    def says(self, key: Key) -> bool:
        """Tell whether the entry sets a key, or a node around it."""
        return any(key[: len(place)] == place for place in self.said)

    def entry_origin(self, key: str) -> str | None:
        """Return the override or the line that a key of the entry comes from."""
        typed = self.run.on_command_line((*self.place, *key.split(".")))
        if typed is not None and typed == self.run.on_command_line(_LIST):
            return command_line(f"{KEY}=[…]")  # all of them would be a long text
        written = self.place if self.place[:2] != _LIST else (*_LIST, int(self.place[2]))
        return typed or self.run.find((*written, key))

    def on_command_line(self, key: Key) -> str | None:
        """See `Sources.on_command_line`; what an entry says counts as typed."""
        place = next((place for place in self.said if key[: len(place)] == place), None)
        if place is None:
            return super().on_command_line(key)
        typed = self.run.on_command_line((*self.place, *map(str, key)))
        whole = self.entry_origin(dotted(place))
        return whole if typed is None or typed == self.run.on_command_line(_LIST) else typed

    def _below(self, key: Key) -> str | None:
        place = next((place for place in self.said if place[: len(key)] == key), None)
        return super()._below(key) if place is None else self.entry_origin(dotted(place))
