"""Checks a whole composed configuration, before torch or any of its targets is imported."""

from __future__ import annotations

import copy
import dataclasses
import re
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, cast

from omegaconf import DictConfig, OmegaConf

from lightkit.common import suggest
from lightkit.common.argument_checks import Range
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.names import split_named
from lightkit.common.suggest import nearest
from lightkit.common.text import look_alike
from lightkit.config.annotations import UNKNOWN, fits, in_words, type_hint
from lightkit.config.arguments import check_arguments
from lightkit.config.device_relations import DEVICE_RULES
from lightkit.config.direction import check_mode
from lightkit.config.doors import names, problems_of
from lightkit.config.fields import Field, class_in, default_of, defaults_of, field_types, is_required, meant_by
from lightkit.config.finetuning import FINETUNE_RULES, check_patterns
from lightkit.config.judging import violations
from lightkit.config.member_values import apply, cut_down, flat
from lightkit.config.merging import from_plain
from lightkit.config.missing import check_imports
from lightkit.config.named_files import check_finetune_files, check_named_files
from lightkit.config.origins import Key, Sources, dotted
from lightkit.config.policy import Trust
from lightkit.config.project import project_folders
from lightkit.config.relations import RULES
from lightkit.config.schema import Config
from lightkit.config.schema.base import Target
from lightkit.config.schema.learning import DataConfig
from lightkit.config.schema.sweeping import SweepConfig
from lightkit.config.tree import Node, Report, UnusableError, apply_rules, plain_tree, to_plain


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
    """Find everything that is wrong with a configuration: its targets, its types and ranges, then rules between keys.

    Args:
        cfg: The configuration without Hydra's node.
        sources: Where its values come from.
        trust: What it may build beside what its own `trust` names; None takes the project.
        hooks: `hydra.callbacks`.
        starting: It is for a run that has not begun, which needs the files that it names.

    Returns:
        The errors, in the order of the configuration.
    """
    report = Report(sources or Sources())
    report.starting = starting
    tree = plain_tree(cfg, report)
    trust = trust or Trust(roots=project_folders())
    report.trust = replace(trust, entries=(*trust.entries, *_trusted(tree.get("trust"), report)))
    for place, what, facts in violations({**tree, "hydra": {"callbacks": hooks}}, report.trust):
        report.add(place, what, **facts)
    checked = check_values(tree, report)
    _check_further_sets(tree.get("data"), report)
    report.family = "contradiction"
    apply_rules(RULES, checked, report)
    with suppress(UnusableError):
        check_mode(checked.metrics, checked.scheduler, tree.get("metrics"), report, starting=starting)
    report.family = "pattern"
    check_patterns(tree, report)
    report.family = "contradiction"
    apply_rules((*DEVICE_RULES, *FINETUNE_RULES), checked, report)
    report.family = None
    if starting:
        check_named_files(tree, report)
        check_imports(tree, report)
        with suppress(UnusableError):
            check_finetune_files(checked.finetune, report)
    return report.errors


def _trusted(value: Any, report: Report) -> list[str]:
    """Return the entries of `trust`, where it is a list of texts; one that can name nothing is reported."""
    listed = value if isinstance(value, list) else []
    for index, entry in enumerate(listed):
        if isinstance(entry, str) and not all(part.isidentifier() for part in entry.split(".")):
            facts = {"expected": "the dotted path of a package, module, class or function", "received": entry}
            report.add(("trust", index), "can't be trusted", **facts, family="target-not-trusted")
    return [entry for entry in listed if isinstance(entry, str)]


_TAKEN = "amp|extra|grad|holdout|input|left_out|lr|main|oof|outputs|speed|system|task|view|vitals"
"""Names that a further set cannot have: what a run logs or tells goes by them."""


def _check_further_sets(data: Any, report: Report) -> None:
    """Check each entry of `data.more` laid over the node `data`, where nothing else is wrong with that."""
    for name, entry in {} if report.has(("data",)) else data.get("more", {}).items():
        own, tree = Report(report.sources), {"data": copy.deepcopy(data)}
        own.trust = report.trust
        apply(tree, flat({"data": entry}))
        _Checker(own).node(tree["data"], DataConfig, ("data",))
        for error in own.errors:
            error.move("data", f"data.more.{name}")
            report.take(error)
        if split_named(name) or not re.fullmatch(rf"(?!({_TAKEN})$)\w[\w-]*", name, re.ASCII):
            expected = "letters, digits, - and _, and none of the names that runs use themselves, such as val and lr"
            report.add(("data", "more", name), "not a name for a further set", expected=expected, received=name)


