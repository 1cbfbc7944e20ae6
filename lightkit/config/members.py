"""Unlike members of an ensemble: `ensemble.members=[{model: mlp}, {model: cnn, optim.lr: 0.01}]`.

Each entry is composed as if it had been typed behind the overrides of the run, and checked like any configuration. Then
it is written out by its values, so that what is saved needs no files of options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from lightkit.common.errors import UserError, UserErrors
from lightkit.config.check import complete
from lightkit.config.defaults import unknown_option
from lightkit.config.fields import valid_keys
from lightkit.config.judging import targets_in
from lightkit.config.loader import ConfigLoader
from lightkit.config.member_values import NAME, REMOVE, Tree, apply, at, difference, flat, label, limit_copies
from lightkit.config.merging import as_written
from lightkit.config.origins import Key, Sources, as_typed, command_line, dotted
from lightkit.config.policy import user_only_keys
from lightkit.config.signatures import read_known
from lightkit.config.sources import GROUP
from lightkit.config.tree import public

META = "ensemble.meta"
"""The meta-model of a stack, which differs from the run like a member."""
NO_ENSEMBLE: Mapping[str, str] = {"_target_": "lightkit.ensemble.methods.NoEnsemble"}
"""The group `ensemble` of a member."""
Variant = Callable[[Sequence[str]], "tuple[DictConfig, Sources]"]
"""Composes the configuration of the run with other options of groups (`["model=cnn"]`), and tells where it comes from.

