"""Building what a `_target_` node describes."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import OmegaConf

from lightkit.common.downloads import checked_downloads
from lightkit.common.errors import UserError
from lightkit.common.failures import DEBUG, is_dead_worker, user_frame
from lightkit.config.annotations import becomes_tensor, becomes_tuple, fits, item_type
from lightkit.config.arguments import HYDRA_KEYS, called_later
from lightkit.config.fields import class_at, field_types
from lightkit.config.judging import Violation, paths_in, verify, violations
from lightkit.config.loader import locate
from lightkit.config.missing import package_of
from lightkit.config.origins import Key, dotted, parts_of
from lightkit.config.policy import Trust
from lightkit.config.project import project_folders, searched
from lightkit.config.schema.base import SIZES
from lightkit.config.signatures import TargetError, called, read, read_known
from lightkit.config.tree import to_plain

_OF_CLASSES = {"num_classes", "num_labels"}
_KINDS = (
    ({"vocab_size", "context_length"}, "a data set of tokens, such as data=text"),
    ({"in_channels", "in_features"}, "a data set of numbers or images, such as data=digits"),
)
"""Sizes that only some data sets have, and which those are."""
_ADMITTED = set[str]()
"""Nodes whose targets were checked."""
_MOST_ADMITTED = 256


def instantiate(node: Any, *, key: str, expected: Any = None, **provided: Any) -> Any:
    """Build a `_target_` node and those inside it.

    Args:
        node: The node, from OmegaConf or a dict. What `trust` at the root of its configuration names may be built too.
        key: Where it stands in the configuration (`optim`, `metrics.val.accuracy`); keys of the node that lightkit
            reads itself, such as `optim.rules`, are left out.
        expected: Type the result must be an instance of; None takes anything. A class that is none is not even called.
        **provided: Arguments the configuration may leave out. A target gets those its signature names and the
            configuration does not; nested targets only get plain values (numbers, text, tuples of them).

    Raises:
        UserError: The target may not be built, can't be imported, fails, or gives something else than expected; an
            exception behind it is its `__cause__`. A `UserError` of the target itself is handed on as it is.
    """
    plain = to_plain(node)
    target = plain.get("_target_") if isinstance(plain, dict) else None
    if not isinstance(target, str):
        raise UserError("nothing to build: there is no `_target_`", key=key, received=plain, family="missing-value")
    entries = to_plain(node._get_root().get("trust")) if OmegaConf.is_config(node) else ()
    _admit_once(plain, key, tuple(entries or ()), expected)
    kind = class_at(parts_of(key))
    own = set(field_types(kind)) - {"_target_"} if kind is not None else set[str]()
    plain = called_later(plain, parts_of(key))
    config, is_partial = {name: value for name, value in plain.items() if name not in own}, plain.get("_partial_")
    if not is_partial:
        _need_sizes(config, key, provided)
    try:
        with checked_downloads():
            made = _call(config, (), provided)
    except _CallError as failed:
        raise _as_user_error(failed.error, target, dotted((*parts_of(key), *failed.place))) from failed.error
    if expected is not None and not is_partial and not isinstance(made, expected):
        raise _wrong_kind(target, key, expected)
    return made


class _CallError(Exception):
    """A target failed: the place of its node in the outermost one, and what it raised."""

    def __init__(self, place: Key, error: Exception) -> None:
        super().__init__(place)
        self.place, self.error = place, error


def _call(node: dict[str, Any], place: Key, provided: Mapping[str, Any], *, as_config: bool = False) -> Any:
    """Call the target of a node with the arguments in it, in which nodes are built first.

    Args:
        node: The node; of Hydra's keys `_args_`, `_partial_`, `_recursive_` and `_convert_` count.
        place: Where it is in the outermost node.
        provided: Arguments that the node may leave out; the plain ones are for those inside it, too.
        as_config: Lists and mappings are those of OmegaConf (`_convert_: none`).
    """
    as_config = node.get("_convert_", "none" if as_config else "all") == "none"
    inside = {
        name: list(item) if isinstance(item, tuple) else item for name, item in provided.items() if _is_plain(item)
    }
    values = {name: value for name, value in node.items() if name not in HYDRA_KEYS}

    def built(value: Any, key: Key) -> Any:
        return _build(value, (*place, *key), inside, as_config) if node.get("_recursive_") is not False else value

    given = _as_annotated(values, node["_target_"])
    positional = [built(value, ("_args_", index)) for index, value in enumerate(node.get("_args_") or ())]
    named = {name: built(value, (name,)) for name, value in given.items()}
    try:
        function, extra = locate(node["_target_"]), _missing_ones(node, provided)
        call = functools.partial(function, *positional, **named, **extra)
        return call if node.get("_partial_") else call()
    except Exception as error:
        raise _CallError(place, error) from error


def _build(value: Any, place: Key, provided: Mapping[str, Any], as_config: bool) -> Any:
    """Return a value with the nodes in it built; the arguments are those of `_call`."""
    if isinstance(value, dict) and isinstance(value.get("_target_"), str):
        return _call(value, place, provided, as_config=as_config)
    if not isinstance(value, (dict, list)):
        return value
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    built = {name: _build(item, (*place, name), provided, as_config) for name, item in pairs}
    made = built if isinstance(value, dict) else [*built.values()]
    return OmegaConf.create(made, flags={"allow_objects": True}) if as_config else made


def _admit_once(plain: dict[str, Any], key: str, entries: tuple[str, ...], expected: Any) -> None:
    """Check every target of a node, but for one that was checked: members of an ensemble have the same."""
    try:
        facts = json.dumps([plain, key, entries, str(expected), searched()])
    except (TypeError, ValueError, OSError):  # of a working directory that was removed
        facts = ""
    if facts not in _ADMITTED:
        _admit(plain, key, Trust(entries, project_folders()), expected)
        if len(_ADMITTED) >= _MOST_ADMITTED:
            _ADMITTED.clear()
        _ADMITTED.update([facts] if facts else [])


def _admit(plain: dict[str, Any], key: str, trust: Trust, expected: Any) -> None:
    """Check every target of a node: all of them by their source, before any is imported, then the objects."""
    for violation in violations(plain, trust, parts_of(key)):
        raise _refused(violation)
    found = [(place, node["_target_"]) for place, node in paths_in(plain, parts_of(key))]
    for place, target in found:  # what only an import could tell: `torch.ops` finds libraries by any name
        try:
            read(target)
        except TargetError as error:
            facts = {"key": _node_key(place), "received": target, "family": "target-not-found"}
            raise UserError(error.sentence(target), **facts) from error
    for place, target in found:
        built = _located(target, _node_key(place))
        refusal = verify(built, target, trust)
        if refusal is not None:
            raise _refused(refusal.at(place, trust))
        if (
            place == (*parts_of(key), "_target_")
            and isinstance(built, type)
            and expected
            and not issubclass(built, expected)
        ):
            raise _wrong_kind(target, key, expected)


def _node_key(place: Key) -> str:
    """Return the key of the node whose path stands at a place."""
    return dotted(place[:-1] if place[-1] == "_target_" else place)


def _refused(violation: Violation) -> UserError:
    place, what, facts = violation
    return UserError(what, key=dotted(place), **{"family": "target-not-trusted", **facts})


def _located(target: str, key: str) -> Any:
    try:
        return locate(target)
    except Exception as error:
        # Hydra asks whether the module is installed, whatever went wrong in it.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise _as_user_error(cause, target, key) from cause


def _wrong_kind(target: str, key: str, expected: Any) -> UserError:
    """Make the error for a target that gives something else, with the shortest path of the class that is expected.

    That is `torch.nn.Module`, though it is defined further down.
    """
    parts, name = expected.__module__.split("."), expected.__name__
    packages = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    home = next((place for place in packages if getattr(sys.modules.get(place), name, None) is expected), None)
    kind = f"{home or expected.__module__}.{name}"
    what = f"{target} cannot be used here: it is of another kind"
    return UserError(what, key=key, expected=kind, received=target, family="wrong-value")


def _missing_ones(config: dict[str, Any], provided: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `provided` that the target of a node takes and the node does not set."""
    if not provided:
        return {}
    accepted = _accepted(config["_target_"])
    by_position = set(list(accepted)[: len(config.get("_args_") or ())])
    wanted = [name for name in accepted if name in provided and name not in config and name not in by_position]
    # Others use the same names for something else: `mode` of CyclicLR is neither min nor max.
    listed = {name for name in wanted if typing.get_origin(accepted[name]) is typing.Literal}
    return {name: provided[name] for name in wanted if name not in listed or fits(provided[name], accepted[name])}


