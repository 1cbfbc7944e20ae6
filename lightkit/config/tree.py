"""A configuration as plain Python values, with missing values and broken interpolations reported on the way."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import InterpolationResolutionError, InterpolationToMissingValueError, OmegaConfBaseException

from lightkit.common.suggest import nearest
from lightkit.config.origins import Key, dotted
from lightkit.config.report import Report, Silent


class _Unknown:
    """Stands for a value that was reported already, so that nothing more is said about it."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()
_OF_HYDRA = re.compile(r"\$\{\s*hydra\s*:")
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
    node = parent._get_node(name)
    assert isinstance(node, Node)
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
    if _OF_HYDRA.search(raw):  # which would be None, or of another composition, where Hydra has run in this process
        report.add(
            key,
            "the interpolation can't be resolved: of Hydra only the options of groups are known",
            received=raw,
            family="unreadable-configuration",
        )
        return UNKNOWN
    try:
        value = parent[name]
    except InterpolationToMissingValueError:
        report.add(key, "refers to a value that is missing", received=raw, family="unreadable-configuration")
        return UNKNOWN
    except (OmegaConfBaseException, InterpolationResolutionError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        report.add(
            key,
            f"the interpolation can't be resolved: {reason}",
            received=raw,
            fix=_hint(parent, raw) if "not found" in reason else None,
            family="unreadable-configuration",
        )
        return UNKNOWN
    if isinstance(value, (DictConfig, ListConfig)):
        return plain_tree(value, Silent(), key)
    return value


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
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
