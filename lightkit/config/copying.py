"""Copies of nodes of OmegaConf, some ten times as fast as `copy.deepcopy`, which copies each fact of a node anew."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeVar

from omegaconf import DictConfig, Node

Of = TypeVar("Of", bound=Node)


def copy_node(node: Of, parent: Node | None = None) -> Of:
    """Copy a node and all below it; as with `copy.deepcopy`, values themselves are shared.

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
    elif isinstance(content, Node):  # of a union
        facts["_content"] = copy_node(content, made)
    return made


def copy_only(cfg: DictConfig, *names: Any) -> DictConfig:
    """Copy some nodes of a configuration, with their keys as they are; the copy takes new keys."""
    made, nodes = DictConfig({}), cfg.__dict__["_content"]
    made.__dict__["_content"] = {name: copy_node(nodes[name], made) for name in names}
    return made
