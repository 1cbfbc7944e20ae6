"""`${hydra:runtime.choices.GROUP}`: the option chosen for a group, as a value or as part of an interpolation.

It is filled in when the configuration is composed, so that nothing of Hydra is needed to read it afterwards. Several
options are written with commas, `head,lora`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig

_CHOICE = re.compile(r"\$\{\s*hydra\s*:\s*runtime\.choices\.([\w/@]+)\s*\}")


def fill_choices(node: Any, choices: Mapping[str, str]) -> None:
    """Put the chosen options where the texts below a node ask for them; unknown groups are left as they are."""
    keys: Sequence[Any] = list(node) if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        child: Any = node._get_node(key)
        if isinstance(child, (DictConfig, ListConfig)) and not child._is_none() and not _is_reference(child):
            fill_choices(child, choices)
            continue
        text = child._value()
        filled = _filled(text, choices) if isinstance(text, str) else text
        if filled != text:
            node[key] = filled


def _is_reference(node: DictConfig | ListConfig) -> bool:
    return node._is_interpolation() or node._is_missing()


def _filled(text: str, choices: Mapping[str, str]) -> str:
    return _CHOICE.sub(lambda found: choices.get(found[1], found[0]).strip("[]"), text)