def check_values(tree: dict[str, Any], report: Report) -> Config:
    """Check every value by itself, and return those without a problem, with the defaults of what is not given.

    Args:
        tree: A configuration as plain values.
        report: Gets what does not fit the schema and the signatures of targets.

    Returns:
        `Node`s in the form of the schema, for the rules between keys.
    """
    return cast(Config, _Checker(report).node(tree, Config, ()))


class _Checker:
    """Walks a configuration beside the schema, reports what does not fit, and fills in the defaults."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def node(self, tree: dict[str, Any], kind: type, key: Key) -> Node:
        """Check a node that a schema class describes, and return its usable values."""
        values = self.fields(tree, kind, key)
        if issubclass(kind, Target):
            check_arguments(tree, key, own={*values, "_target_"}, report=self.report)
            given = (name for name in tree if name not in values and not self.report.has((*key, name)))
            values |= {name: tree[name] for name in given}
        return Node(**{name: value for name, value in values.items() if value is not UNKNOWN})

    def fields(self, tree: dict[str, Any], kind: type, key: Key) -> dict[str, Any]:
        """Check what a node says of the fields of its class, and return their values, with defaults for the others."""
        types, values = field_types(kind), dict[str, Any]()
        fields = {field.name: field for field in dataclasses.fields(kind) if field.name != "_target_"}
        for name, value in tree.items():
            if name in fields:
                door = fields[name].metadata.get("door")
                if door and isinstance(value, str) and not fits(value, types[name]):
                    values[name] = self.own_part(value, door, (*key, name))
                else:
                    values[name] = self.value(value, types[name], (*key, name), _allowed(fields[name], tree))
            elif not issubclass(kind, Target):
                self.unknown(name, value, [*fields], key)
        for name, field in fields.items():
            if name not in tree:
                values[name] = self.default(field, types[name], (*key, name))
        return values

    def own_part(self, name: str, door: str, key: Key) -> Any:
        """Check a name that lightkit does not bring; return it where a project or package does and it may be used."""
        try:
            refused = [*problems_of(door, name, self.report.trust)]
            for _, what, facts in refused:
                self.report.add(key, what, **facts)
            return UNKNOWN if refused else self.value(name, Literal[tuple(names(door))], key, None)
        except UserError as error:
            self.report.take(error)
            return UNKNOWN

    def default(self, field: Field, kind: Any, key: Key) -> Any:
        """Return the default of a field that is not given; `UNKNOWN` where it has none, which is reported."""
        if is_required(field):
            self.report.add(key, "missing", expected=in_words(kind), fix=f"set {dotted(key)}", family="missing-value")
            return UNKNOWN
        return self.value(default_of(field), kind, key, None)

    def value(self, value: Any, kind: Any, key: Key, allowed: Range | None) -> Any:
        """Check any value, and return what is usable of it; `UNKNOWN` where nothing is."""
        inner, origin = class_in(kind) if isinstance(value, dict) else None, typing.get_origin(kind)
        if value is UNKNOWN:
            return UNKNOWN
        if inner is not None:
            return self.node(value, inner, key)
        if not (isinstance(value, origin) if origin in (list, dict) else fits(value, kind)):
            self.wrong_type(value, kind, key)
            return UNKNOWN
        if origin is list:
            of_item = typing.get_args(kind)[0]
            items = [self.value(item, of_item, (*key, index), allowed) for index, item in enumerate(value)]
            return _usable(items, of_item)
        if origin is dict:
            named = self.named(value, typing.get_args(kind)[1], key, allowed)
            items = _usable([*named.values()], typing.get_args(kind)[1])
            return items if items is UNKNOWN else dict(zip(named, items))
        return value if self.report.check_range(value, key, allowed) else UNKNOWN

    def named(self, node: dict[str, Any], kind: Any, key: Key, allowed: Range | None) -> dict[str, Any]:
        """Check a node whose keys are names of the user's. One without a `_target_` may have been meant for another."""
        others = [name for name, item in node.items() if isinstance(item, dict) and "_target_" in item]
        found = {}
        for name, item in node.items():
            lost = isinstance(item, dict) and "_target_" not in item
            close = nearest(name, others, count=1) if lost else []
            is_value = class_in(kind) is not None and isinstance(item, (bool, int, float, str))
            meant = suggest.meaning(dotted((*key, name))) if is_value or (lost and class_in(kind)) else None
            if close or meant:
                fix = f"did you mean {dotted((*key, close[0]))}?" if close else meant
                self.report.add(
                    (*key, name), "unknown name", received=name, choices=others, fix=fix, family="unknown-key"
                )
            found[name] = UNKNOWN if close or meant else self.value(item, kind, (*key, name), allowed)
        return found

    def wrong_type(self, value: Any, kind: Any, key: Key) -> None:
        """Report a value that is not of its type."""
        group = key[0] if len(key) == 1 and isinstance(value, str) and dataclasses.is_dataclass(kind) else None
        fix = f"`lightkit config {group}` lists the options" if group else type_hint(value, kind)
        is_node = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        if len(key) > 1 and is_node and not isinstance(value, (dict, list)):
            names = [name for name in field_types(kind) if not name.startswith("_")]
            fix = f"its keys are {', '.join(dotted((*key, name)) for name in names)}" if names else fix
        if group and self.report.sources.on_command_line(key) is None:
            fix = f"`- override /{group}: {value}` in the `defaults` list chooses an option; {fix}"
        self.report.add_wrong_type(value, kind, key, fix=fix)

    def unknown(self, name: str, value: Any, valid: list[str], key: Key) -> None:
        """Report a key that the schema does not have, with its value."""
        if name == "_target_":
            what = "unknown key: nothing is built from this node"
            self.report.add((*key, name), what, choices=sorted(valid), family="unknown-key")
            return
        odd, better = look_alike(name), meant_by(name, value, valid, key)
        fixes = [better] if better else []
        if not key and not better:
            fixes += [f"a value of your own goes below `extra`: extra.{name}=VALUE"]
        choices = sorted(item for item in valid if not item.startswith("_"))
        what = f"unknown key: {odd}, which it looks like" if odd else "unknown key"
        self.report.add(
            (*key, name), what, received=name, choices=choices, fix=" ".join(fixes) or None, family="unknown-key"
        )


