"""Copying and merging nodes of OmegaConf as it does itself, without the steps that take most of its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeVar

from omegaconf import AnyNode, DictConfig, Node, OmegaConf, flag_override
from omegaconf.basecontainer import _DEFAULT_MARKER_, BaseContainer

Of = TypeVar("Of", bound=Node)
_AS_IT_IS, _WITH_DEFAULTS = "no_deepcopy_set_nodes", "HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"


def copy_node(node: Of, parent: Node | None = None) -> Of:
    """Copy a node and all below it; as with `copy.deepcopy`, which copies each fact of a node, values are shared.

    Args:
        node: From any configuration.
        parent: What the copy lies in.
    """
    made = object.__new__(type(node))
    facts, metadata = made.__dict__, object.__new__(type(node._metadata))
    facts.update(node.__dict__)
    metadata.__dict__.update(node._metadata.__dict__)
    metadata.flags, metadata.resolver_cache = dict(metadata.flags or {}), defaultdict(dict)
    facts.update(_metadata=metadata, _parent=parent, _flags_cache=None)
    content: Any = facts.get("_content")
    if isinstance(content, dict):
        facts["_content"] = {key: copy_node(item, made) for key, item in content.items()}
    elif isinstance(content, list):
        facts["_content"] = [copy_node(item, made) for item in content]
    elif content is not None and isinstance(content, Node):  # of a union
        facts["_content"] = copy_node(content, made)
    return made


def as_written(node: Any) -> Any:
    """Return a node as `OmegaConf.to_container` does: dicts, lists and scalars, with nothing resolved."""
    facts = node.__dict__
    content = facts["_content"] if "_content" in facts else facts["_val"]
    if isinstance(content, dict):
        return {key: as_written(item) for key, item in content.items()}
    if isinstance(content, list):
        return [as_written(item) for item in content]
    return as_written(content) if "_content" in facts and isinstance(content, Node) else content


class _Quick(DictConfig):
    """Hands out what is plain, or a whole node, in a tenth of the time that OmegaConf takes to see that it is."""

    def _get_impl(self, key: Any, default_value: Any, validate_key: bool = True) -> Any:
        nodes: Any = self.__dict__["_content"]
        if type(nodes) is not dict or type(key) is not str or (key not in nodes and default_value is _DEFAULT_MARKER_):
            return super()._get_impl(key, default_value, validate_key)
        if key not in nodes:
            return default_value
        node, facts = nodes[key], nodes[key].__dict__
        held = facts["_content"] if "_content" in facts else facts["_val"]
        if isinstance(held, Node) or (isinstance(held, str) and ("${" in held or held == "???")):
            return super()._get_impl(key, default_value, validate_key)
        return node if isinstance(held, (dict, list)) else held


_PLAIN: Any = ({}, [], "", 0, 0.5, True, None)
_SAMPLES: Any = {type(one): OmegaConf.create([one])._get_node(0) for one in _PLAIN}
_SAMPLES[dict] = _Quick({})


def from_plain(value: Any, parent: Any = None, key: Any = None) -> Any:
    """Make the nodes that `OmegaConf.create` makes of plain values.

    Args:
        value: Of a file, or of the schema.
        parent: The node that they lie in.
        key: Their name or number there.

    Raises:
        LookupError, TypeError, OmegaConfBaseException: There are others among them, names that are no texts, or a
            reference that is not well formed.
    """
    if isinstance(value, str) and "${" in value:
        return AnyNode(value, key=key, parent=parent)  # which reads it
    made: Any = copy_node(_SAMPLES[type(value)], parent)
    made._metadata.key = key
    if isinstance(value, dict):
        value = {str.__str__(name): from_plain(item, made, name) for name, item in value.items()}
    elif isinstance(value, list):
        value = [from_plain(item, made, index) for index, item in enumerate(value)]
    made.__dict__["_content" if "_content" in made.__dict__ else "_val"] = value
    return made


def copy_only(cfg: DictConfig, *names: Any) -> DictConfig:
    """Copy some nodes of a configuration, with their keys as they are; the copy takes new keys."""
    made, nodes = DictConfig({}), cfg.__dict__["_content"]
    made.__dict__["_content"] = {name: copy_node(nodes[name], made) for name in names}
    return made


def copy_below(package: str | None, node: Any) -> Any:
    """Copy a configuration to below a key, or as it stands where there is none."""
    made = copy_node(node)
    if not package:
        return made
    cfg = OmegaConf.create(flags={_AS_IT_IS: True})
    OmegaConf.update(cfg, package, made, merge=False)
    cfg._set_flag(_AS_IT_IS, None)
    return cfg


def merge(configs: Iterable[Any]) -> DictConfig:
    """Merge configurations, whose nodes are taken over, the last one the strongest.

    Hydra goes through all nodes after each of them, to tell them where they are; here that is done once.
    """
    cfg = OmegaConf.create()
    with flag_override(cfg, _AS_IT_IS, True):
        for config in configs:
            BaseContainer._map_merge(cfg, config)
    cfg._re_parent()
    _strip_defaults(cfg)
    return cfg


def _strip_defaults(node: Any) -> None:
    """Take the defaults lists of Hydra's own settings away, from nodes that are marked for it."""
    if isinstance(node, DictConfig) and isinstance(content := node.__dict__["_content"], dict):
        if node._metadata.flags and node._metadata.flags.pop(_WITH_DEFAULTS, None):
            node._invalidate_flags_cache()
            content.pop("defaults", None)
        for child in content.values():
            _strip_defaults(child)
