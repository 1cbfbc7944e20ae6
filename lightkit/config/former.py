"""Short forms and earlier names of keys: what they are set to goes to the keys that are meant."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from omegaconf import DictConfig, ListConfig, open_dict

from lightkit.config.fields import defaults_of, marked_fields
from lightkit.config.origins import dotted
from lightkit.config.schema import Config, CvConfig


def move_former(cfg: Any) -> list[str]:
    """Put values under the names that their keys have now, and return a line about each of them; `cv=5` is `cv.folds`.

    A list goes behind the one that is there, and its rules keep the names of their groups. Where both names have a
    value, both stay as they are, and the check tells that they contradict each other.

    Args:
        cfg: A configuration, or plain values, which need not be complete or right; changed in place.
    """
    lines = []
    if type(cfg.get("cv")) is int or cfg.get("cv", {}) is None:
        with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
            cfg["cv"] = {**defaults_of(CvConfig), "folds": cfg["cv"]}
    for (group, name), field in marked_fields(Config, "now").items():
        holder, key = field.metadata["now"].split(".")
        node, other = (cfg.get(part) for part in (group, holder))
        given = node.get(name) if isinstance(node, (dict, DictConfig)) else None
        if given in (None, []) or not isinstance(other, (dict, DictConfig)):
            continue
        lines.append(f"{dotted((group, name))} is an earlier name: {dotted((holder, key))} does the same for any run")
        there = other.get(key)
        if isinstance(given, (list, ListConfig)):
            given = [*(there or ()), *map(_named, given)]
        elif there not in (None, given):
            continue
        with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
            other[key] = given
            node.pop(name)
    return lines


def _named(rule: Any) -> Any:
    """Give a rule the name that its group had when rules with labels stood in a list of their own."""
    match = rule.get("match") if isinstance(rule, (Mapping, DictConfig)) else None
    patterns = [match] if isinstance(match, str) else list(match or ())
    if not patterns or rule.get("name") or not all(isinstance(pattern, str) for pattern in patterns):
        return rule
    return {**rule, "name": "+".join(pattern.removeprefix("re:").lstrip("@") for pattern in patterns)}
