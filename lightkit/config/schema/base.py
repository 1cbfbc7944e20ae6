"""How the fields of the schema are written, and the nodes that several groups share.

Metadata of a field: `range`, the numbers that it may hold; `patterns`, where it takes patterns (of a mapping, its keys
are some), the labels that they may use; `user_only`, where only the user sets it; `door`, what its value is the name of
(see `lightkit.common.doors`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Optional, TypeVar, Union

from lightkit.common.argument_checks import Range

T = TypeVar("T")

section = partial(dataclass, init=False, repr=False, eq=False)  # values are in a `Node`, and methods take long to make

USER_ONLY: Mapping[str, bool] = MappingProxyType({"user_only": True})
"""Metadata of every field that lets code run which lightkit would refuse otherwise: only the user sets it. In the
file of a run that somebody else wrote such a field counts for nothing."""
SIZES = (
    "input_shape",
    "num_classes",
    "num_labels",
    "in_channels",
    "in_features",
    "vocab_size",
    "context_length",
    "ignore_index",
    "task",
    "cardinalities",
)
"""Arguments a model, a loss or a metric may take without naming them: they come from the data set."""
LAYER_LABELS = ("@linear", "@conv", "@embedding", "@attention", "@blocks")
"""Labels that stand for layers by their kind; among parameters they stand for those of these layers."""
LABELS = ("@head", "@body", "@norm", "@bias", "@tuned", *LAYER_LABELS)
"""Labels that stand for parameters."""
FREEZE = "to keep parameters as they are, freeze them instead of giving them a rate of 0"
"""What to do in place of a learning rate of 0."""


INTERNAL = {"internal": True}
"""Metadata of a field that lightkit writes itself: no page lists it, and no message suggests it."""


def former(now: str, allowed: Range | None = None) -> Any:
    """Make a field of the schema for an earlier name of a key, null by default, which still works: no page lists it.

    Args:
        now: The key that has taken its place, which gets the value.
        allowed: The numbers that it may be.
    """
    return field(default=None, metadata={**INTERNAL, "now": now, **({} if allowed is None else {"range": allowed})})


def number(
    default: T,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    instead_of_zero: str | None = None,
) -> T:
    """Make a field of the schema for a number, or for a number or null; beside its default stand those of `Range`."""
    made: Any = field(default=default, metadata={"range": Range(low, high, above, below, instead_of_zero)})
    return made


def named(door: str, default: str) -> Any:
    """Make a field of the schema for the name of a part: one of lightkit's, or one that a project or a package adds.

    Where its type has `Target` too, a node with a `_target_` may stand in the place of the name.
    """
    return field(default=default, metadata={"door": door})


@section
class Target:
    """A node that names a class or function to build; the other keys are its arguments."""

    _target_: str
    """Dotted path of a class or function: `package.module.Name`."""


_FREEZE_OR_ALLOW = f"{FREEZE}; if that is what you want, add allow_zero: true to the rule"


@section
class RuleConfig:
    """Settings for the parameters whose names match, or that a label stands for; they are a group of their own."""

    match: Union[str, list[str]] = field(metadata={"patterns": LABELS})
    """Pattern, label or list of these, of parameters or of modules with all parameters in them: a glob that fits a
    whole dotted name, or `re:` and a regular expression that is searched in it. Labels: @head, @body (all but the
    head), @norm, @bias, @linear, @conv, @embedding, @attention, @blocks."""
    name: Optional[str] = None
    """Name of the group in logs and tables; null takes the pattern."""
    lr: Optional[float] = number(None, above=0, instead_of_zero=_FREEZE_OR_ALLOW)
    """Learning rate of these parameters, in place of the optimizer's."""
    lr_scale: Optional[float] = number(None, above=0, instead_of_zero=_FREEZE_OR_ALLOW)
    """Factor on the optimizer's learning rate."""
    weight_decay: Optional[float] = number(None, low=0)
    """Weight decay of these parameters."""
    warmup_steps: Optional[int] = number(None, low=0)
    """Optimizer steps of linear warm-up for these parameters, counted from the step at which they first train; null: no
    separate warm-up."""
    allow_zero: bool = False
    """Accept a rate of 0: the parameters stay in the optimizer and do not change. Otherwise 0 is refused, because
    freezing the parameters saves time and memory."""
