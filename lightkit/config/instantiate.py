"""Building what a `_target_` node describes."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
import sys
import typing
from collections.abc import Iterable
from typing import Any

from omegaconf import OmegaConf

from lightkit.common.downloads import checked_downloads
from lightkit.common.errors import UserError
from lightkit.common.failures import DEBUG, is_dead_worker, user_frame
from lightkit.config.allow import judge, refused, targets_in, verify
from lightkit.config.annotations import becomes_tensor, fits, item_type
from lightkit.config.fields import class_at, field_types
from lightkit.config.hydra_compat import build, built_from, locate
from lightkit.config.origins import dotted, parts_of
from lightkit.config.project import project_folders
from lightkit.config.reach import overreaching
from lightkit.config.schema import SIZES
from lightkit.config.signatures import TargetError, read, read_known
from lightkit.config.tree import to_plain
from lightkit.config.trust import Trust

_OF_CLASSES = {"num_classes", "num_labels"}
_KINDS = (
    ({"vocab_size", "context_length"}, "a data set of tokens, such as data=text"),
    ({"in_channels", "in_features"}, "a data set of numbers or images, such as data=digits"),
)
"""Sizes that only some data sets have, and which those are."""
_PREPARED: dict[str, tuple[functools.partial[Any], dict[str, Any]]] = {}
"""What was checked and is ready to be called, by what tells its nodes apart: members of an ensemble have the same."""
_MOST_PREPARED = 256
_FULL_KEY = re.compile(r"^full_key: (\S+)", re.M)


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
    mark = _mark(plain, key, entries, expected, provided)
    if mark in _PREPARED:
        return _called(*_PREPARED[mark], target=target, key=key, expected=expected)
    _admit(plain, key, Trust(tuple(entries or ()), project_folders()), expected)
    kind = class_at(parts_of(key))
    own = set(field_types(kind)) - {"_target_"} if kind is not None else set[str]()
    config = {name: value for name, value in plain.items() if name not in own}
    keep_partial = config.pop("_partial_", False)
    if not keep_partial:
        _need_sizes(config, key, provided)
    try:
        extra = _missing_ones(config, provided)
        config = _as_annotated(config)
        call = _bound(config, provided)
    except Exception as error:
        raise _as_user_error(error, target, key) from _cause(error)
    if keep_partial:
        return functools.partial(call, **extra)
    if mark and not any(list(targets_in(value)) for value in config.values()):
        if len(_PREPARED) >= _MOST_PREPARED:
            _PREPARED.clear()
        _PREPARED[mark] = call, extra
    return _called(call, extra, target=target, key=key, expected=expected)


def _mark(plain: Any, key: str, entries: Any, expected: Any, provided: dict[str, Any]) -> str:
    """Return what is equal for two nodes that are built alike; empty where that cannot be told."""
    if not all(map(_is_plain, provided.values())):
        return ""
    facts = [plain, key, entries, str(expected), provided, [str(folder) for folder in project_folders()]]
    try:
        return json.dumps(facts, allow_nan=True)
    except (TypeError, ValueError):
        return ""


def _bound(config: dict[str, Any], provided: dict[str, Any]) -> functools.partial[Any]:
    """Build the nodes inside of a node, and return the call of its target with them and its other values."""
    plain_ones = {name: value for name, value in provided.items() if _is_plain(value)}
    inner = {name: _with_provided(value, plain_ones) for name, value in config.items()}
    with checked_downloads():
        call: functools.partial[Any] = build({"_convert_": "all", **inner, "_partial_": True})
    return call


def _called(call: functools.partial[Any], extra: dict[str, Any], *, target: str, key: str, expected: Any) -> Any:
    """Call a target with arguments of its own, so that none can change those of the next one."""
    try:
        with checked_downloads():
            made = call.func(*copy.deepcopy(call.args), **copy.deepcopy(call.keywords), **extra)
    except Exception as error:
        raise _as_user_error(error, target, key) from _cause(error)
    if expected is not None and not isinstance(made, expected):
        raise _wrong_kind(target, key, expected)
    return made


def _admit(plain: dict[str, Any], key: str, trust: Trust, expected: Any) -> None:
    """Check every target of a node: all of them by their source, before any is imported, then the objects."""
    nodes = list(targets_in(plain, parts_of(key)))
    found = [(place, node["_target_"]) for place, node in nodes]
    for place, target in found:
        refusal = judge(target, trust)
        if refusal is not None:
            raise refused(refusal, target, place, trust)
        _must_exist(target, dotted(place))
    for place, node in nodes:
        for argument, what, facts in overreaching(node, trust):
            raise UserError(what, key=dotted((*place, *argument)), **facts, family="target-not-trusted")
    for place, target in found:
        built = _located(target, dotted(place))
        refusal = verify(built, target, trust)
        if refusal is not None:
            raise refused(refusal, target, place, trust)
        if place == parts_of(key) and isinstance(built, type) and expected and not issubclass(built, expected):
            raise _wrong_kind(target, key, expected)


def _must_exist(target: str, key: str) -> None:
    """Refuse what only an import could tell to be there: `torch.ops` finds libraries by the names it is asked for."""
    try:
        read(target)
    except TargetError as error:
        raise UserError(error.sentence(target), key=key, received=target, family="target-not-found") from error


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
    return UserError(
        f"{target} cannot be used here: it is of another kind",
        key=key,
        expected=kind,
        received=target,
        family="wrong-value",
    )


def _missing_ones(config: dict[str, Any], provided: dict[str, Any]) -> dict[str, Any]:
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


def _as_annotated(value: Any) -> Any:
    """Return a node with lists as their arguments want them: a tensor of numbers, or 0.0 for YAML's 0 among floats."""
    if isinstance(value, list):
        return [_as_annotated(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {name: _as_annotated(item) for name, item in value.items()}
    signature = read_known(value["_target_"]) if isinstance(value.get("_target_"), str) else None
    for parameter in signature.parameters if signature is not None else ():
        items, kind = inner.get(parameter.name), item_type(parameter.annotation)
        if becomes_tensor(items, parameter.annotation):
            inner[parameter.name] = {"_target_": "torch.tensor", "data": _floats(items)}
        elif isinstance(items, list) and kind is not Any and fits(0.5, kind):
            inner[parameter.name] = _floats(items)
    return inner


def _floats(items: Any) -> Any:
    """Return lists with whole numbers as floats."""
    if isinstance(items, list):
        return [_floats(item) for item in items]
    return float(items) if type(items) is int else items


def _is_plain(value: Any) -> bool:
    """Tell whether a value can be given to nested targets: a number, text, or a tuple or list of them."""
    inside: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return all(item is None or isinstance(item, (int, float, str, bool)) for item in inside)


def _with_provided(value: Any, provided: dict[str, Any]) -> Any:
    """Return a value with the missing arguments of all nested targets filled in."""
    if isinstance(value, list):
        return [_with_provided(item, provided) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {name: _with_provided(item, provided) for name, item in value.items()}
    is_target = isinstance(value.get("_target_"), str)
    extra = _missing_ones(value, provided) if is_target else {}
    return {**inner, **{name: list(item) if isinstance(item, tuple) else item for name, item in extra.items()}}


def _cause(error: BaseException) -> BaseException:
    """Find what the target itself raised, below what Hydra wraps around it."""
    while built_from(error) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _as_user_error(error: Exception, target: str, key: str) -> UserError:
    cause, inner = _cause(error), []
    current: BaseException | None = error
    while current is not None and built_from(current):
        inner += _FULL_KEY.findall(str(current))
        current = current.__cause__
    place = f"{key}.{inner[-1]}" if inner else key
    if isinstance(cause, UserError):
        cause.put_under(place)
    if isinstance(cause, UserError) or is_dead_worker(cause):
        # Raised again as it is: `raise error from error` would make it its own cause.
        raise cause
    reason = str(cause).strip() or type(cause).__name__
    what = f"{target} could not be built: {type(cause).__name__}: {reason}"
    return UserError(what, key=place, origin=user_frame(cause), fix=DEBUG, family="wrong-arguments")
