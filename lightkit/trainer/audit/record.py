"""What is seen of a phase while it lasts, and what to make of it at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.modules import inside, is_shard, parent_of, reshard
from lightkit.device.ranks import Ranks
from lightkit.finetune.phases import Phase
from lightkit.finetune.tables import ParameterGroup, PhaseTable, base_rate, format_line, format_names, format_rate
from lightkit.trainer.audit.observations import Fingerprints, GradientListener
from lightkit.trainer.audit.rules import (
    STUCK,
    TOO_SMALL,
    UNREACHED,
    ZERO,
    largest_number,
    norm_statistics,
    own_tensors,
    why_idle,
)

EARLY_STEPS = (2, 4, 8, 16, 32)
"""Steps of a phase after which to look before its end."""
UNUSED = "if it is not meant to be used, freeze it: finetune.freeze"
_TINY = torch.finfo(torch.float32).tiny
_DROPOUT_OFF = "finetune.dropout=off would hold these in eval mode"


@dataclass
class PhaseRecord:
    """A phase under way, as it was when it began and what was seen of it since."""

    model: nn.Module
    """The network without wrappers."""
    phase: Phase
    """What is to train."""
    groups: list[ParameterGroup]
    """The groups of the optimizer, and what has none."""
    first_step: int
    """Optimizer steps taken in the run when it began."""
    skipped: int
    """Optimizer steps left out in the run until then."""
    zero_rate: frozenset[str] = frozenset()
    """Names of the groups whose own rate is meant to be 0."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the groups of the optimizer were set to; see `group_options`."""
    expected: PhaseTable | None = None
    """What was planned for the phase."""
    reported: set[str] = field(default_factory=set)
    """Lines that have been reported."""
    early_steps: list[int] = field(default_factory=lambda: list(EARLY_STEPS))
    """Steps of the phase after which to look early, from now on."""
    gradient_scale: Callable[[], float] = lambda: 1.0
    """What losses are multiplied with."""
    ranks: Ranks = field(default_factory=Ranks)
    """The processes that look together."""

    def __post_init__(self) -> None:
        self.fingerprints = Fingerprints(_tensors(self.model))
        self.elements = {name: parameter.numel() for name, parameter in self.model.named_parameters()}
        self.gradients = GradientListener({n: p for n, p in self.model.named_parameters() if p.requires_grad})
        self.statistics = norm_statistics(self.model)
        """Path of each norm layer → names of its running statistics."""
        frozen_norms = [path for path in self.statistics if path in self.phase.frozen_norms]
        self.frozen_statistics = set[str]().union(*(self.statistics[path] for path in frozen_norms))
        self.highest_rates = {group.name: 0.0 for group in self.groups}

    def update_rates(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Remember the highest rate of every group."""
        for group in self.groups:
            if group.index is not None and group.index < len(groups):
                now = float(groups[group.index]["lr"])
                self.highest_rates[group.name] = max(self.highest_rates[group.name], now)

    def update_gradients(self) -> None:
        """Bring what is known of the gradients up to date, in all processes."""
        seen, unite = self.gradients, self.ranks.unite
        seen.read()
        seen.nonzero, seen.seen = set(unite(sorted(seen.nonzero))), set(unite(sorted(seen.seen)))
        seen.nonfinite = bool(unite(["nonfinite"] if seen.nonfinite else []))

    def find_changed(self, *, only_frozen: bool = False) -> set[str]:
        """Return the names of parameters and buffers that are other bits than when the phase began.

        Args:
            only_frozen: Look only at what should not be.
        """
        frozen = {name for group in self.groups if not group.trains for name in group.names} | self.frozen_statistics
        now = {name: t for name, t in _tensors(self.model).items() if not only_frozen or name in frozen}
        changed = self.fingerprints.changed(Fingerprints(own_tensors(now, self.ranks)))
        return set(self.ranks.unite(sorted(changed)))

    def frozen_faults(self, changed: Collection[str]) -> list[str]:
        """List what is frozen but moved, one line each with the names."""
        lines = []
        for group in self.groups:
            moved = [name for name in group.names if name in changed]
            if moved and not group.trains:
                lines.append(f"{group.name}: should rest but moved: {format_names(moved)}")
        moved = [name for name in sorted(self.frozen_statistics) if name in changed]
        if moved:
            lines.append(f"statistics of norm layers should rest but moved: {format_names(moved)}")
        return lines

    def groups_without_gradient(self) -> list[str]:
        """List what trains but had no gradient at all so far, by groups: as a whole, or some names of one."""
        lines = []
        for group in self.groups:
            names = self._with_elements(group) if group.trains else []
            missing = [name for name in names if name not in self.gradients.seen]
            if missing:
                whole = len(missing) == len(names)
                lines.append(f"group {group.name}" if whole else f"{format_names(missing)} of group {group.name}")
        return lines

    def took_step(self, changed: Collection[str]) -> bool:
        """Tell whether a step was taken: none is where gradients are missing or not finite and so nothing moves."""
        moved = any(name in changed for group in self.groups if group.trains for name in group.names)
        return moved or bool(self.gradients.nonzero and not self.gradients.nonfinite)

    def judge_group(self, group: ParameterGroup, changed: Set[str], *, enough: bool) -> tuple[list[str], list[str]]:
        """Return faults and notes about what should move in a group.

        Args:
            group: The group.
            changed: From `find_changed`.
            enough: Whether there were enough steps for every gradient to come.
        """
        faults, notes = list[str](), list[str]()
        running = self._running_norms(group)
        if running and changed.isdisjoint(name for path in running for name in self.statistics[path]):
            faults.append(f"{group.name}: statistics of its norm layers should go on but rest: {format_names(running)}")
        names = self._with_elements(group)
        if not group.trains or not names:
            return faults, notes
        report, moved = (faults if enough else notes), bool(changed & set(names))
        if not any(name in self.gradients.nonzero for name in names):
            came = self.gradients.seen & set(group.names)
            why = "only gradients of 0 reached it" if came else "no gradient reached it"
            line = f"{group.name}: {why}" + ("" if moved else ", and it did not move")
            (notes if self.gradients.nonfinite else report).append(f"{line}: {format_names(names)}")
        elif not moved and group.name not in self.zero_rate:
            why = self._why_unmoved(group, names)
            report.append(f"{group.name}: should move but did not, {why}: {format_names(names)}")
        else:
            bad, fine = self._judge_parameters(group, names, changed)
            report += bad
            notes += fine
        return faults, notes

    def _judge_parameters(
        self, group: ParameterGroup, names: Sequence[str], changed: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """Return faults and notes about single parameters of a group that moves as a whole."""
        seen, may_rest = self.gradients, group.name in self.zero_rate
        rate, scale, by_why = self.highest_rates[group.name], self.gradient_scale(), [list[str]() for _ in range(5)]
        for name in names:
            gradient = 0.0 if name in seen.seen else None
            if name in seen.nonzero:  # perhaps at another process's part
                gradient = seen.largest.get(name, _TINY) / scale
            if not gradient or not (name in changed or may_rest):
                by_why[why_idle(self.model.get_parameter(name), rate, gradient)].append(name)
        unreached = format_line(f"{group.name}: no gradient reached", by_why[UNREACHED], f"; {UNUSED}")
        bad = format_line(f"{group.name}: should move but did not, although gradients reached them:", by_why[STUCK])
        fine = [
            *format_line(f"{group.name}: only gradients of 0 reached", by_why[ZERO]),
            *format_line(
                f"{group.name}: did not move, as their steps were too small for their numbers:", by_why[TOO_SMALL]
            ),
        ]
        if seen.nonfinite or may_rest:
            return bad, unreached + fine
        return unreached + bad, fine

    def mostly_zero_gradients(self) -> list[str]:
        """Return the names of what only gradients of 0 reached, where that is half of what trains or more.

        Groups that are so as a whole are left out: they have a line of their own.
        """
        elements, found = 0, list[str]()
        for group in self.groups:
            if group.trains and group.name not in self.zero_rate:
                elements += group.elements
                names = self._with_elements(group)
                without = [name for name in names if name not in self.gradients.nonzero]
                if len(without) < len(names):
                    found += [name for name in without if name in self.gradients.seen]
        return found if found and 2 * sum(self.elements[name] for name in found) >= elements else []

    def buffer_notes(self, changed: Collection[str]) -> list[str]:
        """List other buffers that changed in frozen modules."""
        known = set[str]().union(*self.statistics.values())
        training = {name for group in self.groups if group.trains for name in group.names}
        moved = [
            name
            for name, _ in self.model.named_buffers()
            if name in changed and name not in known and _is_in_frozen_part(name, self.elements, training)
        ]
        in_eval = [name for name in moved if parent_of(name) in self.phase.eval_modules]
        others = [name for name in moved if name not in in_eval]
        return [
            *format_line("buffers of frozen modules changed:", others, f"; {_DROPOUT_OFF}"),
            *format_line("buffers of frozen modules changed although in eval mode:", in_eval),
        ]

    def to_json(self, group: ParameterGroup, changed: Collection[str], step: int) -> dict[str, Any]:
        """Return what was seen of a group until a step, as plain values."""
        may_rest = group.trains and (group.name in self.zero_rate or not self._with_elements(group))
        return {
            "phase": self.phase.name,
            "group": group.name,
            "tensors": len(group.names),
            "parameters": group.elements,
            "should_move": None if may_rest else group.trains,
            "moved": sum(name in changed for name in group.names),
            "gradients": sum(name in self.gradients.nonzero for name in group.names),
            "norms": len(group.norms),
            "norms_should_move": len(self._running_norms(group)),
            "norms_moved": sum(any(name in changed for name in self.statistics[path]) for path in group.norms),
            "from_step": self.first_step,
            "to_step": step,
        }

    def _why_unmoved(self, group: ParameterGroup, names: Collection[str]) -> str:
        """Say why parameters with gradients stay: steps below the resolution of their numbers, or nobody knows."""
        rate = max(base_rate(group.group), float(group.group["lr"]))
        parameters = dict(self.model.named_parameters())
        size, dtype = max((largest_number(parameters[name]) for name in names), key=itemgetter(0))
        if rate < torch.finfo(dtype).eps * size:
            # Processes that hold other parts would each name another size.
            of_size = "of such a size" if any(map(is_shard, parameters.values())) else f"of {size:.2g}"
            weights = f"{str(dtype).removeprefix('torch.')} weights {of_size}"
            return f"as a learning rate of {format_rate(rate)} is too small to change {weights}; raise it"
        return "although gradients reached it"

    def _with_elements(self, group: ParameterGroup) -> list[str]:
        """Return the names of its parameters that have elements."""
        return [name for name in group.names if self.elements[name]]

    def _running_norms(self, group: ParameterGroup) -> list[str]:
        """Return the paths of its norm layers whose statistics go on.

        Some that look like norm layers never change theirs: they count no batches.
        """
        going = [path for path in group.norms if path not in self.phase.frozen_norms]
        return [p for p in going if getattr(self.model.get_submodule(p), "num_batches_tracked", None) is not None]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, of a model of shards the shards."""
    reshard(model)
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _is_in_frozen_part(name: str, parameters: Collection[str], trained: Collection[str]) -> bool:
    """Tell whether a buffer is in a frozen part: in the smallest one with parameters, if none of these trains."""
    path = parent_of(name)
    while path and not any(inside(own, path) for own in parameters):
        path = parent_of(path)
    around = [own for own in parameters if inside(own, path)]
    return bool(around) and not any(own in trained for own in around)
