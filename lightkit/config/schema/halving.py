"""Jobs of a sweep that pause at rungs, of which the best go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

from lightkit.config.schema.base import number


@dataclass
class HalvingConfig:
    """The jobs of a sweep pause at rungs, and only the best go on."""

    method: Optional[Literal["successive", "hyperband", "pasha"]] = None
    """Who goes on from a rung; null trains all jobs to their ends, unless `rungs` are given. `successive`: the best one
    in `eta`. `hyperband`: the same for groups of jobs that begin at later and later rungs, for values that are
    misleading early on. `pasha`: as `successive`, but once two rungs agree on the order of the jobs, the best one goes
    to its end at once."""
    rungs: Optional[list[int]] = None
    """Where the jobs pause, such as `[1, 3, 9]`; who goes on from the last of them trains to the end. Null takes
    `first`, and from each rung to the next `eta` times as far."""
    unit: Literal["epoch", "step"] = "epoch"
    """What rungs count: epochs or optimizer steps."""
    first: int = number(1, low=1)
    """The first rung, where `rungs` is null."""
    eta: int = number(3, low=2)
    """One in so many jobs goes on from a rung, rounded down, but at least one."""
