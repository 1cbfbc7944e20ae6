"""What a plan says of each group of parameters in each phase, and where live objects differ from it."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.modules import has_statistics, inside, parent_of


@dataclass(frozen=True)
class GroupRow:
    """One group of the optimizer, or what has none, in one phase."""

    group: str
    """Name of the group; `never trained` for what has none."""
    names: tuple[str, ...] = field(repr=False)
    """Names of its parameters."""
    parameters: int
    """Number of elements in them."""
    frozen: bool
    """Whether they are frozen."""
    rate: float | None
    """The group's own learning rate, before any schedule; None without a group."""
    rates: tuple[float, ...] | None
    """Learning rate at each of the phase's `steps`; None where there is none, or it depends on values not known yet."""
    weight_decay: float | None
    """Weight decay; None without a group."""
    norm: str | None
    """Mode of its norm layers with running statistics: any of `train`, `stats` (statistics go on, weights are frozen)
    and `frozen`, joined by `+`; empty where there are none, None where it is not known."""
    rules: tuple[str, ...]
    """Configuration keys that put the parameters here."""
    state_bytes: int | None = None
    """What the optimizer keeps for them once they train; None where it is not known."""
    zero_from: int | None = None
    """The first of the phase's `steps` from which on the schedule keeps the rate at 0 until it ends; None for none."""

    @property
    def tensors(self) -> int:
        """Number of parameters as tensors."""
        return len(self.names)

    def differences(self, live: GroupRow, *, decay: bool) -> list[str]:
        """List where the row of live objects is not as planned here, but for the rates over time.

        Args:
            live: The row of the live objects.
            decay: Compare weight decays.
        """
        lines = []
        missing = [name for name in self.names if name not in set(live.names)]
        extra = [name for name in live.names if name not in set(self.names)]
        if missing:
            lines.append(f"without {format_names(missing)}")
        if extra:
            lines.append(f"also with {format_names(extra)}")
        compared = ["frozen", "parameters", "rate", *(["weight_decay"] if decay else [])]
        compared += [] if self.rate is None else ["rules"]
        for name in compared:
            expected, value = getattr(self, name), getattr(live, name)
            if expected != value:
                lines.append(f"{name.replace('_', ' ')} {value}, planned {expected}")
        if live.norm is not None and self.norm != live.norm:
            lines.append(f"norm layers {live.norm or 'none'}, planned {self.norm or 'none'}")
        return lines


@dataclass(frozen=True)
class PhaseTable:
    """The rows of one phase."""

    phase: str
    """When it begins: `epoch 3`."""
    steps: tuple[int, ...]
    """The optimizer steps whose rates are known: the first of the phase, then the first of each epoch in it."""
    rows: tuple[GroupRow, ...]
    """The groups in the order of the optimizer, then what has none."""
    state_bytes: int | None = None
    """What the optimizer keeps from this phase on, for everything that has trained until then."""

    @property
    def trainable(self) -> int:
        """Number of elements that train."""
        return sum(row.parameters for row in self.rows if not row.frozen)

    @property
    def parameters(self) -> int:
        """Number of elements in all."""
        return sum(row.parameters for row in self.rows)

    def knows_rates(self, step: int) -> bool:
        """Tell whether the rates of an optimizer step are known."""
        return step in self.steps and not any(row.rates is None for row in self.rows if row.rate is not None)

    def groups_without_rate(self) -> list[str]:
        """List the groups that the schedule keeps still in all of the phase, one line each."""
        always = "its learning rate is 0 in every step, by the schedule; if that is meant, freeze it: finetune.freeze"
        return [f"group {row.group}: {always}" for row in self.rows if row.rate and row.zero_from == self.steps[0]]

    def groups_that_stop(self) -> list[str]:
        """List the groups that the schedule keeps still from a later epoch of the phase on, one line each."""
        return [
            f"group {row.group}: its learning rate is 0 from step {row.zero_from} on, by the schedule"
            for row in self.rows
            if row.rate and row.zero_from is not None and row.zero_from > self.steps[0]
        ]

    def differences(self, live: PhaseTable, *, rate_scale: float | None = 1.0, decay: bool = True) -> list[str]:
        """List where live objects are not as planned here; see `live_table`.

        Args:
            live: The table of the live objects.
            rate_scale: What all rates are multiplied with besides the schedule; None leaves them out.
            decay: Compare weight decays.

        Returns:
            One line each, with the names.
        """
        planned, actual = ({row.group: row for row in table.rows} for table in (self, live))
        lines = [f"group {name} is not in the plan" for name in actual if name not in planned]
        lines += [f"group {name} of the plan is not there" for name in planned if name not in actual]
        for name, row in planned.items():
            if name in actual:
                differing = row.differences(actual[name], decay=decay)
                expected: dict[int, float] = {}
                if row.rates is not None and rate_scale is not None:
                    expected = {step: rate * rate_scale for step, rate in zip(self.steps, row.rates)}
                differing += [
                    f"learning rate {format_rate(rate)} at step {step}, planned {format_rate(expected[step])}"
                    for step, rate in zip(live.steps, actual[name].rates or ())
                    if step in expected and not math.isclose(rate, expected[step], rel_tol=1e-6)
                ]
                lines += [f"group {name}: {line}" for line in differing]
        return lines


