"""Nodes that several groups share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Optional, Union

GRANTS: Mapping[str, bool] = MappingProxyType({"grants": True})
"""Metadata of every field that grants trust: that lets code run which lightkit would refuse otherwise. In the file of a
run that somebody else wrote such a field counts for nothing."""
SIZES = (
    "input_shape",
    "num_classes",
    "num_labels",
    "in_channels",
    "in_features",
    "vocab_size",
    "context_length",
    "task",
)
"""Arguments a model, a loss or a metric may take without naming them: they come from the data set."""


@dataclass
class Target:
    """A node that names a class or function to build; the other keys are its arguments."""

    _target_: str
    """Dotted path of a class or function: `package.module.Name`."""


@dataclass
class RuleConfig:
    """Settings for the parameters whose names match."""

    match: Union[str, list[str]]
    """Pattern or list of patterns of parameters, or of modules with all parameters in them: a glob that fits a whole
    dotted name, or `re:` and a regular expression that is searched in it."""
    name: Optional[str] = None
    """Name of the group in logs and tables; null takes the pattern."""
    lr: Optional[float] = None
    """Learning rate of these parameters, in place of the optimizer's."""
    lr_scale: Optional[float] = None
    """Factor on the optimizer's learning rate."""
    weight_decay: Optional[float] = None
    """Weight decay of these parameters."""
    warmup_steps: Optional[int] = None
    """Optimizer steps of linear warm-up of these parameters, counted from the step at which they first train; null has
    none of their own."""
    allow_zero: bool = False
    """Take a rate of 0 as it is: the parameters keep their place in the optimizer and do not move. Refused otherwise,
    as freezing them saves time and memory."""