def _accepted(target: str) -> dict[str, Any]:
    """Return the arguments that a target takes, with their types; those of an object whose source does not tell."""
    signature = read_known(target)
    if signature is not None:
        return {item.name: item.annotation for item in signature.parameters}
    built = locate(target)
    try:
        parameters = inspect.signature(built).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {item.name: Any for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)}


def _need_sizes(config: dict[str, Any], key: str, provided: dict[str, Any]) -> None:
    """Refuse a target that cannot do without a size that the data set has not got."""
    sizes = {name: value for name, value in provided.items() if name in SIZES}
    signature = read(config["_target_"]) if sizes else None
    if signature is None:
        return
    listed = signature.parameters[len(config.get("_args_") or ()) :]
    needed = [item.name for item in listed if item.required and item.name in SIZES]
    missing = [name for name in needed if name not in config and name not in provided]
    if missing:
        what = f"{config['_target_']} needs {' and '.join(missing)}, which this data set does not provide"
        expected = next((kind for names, kind in _KINDS if names & set(missing)), None)
        received = ", ".join(f"{name}={value}" for name, value in sizes.items())
        fix = f"another {parts_of(key)[0]}, other data, or {key}.{missing[0]}=VALUE"
        if sizes.get("task") == "custom" and _OF_CLASSES & set(missing):
            fix = f"an attribute `classes` of the data set (names, or how many), or {key}.{missing[0]}=VALUE"
        raise UserError(what, key=key, expected=expected, received=received, fix=fix, family="wrong-arguments")


