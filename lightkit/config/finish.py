"""What is filled in and left out once Hydra has composed a configuration, before it is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from lightkit.config.allow import targets_in
from lightkit.config.origins import Sources
from lightkit.config.signatures import TargetError, read

_CHOICE = re.compile(r"\$\{\s*hydra\s*:\s*runtime\.choices\.([\w/@]+)\s*\}")


def fill_choices(node: Any, choices: Mapping[str, str]) -> None:
    """Put the option chosen for a group where a text asks for it: `${hydra:runtime.choices.GROUP}`.

    So nothing of Hydra is needed to read the configuration afterwards. Several options are written with commas,
    `head,lora`; unknown groups are left as they are.

    Args:
        node: A composed configuration, or a node of it; changed in place.
        choices: Option by group.
    """
    keys: Sequence[Any] = list(node) if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        child: Any = node._get_node(key)
        has_items = isinstance(child, (DictConfig, ListConfig)) and not child._is_none()
        if has_items and not child._is_interpolation() and not child._is_missing():
            fill_choices(child, choices)
            continue
        text = child._value()
        if isinstance(text, str):
            filled = _CHOICE.sub(lambda found: choices.get(found[1], found[0]).strip("[]"), text)
            if filled != text:
                node[key] = filled


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


def _argument_names(target: str) -> list[str] | None:
    """Return the arguments of a target; None where it takes any, or its source does not tell."""
    try:
        signature = read(target)
    except TargetError:
        return None
    return None if signature is None or signature.open else signature.names()