_MAX_NAMES, _MAX_DIGITS = 5, 12


def format_names(names: Iterable[str], *, most: int = _MAX_NAMES) -> str:
    """Write the first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def format_line(what: str, names: Collection[str], more: str = "") -> list[str]:
    """Write a line about some names: `what a, b more`; none where there are no names."""
    return [f"{what} {format_names(names)}{more}"] if names else []


def format_rate(value: float) -> str:
    """Write a learning rate: `1e-3`, `0.05`, `2.5e-5`."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    if value == 0.0 or -2 <= int(exponent) <= 2:
        return f"{value:.3g}"
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def format_rates(values: Sequence[float]) -> str:
    """Write rates over time: first and last, and the highest between them where it is higher than both."""
    first, highest, last = values[0], max(values), values[-1]
    shown = [first, highest, last] if highest > max(first, last) else [first, last]
    texts = [format_rate(value) for value in shown]
    return " -> ".join(text for index, text in enumerate(texts) if index == 0 or text != texts[index - 1])


def format_percent(part: int, whole: int) -> str:
    """Write a share: `0.31 %`, `87 %`, `99.98 %`; `100 %` is all, and nothing less."""
    share = 100 * part / max(whole, 1)
    if share < 10:
        return f"{share:.2g} %"
    digits = 0
    while part < whole and digits < _MAX_DIGITS and round(share, digits) >= 100:
        digits += 1
    return f"{share:.{digits}f} %"


# Lengths of the dimensions of a stand-in: each tells its dimension where a state holds a row or a column only.
_LENGTHS = (2, 3, 5, 7, 11, 13, 17, 19)
_PLAIN = {"foreach": False, "fused": False, "capturable": False}
Shape = tuple[tuple[int, ...], int]


def state_sizes(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], *, step: Callable[[Optimizer], Any] = methodcaller("step")
) -> dict[str, int] | None:
    """Measure how many bytes of state an optimizer keeps for each parameter once it trains.

    Where it has none yet, a tiny parameter with as many dimensions takes one step in a copy of the optimizer.

    Args:
        optimizer: Nothing of it changes.
        parameters: Parameters in its groups, by name.
        step: Lets an optimizer take a step.

    Returns:
        Bytes by name; None where the optimizer cannot be measured in this way.
    """
    if kept := getattr(optimizer, "state_bytes", None):
        return {name: kept(parameter) for name, parameter in parameters.items()}
    base = getattr(optimizer, "base", optimizer)
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    known: dict[tuple[Any, ...], list[Shape]] = {}
    sizes = {}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter)
        if state:
            sizes[name] = sum(value.numel() * value.element_size() for value in _tensors(state))
            continue
        group = groups[id(parameter)]
        key = (id(group), parameter.ndim, parameter.dtype)
        try:
            shapes = known[key] if key in known else _measure(base, group, parameter, step)
        except Exception:  # an optimizer of anybody's, which may need what a stand-in has not
            return None
        known[key] = shapes
        sizes[name] = sum(
            size * math.prod(parameter.shape[dim] if dim >= 0 else -dim for dim in shape) for shape, size in shapes
        )
    return sizes


