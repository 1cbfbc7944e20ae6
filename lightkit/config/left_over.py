"""Arguments that an option file gives to its own `_target_`, once something stronger has named another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from lightkit.config.origins import Key, Sources
from lightkit.config.signatures import TargetError, read


def drop_left_over(cfg: DictConfig, sources: Sources) -> None:
    """Remove arguments that were written for another `_target_` in an option file, and that the new one does not take.

    What the user sets (on the command line, in an experiment, in the main file) stays, and is judged as it is; so does
    what the former target would not have taken either.

    Args:
        cfg: A composed configuration; changed in place.
        sources: Where its values come from.
    """
    tree = OmegaConf.to_container(cfg, resolve=False)
    for key, node in _targets(tree, ()):
        former = sources.former_option((*key, "_target_"))
        taken = _names(node["_target_"]) if former is not None else None
        if former is None or taken is None:
            continue
        for name in _names(former) or ():
            if name in node and name not in taken and sources.is_of_option((*key, name)):
                _remove(cfg, key, name)


def _targets(node: Any, key: Key) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield every node that names a `_target_`, with its key."""
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield key, node
        for name, inner in node.items():
            yield from _targets(inner, (*key, name))


def _names(target: str) -> list[str] | None:
    """Return the arguments of a target; None where it takes any, or its source does not tell."""
    try:
        signature = read(target)
    except TargetError:
        return None
    return None if signature is None or signature.open else signature.names()


def _remove(cfg: DictConfig, key: Key, name: str) -> None:
    node: Any = cfg
    for part in key:
        node = node._get_node(part)
    with open_dict(node):
        del node[name]