It raises `UserErrors` where there is no such composition.
"""
Check = Callable[[DictConfig, Sources], Sequence[UserError]]
"""Finds everything that is wrong with a configuration."""


class MemberEntries:
    """The members of a run, taken out of its configuration, where an empty list is left.

    Args:
        cfg: The configuration of the run, not complete yet; its list of entries is emptied.
        sources: Where it comes from.
        loader: Knows the groups and options.
        variant: Composes it with other options.
    """

    def __init__(self, cfg: DictConfig, sources: Sources, loader: ConfigLoader, variant: Variant) -> None:
        self.cfg, self.sources, self.loader, self.variant = cfg, sources, loader, variant
        ensemble = cfg._get_node("ensemble")
        self.entries, self.errors = _take_entries(ensemble, sources)
        self.keys = [f"{KEY}.{index}" for index in range(len(self.entries))]
        meta = _take_meta(ensemble)
        if meta:
            self.entries.append(meta)
            self.keys.append(META)
        self.composed: list[DictConfig] = []

    def check(self, check: Check, known: Sequence[UserError]) -> list[UserError]:
        """Compose and check all members.

        Args:
            check: Finds everything that is wrong with a configuration.
            known: What is wrong with that of the run, and not told again.

        Returns:
            What is wrong with them.
        """
        run, errors = cast(Tree, as_written(self.cfg)), [*self.errors]
        if self.entries and self.keys[0] != META and run.get("ensemble", {}).get("_target_") == NO_ENSEMBLE["_target_"]:
            fix = "ensemble=voting, or another method"
            errors.append(UserError("one model has no members", key=KEY, fix=fix, family="ensemble"))
        told = {_identity(error) for error in known}
        variants: dict[tuple[str, ...], tuple[DictConfig, Sources]] = {(): (self.cfg, self.sources)}
        for key, entry in zip(self.keys, self.entries):
            wrong = [*wrong_entry(entry, self.loader)]
            if not wrong:
                try:
                    cfg, sources = self._compose(run, entry, key, variants)
                    self.composed.append(cfg)
                    errors += [
                        error_in_entry(error, key) for error in check(cfg, sources) if _identity(error) not in told
                    ]
                except UserErrors as found:
                    wrong = [*found.errors]
            origin = EntrySources(self.sources, key, ()).entry_origin
            errors += [error_in_entry(error, key, origin(error.key or "")) for error in wrong]
        return errors

    def _compose(
        self,
        run: Tree,
        entry: Mapping[str, Any],
        place: str,
        variants: dict[tuple[str, ...], tuple[DictConfig, Sources]],
    ) -> tuple[DictConfig, Sources]:
        """Compose one member; one that chooses no options needs no composition of its own.

        Raises:
            UserErrors: It cannot be composed.
        """
        options = chosen_options(entry, self.loader)
        choices = tuple(f"{group}={as_typed(names)}" for group, names in options.items())
        if choices not in variants:
            variants[choices] = self.variant(choices)
        cfg, sources = variants[choices]
        values = flat({name: value for name, value in entry.items() if name not in options})
        where = EntrySources(self.sources, place, tuple(values), sources)
        tree = cast(Tree, as_written(cfg))
        _share(tree, run, [*options])
        chosen = [option.rpartition("/")[2] for names in options.values() for option in names]
        tree[NAME] = label(values, chosen) or run.get(NAME)
        try:
            apply(tree, values)
        except KeyError as lost:
            what, key = "there is nothing of that name to remove", f"{REMOVE}{lost.args[0]}"
            raise UserErrors([UserError(what, key=key, family="unknown-key")]) from None
        drop_inherited(tree, run, where.says)
        made = OmegaConf.create(tree)
        drop_left_over(made, where)
        return made, where

    def write(self, cfg: DictConfig) -> DictConfig:
        """Write the members into the configuration of the run by their values, and return it.

        Args:
            cfg: That configuration, complete and checked, as all members are.

        Raises:
            UserErrors: Members that would come out the same.
        """
        if not self.entries or self.keys[0] == META:
            limit_copies(cfg)
        if not self.composed:
            return cfg
        run, entries, values = _own(public(cfg)), list[Tree](), list[Tree]()
        for entry, member in zip(self.entries, self.composed):
            own = _own(public(complete(member)))
            values.append(difference(run | {NAME: None}, own | {NAME: None}))
            # What is said stays said, also where the run has the same value now: a seed, a rate.
            said = {".".join(place): at(own, place) for place in flat(entry) if not _is_around(place, values[-1])}
            kept = {key: value for key, value in said.items() if value is not None and not isinstance(value, dict)}
            named = {NAME: own[NAME]} if own[NAME] not in (None, cfg.get(NAME)) else {}
            entries.append(named | values[-1] | kept)
        if self.keys[-1] == META:
            with open_dict(cfg), read_write(cfg):
                cfg.ensemble.meta = {name: value for name, value in entries.pop().items() if name != NAME}
            values.pop()
        self._refuse_twins(values)
        with open_dict(cfg), read_write(cfg):
            cfg.ensemble.members = entries
        return cfg

    def _refuse_twins(self, values: Sequence[Tree]) -> None:
        """Refuse members that differ from the run in the same values: all of them, or two with one seed."""
        seeded = ["seed" in entry for entry in self.entries]
        if len(values) > 1 and not any(seeded) and all(one == values[0] for one in values):
            what, fix = "the members are all alike", f"ensemble.size={len(values)} trains as many with other seeds"
            origin = self.sources.find(KEY)
            raise UserErrors([UserError(what, key=KEY, origin=origin, fix=fix, family="contradiction")])
        for index, entry in enumerate(values):
            twin = values.index(entry)
            if twin != index and seeded[index] and seeded[twin]:
                what, fix = f"the same as member {twin}, seed included", "another seed; without one each gets its own"
                key, origin = f"{KEY}.{index}", self.sources.find(KEY)
                raise UserErrors([UserError(what, key=key, origin=origin, fix=fix, family="contradiction")])


def _take_entries(ensemble: Any, sources: Sources) -> tuple[list[Any], list[UserError]]:
    """Take the entries of the members out of the node of the ensemble, with what is wrong with the list."""
    if not isinstance(ensemble, DictConfig) or "members" not in ensemble:
        return [], []
    try:
        value = ensemble.members
    except OmegaConfBaseException:
        return [], []  # an interpolation that leads nowhere, which the check tells
    entries: Any = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    with open_dict(ensemble), read_write(ensemble):
        ensemble.members = []
    if isinstance(entries, list):
        return entries, []
    fix = f"'{KEY}=[{{model: mlp}}, {{model: cnn}}]', or [] for ensemble.size members that are alike"
    received = "null" if entries is None else entries
    facts: Any = {"expected": "a list with a mapping for each member", "received": received, "fix": fix}
    return [], [UserError("wrong type", key=KEY, origin=sources.find(KEY), **facts, family="wrong-value")]


def _take_meta(ensemble: Any) -> Any:
    """Take the values of the meta-model out of the node of the ensemble, as plain values."""
    if not isinstance(ensemble, DictConfig) or not ensemble.get("meta"):
        return None
    value = ensemble.meta
    with open_dict(ensemble), read_write(ensemble):
        ensemble.meta = {}
    return OmegaConf.to_container(value)


def _share(tree: Tree, run: Tree, options: Sequence[str]) -> None:
    """Give one member what all of them have from the run, and no ensemble of its own.

    Args:
        tree: The configuration of the member, composed with other options; changed in place.
        run: The configuration of the run.
        options: The groups of these options.

    Raises:
        UserErrors: One of them brought other data along.
    """
    changed = difference(run.get("data"), tree.get("data"), ("data",))
    if changed:
        key = GROUP if GROUP in options else next(iter(options))
        said = ", ".join(name for name in changed if not name.startswith(REMOVE))
        raise UserErrors([not_own(key, "data", f"{SHARED['data']}, and this option sets {said}")])
    for shared in SHARED:
        *way, last = shared.split(".")
        holder, value = at(tree, way), at(run, [*way, last])
        if isinstance(holder, dict):
            holder.pop(last, None)
            holder |= {} if value is None else {last: value}
    tree["ensemble"] = {**NO_ENSEMBLE}


def _identity(error: UserError) -> tuple[object, ...]:
    return (error.key, error.what, str(error.received))


def _own(tree: Tree) -> Tree:
    """Return what a member may have of its own, out of a whole configuration of plain values."""
    return {name: value for name, value in tree.items() if name not in SHARED}


def _is_around(place: Sequence[str], values: Mapping[str, Any]) -> bool:
    """Tell whether values by key hold what is at a place, or a node around it."""
    return any(".".join(place[:count]) in values for count in range(1, len(place) + 1))


def drop_left_over(cfg: DictConfig, sources: Sources) -> None:
    """Remove arguments that were written for another `_target_` in an option file, and that the new one does not take.

    What the user sets (on the command line, in an experiment, in the main file) stays, and is judged as it is; so does
    what the former target would not have taken either.

    Args:
        cfg: A composed configuration; changed in place.
        sources: Where its values come from.
    """
    for key, target in targets_in(as_written(cfg)):
        is_of_list = any(isinstance(part, int) for part in key)  # which is replaced as a whole
        former = None if is_of_list else sources.former_option((*key, "_target_"))
        taken = _argument_names(target["_target_"]) if former is not None else None
        if former is None or taken is None:
            continue
        node: Any = cfg
        for part in key:
            node = node._get_node(part)
        for name in _argument_names(former) or ():
            if name in target and name not in taken and sources.is_of_option((*key, name)):
                with open_dict(node):
                    del node[name]


def drop_inherited(tree: Any, former: Any, said: Callable[[Key], bool]) -> None:
    """Remove arguments that a node has from another configuration, and that its own `_target_` does not take.

    Args:
        tree: A configuration as plain values; changed in place.
        former: The configuration that it was made from.
        said: Tells whether a key was set for this configuration, which is judged as it is.
    """
    for name, before in former.items() if isinstance(tree, dict) and isinstance(former, dict) else ():
        node = tree.get(name)
        drop_inherited(node, before, lambda key, name=name: said((name, *key)))  # type: ignore[misc]
        if not isinstance(node, dict) or not isinstance(before, dict):
            continue
        target = node.get("_target_")
        taken = _argument_names(target) if isinstance(target, str) and target != before.get("_target_") else None
        for argument in [argument for argument in node if argument in before and argument != "_target_"]:
            if taken is not None and argument not in taken and not said((name, argument)):
                del node[argument]


def _argument_names(target: str) -> list[str] | None:
    """Return the arguments of a target; None where it takes any, or its source does not tell."""
    signature = read_known(target)
    return None if signature is None or signature.open else signature.names()


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
    "cv": "it is the whole ensemble that is validated",
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
