"""A configuration as plain Python values, with missing values and broken interpolations reported on the way."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper
from omegaconf.errors import InterpolationResolutionError, InterpolationToMissingValueError, OmegaConfBaseException
from omegaconf.resolvers import oc

from lightkit.common.argument_checks import Range
from lightkit.common.errors import UserError
from lightkit.common.suggest import in_place_of, nearest
from lightkit.common.text import remember, without_secrets
from lightkit.config.annotations import UNKNOWN, choices_of, in_words, shown_value
from lightkit.config.merging import as_written
from lightkit.config.origins import Key, Sources, dotted, parts_of
from lightkit.config.schema import Config

if TYPE_CHECKING:
    from lightkit.config.policy import Trust

MARK = "# Format 2 of lightkit's configurations: a glob fits a whole name.\n"
"""A line of every configuration that is kept. Those of format 1 have none, and their globs fitted the ends of names."""
_WRITTEN: dict[str, str] = {}
"""Nodes as YAML, by what `repr` says of their plain values."""
_OF_HYDRA = re.compile(r"(?<!\\)\$\{\s*(hydra|now)\s*:\s*([\w.]*)")
_NOT_KNOWN = {
    "job.override_dirname": "hydra.job.config.override_dirname.exclude_keys=[KEY] for the key that this is typed for",
    "runtime.output_dir": "leave it out: what a run writes goes to its folder, which is chosen later",
    "job.num": "jobs have numbers: add -m",
    "job.id": "jobs have numbers: add -m",
}
_REFERENCE = re.compile(r"\$\{([\w.\[\]]+)\}")
_SECRET = re.compile(r"\$\{\s*(oc\.)?env\s*:")
_UNSET = re.compile(r"Environment variable '(\w+)' not found")
_DEPTH = 60  # only a container that contains itself by interpolation goes that deep


def plain_tree(cfg: DictConfig | ListConfig, report: Report, key: Key = ()) -> Any:
    """Turn a configuration into dicts, lists and scalars; `UNKNOWN` where there is no value."""
    if len(key) > _DEPTH:
        report.add(key[:5], "refers to itself", family="unreadable-configuration")
        return UNKNOWN
    if isinstance(cfg, ListConfig):
        return [_value(cfg, index, report, (*key, index)) for index in range(len(cfg))]
    return {str(name): _value(cfg, name, report, (*key, str(name))) for name in cfg}


def _value(parent: DictConfig | ListConfig, name: Any, report: Report, key: Key) -> Any:
    node: Any = parent._get_node(name)
    if node._is_missing():
        report.add(key, "a value is missing", received="???", fix=f"{dotted(key)}=VALUE", family="missing-value")
        return UNKNOWN
    if node._is_interpolation():
        return _resolved(parent, name, report, key)
    if node._is_none():
        return None
    return plain_tree(node, report, key) if isinstance(node, (DictConfig, ListConfig)) else node._value()


def _resolved(parent: DictConfig | ListConfig, name: Any, report: Report, key: Key) -> Any:
    raw = parent._get_node(name)._value()  # type: ignore[union-attr]
    unknown = _OF_HYDRA.search(raw)
    if unknown:  # which would be None, or of another composition, where Hydra has run in this process
        what = "the interpolation can't be resolved: Hydra has no such value here"
        fix = _NOT_KNOWN.get(unknown[2])
        report.add(key, what, received=raw, fix=fix, family="unreadable-configuration")
        return UNKNOWN
    try:
        value = parent[name]
    except InterpolationToMissingValueError:
        report.add(key, "refers to a value that is missing", received=raw, family="unreadable-configuration")
        return UNKNOWN
    except (OmegaConfBaseException, InterpolationResolutionError, RecursionError, ValueError) as error:
        circle = _circle(parent._get_root(), dotted(key))
        if circle is None:
            report.add(key, received=raw, **_reason(parent, raw, error), family="unreadable-configuration")
        elif not any(report.has(parts_of(one)) for one in circle):
            what = f"refers to itself: {' → '.join([*circle, circle[0]])}"
            fix = f"{circle[0]}=VALUE, or a value for another key of this circle"
            report.add(key, what, received=raw, fix=fix, family="unreadable-configuration")
        return UNKNOWN
    if isinstance(value, (DictConfig, ListConfig)):
        return plain_tree(value, Silent(), key)
    return value


def _reason(parent: DictConfig | ListConfig, raw: str, error: Exception) -> dict[str, Any]:
    """Say why an interpolation has no value, and what to do; never what the environment holds."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    unset = _UNSET.search(reason)
    if unset:
        what = f"the environment variable {unset[1]} is not set"
        fix = f"export {unset[1]}=VALUE, or a value for where it is not set: ${{oc.env:{unset[1]},VALUE}}"
        return {"what": what, "fix": fix}
    if _is_secret(parent, raw, 0):
        reason = "what the environment holds does not fit"
    hint = _hint(parent, raw) if "not found" in reason else None
    return {"what": f"the interpolation can't be resolved: {reason}", "fix": hint}


