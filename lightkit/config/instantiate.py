"""Building what a `_target_` node describes."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from typing import Any

from lightkit.common.errors import UserError
from lightkit.config.check import schema_fields
from lightkit.config.hydra_compat import build, built_from, locate
from lightkit.config.origins import parts_of
from lightkit.config.schema import Config
from lightkit.config.signatures import TargetError, read
from lightkit.config.tree import to_plain

_FULL_KEY = re.compile(r"^full_key: (\S+)", re.M)


def instantiate(node: Any, *, key: str, **provided: Any) -> Any:
    """Build a `_target_` node and those inside it.

    Args:
        node: The node, from OmegaConf or a dict.
        key: Where it stands in the configuration (`optim`, `metrics.val.accuracy`); keys of the node that lightkit
            reads itself, such as `optim.rules`, are left out.
        **provided: Arguments the configuration may leave out. A target gets those its signature names and the
            configuration does not; nested targets only get plain values (numbers, text, tuples of them).

    Raises:
        UserError: The target can't be imported or fails; the exception behind it is its `__cause__`. A `UserError` of
            the target itself is handed on as it is.
    """
    plain = to_plain(node)
    target = plain.get("_target_") if isinstance(plain, dict) else None
    if not isinstance(target, str):
        raise UserError("nothing to build: there is no `_target_`", key=key, received=plain)
    config = {name: value for name, value in plain.items() if name not in _own_keys(key)}
    keep_partial = config.pop("_partial_", False)
    try:
        extra = _missing_ones(config, provided)
        inner = {name: _with_provided(value, _plain_values(provided)) for name, value in config.items()}
        call = build({"_convert_": "all", **inner, "_partial_": True})
        return functools.partial(call, **extra) if keep_partial else call(**extra)
    except Exception as error:
        raise _as_user_error(error, target, key) from _cause(error)


def _own_keys(key: str) -> set[str]:
    """Keys of the node at `key` that belong to the schema and are no arguments of its target."""
    kind: Any = Config
    for part in parts_of(key):
        fields = schema_fields(kind) if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") else {}
        kind = fields.get(str(part))
    fields = schema_fields(kind) if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") else {}
    return set(fields) - {"_target_"}


def _missing_ones(config: dict[str, Any], provided: dict[str, Any]) -> dict[str, Any]:
    """Those of `provided` that the target of a node takes and the node does not set."""
    if not provided:
        return {}
    names = _accepted(config["_target_"])
    by_position = set(names[: len(config.get("_args_") or ())])
    wanted = [name for name in names if name in provided and name not in config and name not in by_position]
    return {name: provided[name] for name in wanted}


def _accepted(target: str) -> list[str]:
    try:
        signature = read(target)
    except TargetError:
        signature = None
    return signature.names() if signature is not None else _inspected(locate(target))


def _inspected(built: Any) -> list[str]:
    try:
        parameters = inspect.signature(built).parameters.values()
    except (TypeError, ValueError):
        return []
    return [item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]


def _plain_values(provided: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in provided.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    inside: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return all(item is None or isinstance(item, (int, float, str, bool)) for item in inside)


def _with_provided(value: Any, provided: dict[str, Any]) -> Any:
    """The same value, with the missing arguments of all nested targets filled in."""
    if isinstance(value, list):
        return [_with_provided(item, provided) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {name: _with_provided(item, provided) for name, item in value.items()}
    is_target = isinstance(value.get("_target_"), str)
    extra = _missing_ones(value, provided) if is_target else {}
    return {**inner, **{name: list(item) if isinstance(item, tuple) else item for name, item in extra.items()}}


def _cause(error: BaseException) -> BaseException:
    """What the target itself raised, below what Hydra wraps around it."""
    while built_from(error) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _as_user_error(error: Exception, target: str, key: str) -> UserError:
    cause, inner = _cause(error), []
    current: BaseException | None = error
    while current is not None and built_from(current):
        inner += _FULL_KEY.findall(str(current))
        current = current.__cause__
    if isinstance(cause, UserError):
        # Raised again as it is: `raise error from error` would make it its own cause.
        raise cause
    place = f"{key}.{inner[-1]}" if inner else key
    reason = str(cause).strip() or type(cause).__name__
    return UserError(f"{target} could not be built: {type(cause).__name__}: {reason}", key=place)