def _measure(
    optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor, step: Callable[[Optimizer], Any]
) -> list[Shape]:
    """Return shape and bytes per element of everything that an optimizer keeps for a stand-in.

    A shape holds the dimensions of the parameter by their place; a negative number is a length itself.
    """
    stand_in = nn.Parameter(torch.ones(_LENGTHS[: parameter.ndim], dtype=parameter.dtype))
    stand_in.grad = torch.ones_like(stand_in)
    optimizer_copy = object.__new__(type(optimizer))
    # Not by its constructor, whose arguments only its author knows; without hooks and patches, meant for real steps.
    optimizer_copy.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    optimizer_copy.__dict__.update({key: OrderedDict() for key in vars(optimizer) if key.endswith("_hooks")})
    plain = {key: value for key, value in _PLAIN.items() if key in group}
    optimizer_copy.state = defaultdict(dict)
    optimizer_copy.param_groups = [{**group, **plain, "lr": float(group.get("lr", 0.1)), "params": [stand_in]}]
    step(optimizer_copy)
    return [
        (tuple(_LENGTHS.index(n) if n in _LENGTHS else -n for n in value.shape), value.element_size())
        for value in _tensors(optimizer_copy.state[stand_in])
    ]


def _tensors(state: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]


NEVER_TRAINED = "never trained"
NO_GROUP = "no group"


@dataclass(frozen=True)
class ParameterGroup:
    """The parameters of one group of an optimizer that train, or those that are frozen."""

    name: str
    """Name of the group; other names for what has none, and for the frozen part of a group that trains."""
    names: tuple[str, ...]
    """First names of the parameters."""
    elements: int
    """Number of elements in them."""
    trains: bool
    """Whether they are to train."""
    group: Mapping[str, Any]
    """The group of the optimizer; empty for what has none."""
    index: int | None
    """Place of the group in the optimizer."""
    norms: tuple[str, ...] = ()
    """Paths of the norm layers with running statistics that belong here."""


_Place = tuple[int, bool]
"""Index of a group, and whether it is the frozen part of it."""


def split_by_group(
    model: nn.Module, groups: Sequence[Mapping[str, Any]], trainable: Collection[str]
) -> list[ParameterGroup]:
    """Split the parameters of a network by the optimizer's groups, in their order; what has no group comes last.

    Args:
        model: The network without wrappers.
        groups: The groups of its optimizer.
        trainable: First names of the parameters that train.
    """
    indices = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
    elements = {name: parameter.numel() for name, parameter in model.named_parameters()}
    places: dict[_Place, list[str]] = {}
    for name, parameter in model.named_parameters():
        places.setdefault((indices.get(id(parameter), len(groups)), name not in trainable), []).append(name)
    norms = _places_of_norms(model, {name: place for place, names in places.items() for name in names})
    parts = []
    for index, frozen in sorted(places):
        known, place = index < len(groups), (index, frozen)
        label = group_name(groups[index], index) if known else (NEVER_TRAINED if frozen else NO_GROUP)
        parts.append(
            ParameterGroup(
                name=f"{label} (frozen)" if frozen and (index, False) in places and known else label,
                names=tuple(places[place]),
                elements=sum(elements[name] for name in places[place]),
                trains=not frozen,
                group=groups[index] if known else {},
                index=index if known else None,
                norms=tuple(path for path, own in norms.items() if own == place),
            )
        )
    return parts


def group_name(group: Mapping[str, Any], index: int) -> str:
    """Return the name of an optimizer's group, or its place."""
    return str(group.get("name", f"group {index}"))


def base_rate(group: Mapping[str, Any]) -> float:
    """Return a group's own learning rate, before any schedule."""
    return float(group.get("initial_lr", group["lr"]))


def _places_of_norms(model: nn.Module, places: Mapping[str, _Place]) -> dict[str, _Place]:
    """Return where the parameters of each norm layer with statistics are.

    One without any is where the first parameter in the smallest part around it is.
    """
    owners = {}
    for path, module in model.named_modules():
        if not has_statistics(module):
            continue
        own = (f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
        place, part = next((places[name] for name in own if name in places), None), path
        while place is None:
            place = next((each for name, each in places.items() if inside(name, part)), None)
            if not part:
                break
            part = parent_of(part)
        if place is not None:
            owners[path] = place
    return owners
