"""Checks a whole composed configuration, before torch or any of its targets is imported."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import replace
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.suggest import nearest
from lightkit.common.text import look_alike, plain_letters
from lightkit.config.allow import check_targets, entries_in
from lightkit.config.annotations import choices_of, fits, in_words, shown_value, type_hint
from lightkit.config.arguments import check_arguments
from lightkit.config.devices import devices
from lightkit.config.direction import check_mode
from lightkit.config.finetuning import finetuning
from lightkit.config.limits import out_of_range, relations
from lightkit.config.origins import Key, Sources, dotted, parts_of
from lightkit.config.outside import outside
from lightkit.config.project import project_folders
from lightkit.config.reach import check_reach
from lightkit.config.schema import Config, Target
from lightkit.config.tree import UNKNOWN, plain_tree
from lightkit.config.trust import Trust


def check(cfg: DictConfig, sources: Sources | None = None, trust: Trust | None = None) -> None:
    """Check a composed configuration.

    Args:
        cfg: The configuration without Hydra's node.
        sources: Where its values come from, for the messages.
        trust: What it may build beside what its own `trust` names; None takes the project.

    Raises:
        UserErrors: Everything that is wrong, in one report.
    """
    errors = problems(cfg, sources, trust)
    if errors:
        raise UserErrors(errors)


def problems(
    cfg: DictConfig,
    sources: Sources | None = None,
    trust: Trust | None = None,
    *,
    hooks: Any = None,
    starting: bool = False,
) -> list[UserError]:
    """Everything that is wrong with a configuration, in its own order.

    Args:
        cfg: The configuration without Hydra's node.
        sources: Where its values come from.
        trust: What it may build beside what its own `trust` names; None takes the project.
        hooks: `hydra.callbacks`.
        starting: It is for a run that has not begun, which needs the files that it names.
    """
    report = Report(sources or Sources())
    tree = plain_tree(cfg, report)
    entries = entries_in(tree.get("trust"), report) if isinstance(tree, dict) else ()
    trust = trust or Trust(roots=project_folders())
    report.trust = replace(trust, entries=(*trust.entries, *entries))
    for part in (tree, {"hydra": {"callbacks": hooks}}):
        check_targets(part, report)
        check_reach(part, report)
    _Checker(report).mapping(tree, Config, ())
    if isinstance(tree, dict):
        relations(tree, report)
        check_mode(tree, report, starting=starting)
        devices(tree, report)
        finetuning(tree, report)
    if isinstance(tree, dict) and starting:
        outside(tree, report)
    return report.errors


class Report:
    """Collects problems and adds to each where it comes from.

    Args:
        sources: Origins of the values.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources, self.errors = sources, list[UserError]()
        self.trust = Trust()

    def add(self, key: Key, what: str, **facts: Any) -> None:
        """Note a problem with the value at `key`; `facts` are those of `UserError`."""
        self.errors.append(UserError(what, key=dotted(key), origin=self.sources.find(key), **facts))

    def take(self, error: UserError) -> None:
        """Note a problem that was found elsewhere, at the key that it names."""
        facts = {"expected": error.expected, "received": error.received, "choices": error.choices, "fix": error.fix}
        self.add(parts_of(error.key or ""), error.what, **facts)


@cache
def schema_fields(kind: type) -> dict[str, Any]:
    """Names and types of a schema class."""
    return typing.get_type_hints(kind)


@cache
def valid_keys() -> tuple[str, ...]:
    """All keys of the schema in full."""
    return tuple(_keys_of(Config, ""))


def _keys_of(kind: type, prefix: str) -> list[str]:
    found = []
    for name, inner in schema_fields(kind).items():
        found.append(prefix + name)
        if dataclasses.is_dataclass(inner):
            found += _keys_of(typing.cast(type, inner), f"{prefix}{name}.")
    return found