def _circle(root: Any, key: str) -> list[str] | None:
    """Follow what values refer to from a key on; the circle of keys that ends there, None where there is none."""
    way = [key]
    while True:
        holder = _referenced(root, way[-1])
        following = _REFERENCE.findall(holder[1]) if holder is not None and isinstance(holder[1], str) else []
        if not following or following[0].startswith("."):
            return None
        if following[0] in way:
            return way[way.index(following[0]) :]
        way.append(following[0])


def _hint(node: DictConfig | ListConfig, raw: str) -> str | None:
    wanted = raw.strip()[2:-1].strip()
    if ":" in wanted or wanted.startswith("."):
        return None
    root = node._get_root()
    close = nearest(wanted, [key for key in all_keys(root) if key != wanted], count=1)
    return f"did you mean ${{{close[0]}}}?" if close else None


def all_keys(node: Any, prefix: str = "") -> list[str]:
    """List the keys of a configuration in full, but for those that an interpolation leads to."""
    if not isinstance(node, DictConfig) or node._is_missing() or node._is_none() or node._is_interpolation():
        return []
    found = []
    for name, child in node.items_ex(resolve=False):
        found += [prefix + str(name), *all_keys(child, f"{prefix}{name!s}.")]
    return found


def to_plain(node: Any) -> Any:
    """Return a node with everything resolved, as dicts, lists and scalars; other values are handed back as they are."""
    if not OmegaConf.is_config(node):
        return node
    content = as_written(node)  # most refer to nothing by now
    return OmegaConf.to_container(node, resolve=True) if "${" in repr(content) else content


def public(cfg: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain values, resolved but for what comes from the environment, maybe secrets."""
    content: Any = as_written(cfg)
    return _public(cfg) if "${" in repr(content) else content


def _public(node: DictConfig | ListConfig) -> Any:
    keys: Sequence[Any] = list(node) if isinstance(node, DictConfig) else range(len(node))
    values = list[Any]()
    for key in keys:
        child: Any = node._get_node(key)
        is_hidden = child._is_interpolation() and _is_secret(node, child._value(), 0)
        value = child._value() if is_hidden else node[key]
        if isinstance(value, str) and child._is_interpolation() and not is_hidden:
            value = without_secrets(value)  # on ways that the search did not follow
        values.append(_public(value) if isinstance(value, (DictConfig, ListConfig)) else value)
    return dict(zip(keys, values)) if isinstance(node, DictConfig) else values


def _is_secret(parent: DictConfig | ListConfig, raw: Any, depth: int) -> bool:
    """Tell whether a value comes from the environment, by itself or through the values it refers to."""
    if not isinstance(raw, str) or depth > 20:
        return False
    if _SECRET.search(raw):
        return True
    for reference in _REFERENCE.findall(raw):
        holder = _referenced(parent, reference)
        if holder is not None and _is_secret(holder[0], holder[1], depth + 1):
            return True
    return False


def _referenced(parent: DictConfig | ListConfig, reference: str) -> tuple[DictConfig | ListConfig, Any] | None:
    node: Any = parent._get_root()
    if reference.startswith("."):
        node, reference = parent, reference[1:]
        while reference.startswith("."):
            node, reference = node._get_parent(), reference[1:]
    container: Any = node
    for part in parts_of(reference):
        if not isinstance(node, (DictConfig, ListConfig)):
            return None
        container, node = node, node._get_node(part)  # type: ignore[arg-type]
    return None if node is None or isinstance(node, (DictConfig, ListConfig)) else (container, node._value())


def as_yaml(content: dict[str, Any]) -> str:
    """Write what `public` gave as `to_yaml` does."""
    return MARK + ("".join(_node_as_yaml({name: node}) for name, node in content.items()) or "{}\n")


def _node_as_yaml(node: dict[str, Any]) -> str:
    """Write a node of the root: most are those of another run of this process, and to write one takes long."""
    if (known := _WRITTEN.get(mark := repr(node))) is not None:
        return known
    # As OmegaConf does, which would make a configuration of the values first.
    style: dict[str, Any] = {"default_flow_style": False, "allow_unicode": True, "sort_keys": False}
    text = str(yaml.dump(node, Dumper=_quick_dumper(), **style))
    # libyaml escapes more signs, and breaks lines with quotes elsewhere
    text = str(yaml.dump(node, Dumper=get_omega_conf_dumper(), **style)) if "\\" in text else text
    if len(_WRITTEN) >= 512:
        _WRITTEN.clear()
    _WRITTEN[mark] = text
    return text


@cache
def _quick_dumper() -> Any:
    """Return OmegaConf's dumper over libyaml, where there is one: it takes a third of the time."""
    plain = get_omega_conf_dumper()
    return type("Dumper", (yaml.CDumper,), dict(vars(plain))) if yaml.__with_libyaml__ else plain


def _read(key: str, *default: Any) -> Any:
    """Note a value that a configuration takes from the environment."""
    value = oc.env(key, *default)
    if key in os.environ:
        remember(key, os.environ[key])
    return value


OmegaConf.register_new_resolver("oc.env", _read, replace=True)

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)