def _as_annotated(values: dict[str, Any], target: str) -> dict[str, Any]:
    """Return arguments as they are wanted: lists as tensors or tuples, 0.0 for YAML's 0, functions for their paths."""
    functions, signature = called({"_target_": target, **values}), read_known(target)
    handed = {name for node in functions.values() for name in node}
    made = {name: value for name, value in values.items() if name not in handed} | functions
    for parameter in signature.parameters if signature is not None else ():
        items, kind = made.get(parameter.name), item_type(parameter.annotation)
        if becomes_tensor(items, parameter.annotation):
            made[parameter.name] = {"_target_": "torch.tensor", "data": _floats(items)}
        elif becomes_tuple(items, parameter.annotation):
            made[parameter.name] = tuple(items or ())
        elif isinstance(items, list) and kind is not Any and fits(0.5, kind):
            made[parameter.name] = _floats(items)
    return made


def _floats(items: Any) -> Any:
    """Return lists with whole numbers as floats."""
    if isinstance(items, list):
        return [_floats(item) for item in items]
    return float(items) if type(items) is int else items


def _is_plain(value: Any) -> bool:
    """Tell whether a value can be given to nested targets: a number, text, or a tuple or list of them."""
    inside: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return all(item is None or isinstance(item, (int, float, str, bool)) for item in inside)


def _as_user_error(cause: Exception, target: str, key: str) -> UserError:
    if isinstance(cause, UserError):
        cause.put_under(key)
    if isinstance(cause, UserError) or is_dead_worker(cause):
        # Raised again as it is: `raise error from error` would make it its own cause.
        raise cause
    reason = str(cause).strip() or type(cause).__name__
    what = f"{target} could not be built: {type(cause).__name__}: {reason}"
    if isinstance(cause, ModuleNotFoundError) and (package := package_of(str(cause.name))):
        return UserError(what, key=key, fix=f"pip install {package}", family="package-missing")
    return UserError(what, key=key, origin=user_frame(cause), fix=DEBUG, family="wrong-arguments")