class _Checker:
    """Walks the tree beside the schema."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def mapping(self, node: Any, kind: type, key: Key) -> None:
        """A node that a schema class describes."""
        fields, is_target = schema_fields(kind), issubclass(kind, Target)
        for name, value in node.items():
            if name in fields and name != "_target_" and not _waived(node, name):
                self.value(value, fields[name], (*key, name))
            elif name not in fields and not is_target:
                self.unknown(value, name, [*fields], key)
        for field in dataclasses.fields(kind):
            if field.name not in node and field.name != "_target_" and _required(field):
                self.missing((*key, field.name), fields[field.name])
        if is_target:
            check_arguments(node, key, own=set(fields), report=self.report)

    def value(self, value: Any, kind: Any, key: Key) -> None:
        """Any value with a type of the schema."""
        if value is UNKNOWN:
            return
        kind = _class_in(kind, value)
        if not _shallow_fit(value, kind):
            self.wrong_type(value, kind, key)
        elif dataclasses.is_dataclass(kind):
            self.mapping(value, typing.cast(type, kind), key)
        elif typing.get_origin(kind) is list:
            for index, item in enumerate(value):
                self.value(item, typing.get_args(kind)[0], (*key, index))
        elif typing.get_origin(kind) is dict:
            self.items(value, typing.get_args(kind)[1], key)
        else:
            out_of_range(value, key, self.report)

    def items(self, node: dict[str, Any], kind: Any, key: Key) -> None:
        """A node whose keys are names of the user's. One without a `_target_` may have been meant for another."""
        others = [name for name, item in node.items() if isinstance(item, dict) and "_target_" in item]
        for name, item in node.items():
            lost = isinstance(item, dict) and "_target_" not in item
            close = nearest(name, others, count=1) if lost else []
            if close:
                fix = f"did you mean {dotted((*key, close[0]))}?"
                self.report.add((*key, name), "unknown name", received=name, choices=others, fix=fix)
            else:
                self.value(item, kind, (*key, name))

    def wrong_type(self, value: Any, kind: Any, key: Key) -> None:
        """A value that is not of its type."""
        choices = choices_of(kind)
        group = key[0] if len(key) == 1 and isinstance(value, str) and dataclasses.is_dataclass(kind) else None
        fix = f"`lightkit config {group}` lists the options" if group else type_hint(value, kind)
        if group and self.report.sources.on_command_line(key) is None:
            fix = f"`- override /{group}: {value}` in the `defaults` list chooses an option; {fix}"
        what = "not one of the choices" if choices else "wrong type"
        expected = None if choices else in_words(kind)
        self.report.add(key, what, expected=expected, received=shown_value(value), choices=choices, fix=fix)

    def missing(self, key: Key, kind: Any) -> None:
        """A key without a default that is nowhere set."""
        self.report.add(key, "missing", expected=in_words(kind), fix=f"set {dotted(key)}")

    def unknown(self, value: Any, name: str, valid: list[str], key: Key) -> None:
        """A key that the schema does not have."""
        full, odd = dotted((*key, name)), look_alike(name)
        near = nearest(plain_letters(name), valid, count=1)
        elsewhere = nearest(full, [other for other in valid_keys() if not full.startswith(f"{other}.")], count=1)
        better = dotted((*key, near[0])) if near else elsewhere[0] if elsewhere else None
        fixes = [f"did you mean {better}?"] if better else []
        if not key and not near:
            fixes += [f"a value of your own goes below `extra`: extra.{name}=VALUE"]
        choices = sorted(item for item in valid if not item.startswith("_"))
        what = f"unknown key: {odd}, which it looks like" if odd else "unknown key"
        self.report.add((*key, name), what, received=name, choices=choices, fix=" ".join(fixes) or None)


def _class_in(kind: Any, value: Any) -> Any:
    """The schema class inside `Optional[...]`, for a mapping."""
    parts = typing.get_args(kind) if isinstance(value, dict) else ()
    return next(
        (part for part in parts if dataclasses.is_dataclass(part) and typing.get_origin(kind) is typing.Union), kind
    )


def _waived(node: dict[str, Any], name: str) -> bool:
    """Whether a value that is out of range is asked for: a rate of 0 where `allow_zero` says so."""
    is_zero = type(node[name]) in (int, float) and node[name] == 0
    return is_zero and name in ("lr", "lr_scale") and node.get("allow_zero") is True


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _shallow_fit(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is list or origin is dict:
        return isinstance(value, origin)
    return fits(value, kind)


def complete(cfg: DictConfig) -> DictConfig:
    """The configuration with every default of the schema written out, read-only."""
    OmegaConf.set_readonly(cfg, False)
    OmegaConf.set_struct(cfg, False)
    _fill(cfg, Config)
    OmegaConf.set_struct(cfg, True)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def _fill(node: Any, kind: Any) -> None:
    if not OmegaConf.is_dict(node) or not dataclasses.is_dataclass(kind):
        return
    fields = schema_fields(typing.cast(type, kind))
    for field in dataclasses.fields(kind):
        if field.name not in node and not _required(field):
            node[field.name] = schema_default(field)
        inner = node._get_node(field.name)
        if inner is not None and not inner._is_interpolation():
            _fill_inner(inner, fields[field.name])


def _fill_inner(node: Any, kind: Any) -> None:
    if typing.get_origin(kind) is list and OmegaConf.is_list(node):
        for index in range(len(node)):
            _fill(node._get_node(index), typing.get_args(kind)[0])
    _fill(node, kind)


def schema_default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field of the schema, as plain values."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
