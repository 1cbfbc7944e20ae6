"""What Hydra knows when it composes, put where a text asks for it: `${now:%Y}`, `${hydra:job.num}`, options of groups.

So nothing of Hydra, and no clock, is needed to read a configuration afterwards: a run that goes on has the values that
it began with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hydra.core.utils import setup_globals
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightkit.config.loader import set_hydra_config

_CHOICE = re.compile(r"\$\{\s*hydra\s*:\s*runtime\.choices\.([\w/@]+)\s*\}")
_HYDRA = re.compile(r"(?<!\\)\$\{\s*hydra\s*:\s*([\w.]+)\s*\}")
_NOW = re.compile(r"(?<!\\)\$\{\s*now\s*:([^${}]*)\}")


def fill_choices(node: Any, choices: Mapping[str, str]) -> None:
    """Put the option chosen for a group where a text asks for it: `${hydra:runtime.choices.GROUP}`.

    Several options are written with commas, `head,lora`; unknown groups are left as they are.

    Args:
        node: A composed configuration, or a node of it; changed in place.
        choices: Option by group.
    """
    _fill(node, lambda text: _CHOICE.sub(lambda found: choices.get(found[1], found[0]).strip("[]"), text))


def fill_values(node: Any, whole: DictConfig, time: datetime) -> tuple[str, ...]:
    """Put the time, and single values of Hydra's own settings, where a text asks for them.

    What is not known, such as the number of a job where there is one run only, is left as it is.

    Args:
        node: A configuration without Hydra's node; changed in place.
        whole: The same with Hydra's node.
        time: What `${now:…}` tells.

    Returns:
        The keys whose values tell the time.
    """

    def known(found: re.Match[str]) -> Any:
        try:
            value = select_value(whole, f"hydra.{found[1]}")
        except (OmegaConfBaseException, RecursionError):  # it may refer to the very text
            return found[0]
        return found[0] if value is None or OmegaConf.is_config(value) else value

    def filled(text: str) -> Any:
        text = _NOW.sub(lambda found: time.strftime(found[1].strip().strip("'\"")), text)
        alone = _HYDRA.fullmatch(text)  # keeps its type
        return known(alone) if alone else _HYDRA.sub(lambda found: str(known(found)), text)

    return tuple(str(place._get_full_key(key)) for place, key, text in _fill(node, filled) if _NOW.search(text))


def select_value(whole: DictConfig, key: str) -> Any:
    """Return a value of a composition with Hydra's node, which may refer to that node; None where it is missing."""
    setup_globals()  # which makes `${hydra:…}` and `${now:…}` known
    set_hydra_config(whole)
    return OmegaConf.select(whole, key)


def job_environment(whole: DictConfig | None) -> dict[str, str]:
    """Return the variables that a run has in its environment: `hydra.job.env_set`."""
    variables = {} if whole is None else select_value(whole, "hydra.job.env_set") or {}
    return {str(name): str(variables[name]) for name in variables}


def _fill(node: Any, filled: Callable[[str], Any]) -> list[tuple[Any, Any, str]]:
    """Replace the texts of a configuration in place, by values of any type; return node, key and text of each."""
    replaced = list[tuple[Any, Any, str]]()
    keys: Sequence[Any] = list(node) if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        child: Any = node._get_node(key)
        has_items = isinstance(child, (DictConfig, ListConfig)) and not child._is_none()
        if has_items and not child._is_interpolation() and not child._is_missing():
            replaced += _fill(child, filled)
            continue
        text = child._value()
        if isinstance(text, str):
            value = filled(text)
            if value != text:
                node[key] = value
                replaced.append((node, key, text))
    return replaced
