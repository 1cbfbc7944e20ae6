"""Arguments that were written for another `_target_` than the one that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from lightkit.config.allow import targets_in
from lightkit.config.origins import Key, Sources
from lightkit.config.signatures import read_known


def drop_left_over(cfg: DictConfig, sources: Sources) -> None:
    """Remove arguments that were written for another `_target_` in an option file, and that the new one does not take.

    What the user sets (on the command line, in an experiment, in the main file) stays, and is judged as it is; so does
    what the former target would not have taken either.

    Args:
        cfg: A composed configuration; changed in place.
        sources: Where its values come from.
    """
    for key, target in targets_in(OmegaConf.to_container(cfg, resolve=False)):
        is_of_list = any(isinstance(part, int) for part in key)  # which is replaced as a whole
        former = None if is_of_list else sources.former_option((*key, "_target_"))
        taken = _argument_names(target["_target_"]) if former is not None else None
        if former is None or taken is None:
            continue
        node: Any = cfg
        for part in key:
            node = node._get_node(part)
        for name in _argument_names(former) or ():
            if name in target and name not in taken and sources.is_of_option((*key, name)):
                with open_dict(node):
                    del node[name]


def drop_inherited(tree: Any, former: Any, said: Callable[[Key], bool]) -> None:
    """Remove arguments that a node has from another configuration, and that its own `_target_` does not take.

    Args:
        tree: A configuration as plain values; changed in place.
        former: The configuration that it was made from.
        said: Tells whether a key was set for this configuration, which is judged as it is.
    """
    for name, before in former.items() if isinstance(tree, dict) and isinstance(former, dict) else ():
        node = tree.get(name)
        drop_inherited(node, before, lambda key, name=name: said((name, *key)))  # type: ignore[misc]
        if not isinstance(node, dict) or not isinstance(before, dict):
            continue
        target = node.get("_target_")
        taken = _argument_names(target) if isinstance(target, str) and target != before.get("_target_") else None
        for argument in [argument for argument in node if argument in before and argument != "_target_"]:
            if taken is not None and argument not in taken and not said((name, argument)):
                del node[argument]


def _argument_names(target: str) -> list[str] | None:
    """Return the arguments of a target; None where it takes any, or its source does not tell."""
    signature = read_known(target)
    return None if signature is None or signature.open else signature.names()