def _allowed(field: Field, node: dict[str, Any]) -> Range | None:
    """Return the numbers that a field of a node may hold; any where the node takes a rate of 0 by `allow_zero`."""
    is_waived = field.name in ("lr", "lr_scale") and node[field.name] == 0 and node.get("allow_zero") is True
    return None if is_waived else field.metadata.get("range")


def _usable(items: list[Any], kind: Any) -> Any:
    """Return the values of a list or mapping; `UNKNOWN` where one is, but for nodes, of which each counts by itself."""
    if class_in(kind) is not None:
        return [Node() if item is UNKNOWN else item for item in items]
    return UNKNOWN if any(item is UNKNOWN for item in items) else items


def complete(cfg: DictConfig) -> DictConfig:
    """Write out every default of the schema in a configuration, cut it down where asked to, and make it read-only.

    How a sweep runs its jobs is left out, see `sweep_options`: it is no part of what a run is.
    """
    OmegaConf.set_readonly(cfg, False)
    OmegaConf.set_struct(cfg, False)
    _fill(cfg, Config)
    cfg.pop("sweep")
    cut_down(cfg)
    OmegaConf.set_struct(cfg, True)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def sweep_options(cfg: DictConfig) -> dict[str, Any]:
    """Return the section `sweep` of a checked configuration with its defaults, as plain values."""
    found: Any = OmegaConf.create(to_plain(cfg.get("sweep")) or {})
    _fill(found, SweepConfig)
    return cast("dict[str, Any]", to_plain(found))


def check_sweep(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check options of a sweep that were stored, and return the section `sweep` with its defaults.

    Args:
        options: Some of the section, as plain values.

    Raises:
        UserErrors: Everything that is wrong, in one report.
    """
    report = Report(Sources())
    report.trust = Trust(roots=project_folders())
    checked = _Checker(report).node(dict(options), SweepConfig, ("sweep",))
    apply_rules(RULES, cast(Config, Node(sweep=checked)), report)
    if report.errors:
        raise UserErrors(report.errors)
    return {
        name: {**value, **options.get(name, {})} if isinstance(value, dict) else options.get(name, value)
        for name, value in defaults_of(SweepConfig).items()
    }


def _fill(node: Any, kind: Any) -> None:
    """Write out the defaults of a node and of those below it, but for nodes that an interpolation gives."""
    if typing.get_origin(kind) in (list, dict) and OmegaConf.is_config(node):
        for place in range(len(node)) if OmegaConf.is_list(node) else node:
            _fill(node._get_node(place), typing.get_args(kind)[-1])
    if not OmegaConf.is_dict(node) or not dataclasses.is_dataclass(kind):
        return
    content = node.__dict__["_content"]
    for field in dataclasses.fields(kind):
        inner = content.get(field.name)
        if (inner is None or inner._is_missing()) and not is_required(field):
            inner = content[field.name] = from_plain(default_of(field), node, field.name)
        if inner is not None and not inner._is_interpolation():
            _fill(inner, field_types(cast(type, kind))[field.name])