class Report:
    """Collects problems and adds to each where it comes from.

    Args:
        sources: Origins of the values.
    """

    trust: Trust
    """What the configuration may build; set before its targets are judged."""
    starting = False
    """Whether it is for a run that has not begun."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self.errors = sources, list[UserError]()
        self.family: str | None = None
        """Family of the problems that name none; None goes by their keys."""
        self._keys = list[Key]()

    def add(self, key: Key, what: str, **facts: Any) -> None:
        """Note a problem with the value at `key`; `facts` are those of `UserError`."""
        self._keys.append(key)
        facts = {"family": self.family, **facts}
        self.errors.append(UserError(what, key=dotted(key), origin=self.sources.find(key), **facts))

    def take(self, error: UserError) -> None:
        """Note a problem that was found elsewhere, at the key that it names."""
        facts = {"expected": error.expected, "received": error.received, "choices": error.choices, "fix": error.fix}
        self.add(parts_of(error.key or ""), error.what, family=error.families[0].slug, **facts)

    def ask(self, key: Key, check: Callable[..., object], *values: object) -> bool:
        """Note what a check of a part refuses, which names an argument below `key`; tell whether it took the values."""
        try:
            check(*values)
        except UserError as error:
            error.put_under(dotted(key))
            self.take(error)
            return False
        return True

    def add_wrong_type(
        self, value: Any, kind: Any, key: Key, *, expected: str | None = None, fix: str | None = None
    ) -> None:
        """Note a value that is not of its type; `expected` says the type in other words."""
        choices = choices_of(kind)
        what = "not one of the choices" if choices else "wrong type"
        expected = None if choices else expected or in_words(kind)
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value) and (expected or "").startswith("a number"):
            fix = fix or f"{dotted(key)}={value.replace(',', '.')}, with a point"
        close = [f"{dotted(key)}={name}" for name in nearest(str(value), choices or (), count=1)]
        fix = fix or in_place_of(f"{dotted(key)}={value}") or next(iter(close), None)
        self.add(
            key, what, expected=expected, received=shown_value(value), choices=choices, fix=fix, family="wrong-value"
        )

    def has(self, key: Key) -> bool:
        """Tell whether a problem at a key or below it is noted."""
        return any(noted[: len(key)] == key for noted in self._keys)

    def check_range(self, value: Any, key: Key, allowed: Range | None) -> bool:
        """Note a number that is not among the allowed ones; True for any other value."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if allowed is None or not is_number or value in allowed:
            return True
        expected = f"a number {allowed}".rstrip() + ("" if math.isfinite(value) else ", and finite")
        fix = allowed.instead_of_zero if value == 0 else None
        if value < 0 and -value in allowed:
            fix = f"{dotted(key)}={-value}, without the sign"
        self.add(key, "out of range", expected=expected, received=value, fix=fix, family="wrong-value")
        return False


class Silent(Report):
    """Drops what it is told: what an interpolation leads to is reported where it stands itself."""

    def __init__(self) -> None:
        super().__init__(Sources())

    def add(self, key: Key, what: str, **facts: Any) -> None:
        """Do nothing."""


class UnusableError(AttributeError):
    """A value is missing or has a problem, which is reported: a rule that reads it has nothing to say."""


class Node(SimpleNamespace):
    """Values of a checked node of the configuration by name, with the defaults of what is not given.

    Values with a problem are left out. Of a node with a `_target_` the arguments are there as they are given.
    """

    def __getattr__(self, name: str) -> Any:
        raise UnusableError(name)


Rule = FunctionType
"""Reports values that are right on their own and wrong together. It names the sections that it looks at as arguments,
beside `report`, gets them as `Node`s, and is over as soon as it reads a value that has a problem by itself."""


def rules_in(module: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of a module: each of its public functions so far, in their order."""
    own = (item for item in module.values() if isinstance(item, FunctionType) and item.__module__ == module["__name__"])
    return tuple(rule for rule in own if not rule.__name__.startswith("_"))


def apply_rules(rules: Iterable[Rule], cfg: Config, report: Report) -> None:
    """Hand each rule the sections that it names; it is over where it reads something of one that is not there."""
    sections = {**vars(cfg), "report": report}
    for rule in rules:
        with suppress(UnusableError):
            rule(**{name: sections.get(name, Node()) for name in rule.__annotations__ if name != "return"})
