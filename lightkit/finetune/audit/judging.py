"""What is seen of a phase while it lasts, and what to make of it at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.modules import parent_of
from lightkit.common.shards import is_shard, reshard
from lightkit.common.shards import part as piece
from lightkit.finetune.audit.fingerprints import Fingerprints
from lightkit.finetune.audit.gradients import Gradients
from lightkit.finetune.audit.parts import Part, frozen_around, statistics
from lightkit.finetune.audit.peers import Alone, PeerGroup
from lightkit.finetune.audit.plan import PhaseTable, own_rate
from lightkit.finetune.audit.wording import rate, some
from lightkit.finetune.phases import Phase

EARLY = (2, 4, 8, 16, 32)
SURE = 3
"""Steps after which a group must have moved: what starts at zero holds back the gradients of others for one or two, and
the first steps of a warm-up may be too small for any bit to change."""


UNUSED = "if it is not meant to be used, freeze it: finetune.freeze"
HOLD = "finetune.dropout=off would hold these in eval mode"
_PLAIN = 32
"""How many times the resolution of a number a step must be to show: gradients may be clipped, and rates may fall."""


@dataclass
class PhaseRecord:
    """A phase under way, as it was when the watch began."""

    model: nn.Module
    """The network without wrappers."""
    phase: Phase
    """What is to train."""
    parts: list[Part]
    """The groups of the optimizer, and what has none."""
    began: int
    """Optimizer steps taken in the run."""
    skipped: int
    """Optimizer steps left out in the run."""
    idle: frozenset[str] = frozenset()
    """Names of the parts whose own rate is meant to be 0."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the groups of the optimizer were set to; see `options_of`."""
    expected: PhaseTable | None = None
    """What was planned for the phase."""
    told: set[str] = field(default_factory=set)
    """Lines that have been reported."""
    checks: list[int] = field(default_factory=lambda: list(EARLY))
    """Steps of the phase after which to look early."""
    gradient_scale: Callable[[], float] = lambda: 1.0
    """What losses are multiplied with."""
    witnesses: PeerGroup = field(default_factory=Alone)
    """The processes that look together."""

    def __post_init__(self) -> None:
        self.prints = Fingerprints(tensors(self.model))
        self.elements = {name: parameter.numel() for name, parameter in self.model.named_parameters()}
        self.gradients = Gradients({n: p for n, p in self.model.named_parameters() if p.requires_grad})
        norms = [path for part in self.parts for path in part.norms]
        self.still = {name for path in norms if path in self.phase.still for name in statistics(self.model, path)}
        self.rates = {part.name: 0.0 for part in self.parts}

    def see_rates(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Remember the highest rate of every part."""
        for part in self.parts:
            if part.index is not None and part.index < len(groups):
                self.rates[part.name] = max(self.rates[part.name], float(groups[part.index]["lr"]))

    def changed(self, *, resting: bool = False) -> set[str]:
        """Names of parameters and buffers that are other bits than when the watch began.

        Args:
            resting: Look only at what should not be.
        """
        frozen = {name for part in self.parts if not part.trains for name in part.names}
        now = {n: t for n, t in tensors(self.model).items() if not resting or n in frozen or n in self.still}
        found = self.prints.changed(Fingerprints(now))
        # What other processes have as a whole too, rank 0 overwrites with its own.
        return set(self.witnesses.unite(n for n in sorted(found) if self.witnesses.main or is_shard(now[n])))

    def read(self) -> None:
        """Bring what is known of the gradients up to date, in all processes."""
        seen, unite = self.gradients, self.witnesses.unite
        seen.read()
        seen.reached, seen.touched = set(unite(sorted(seen.reached))), set(unite(sorted(seen.touched)))
        seen.broken = bool(unite(["broken"] if seen.broken else []))

    def stirred(self, changed: Collection[str]) -> list[str]:
        """What should rest but moved, one line each with the names."""
        lines = []
        for part in self.parts:
            moved = [name for name in part.names if name in changed]
            if moved and not part.trains:
                lines.append(f"{part.name}: should rest but moved: {some(moved)}")
        drifted = [name for name in sorted(self.still) if name in changed]
        if drifted:
            lines.append(f"statistics of norm layers should rest but moved: {some(drifted)}")
        return lines

    def silent(self) -> list[str]:
        """What trains but had no gradient at all so far, by groups: as a whole, or some names of one."""
        lines = []
        for part in self.parts:
            filled = self._filled(part) if part.trains else []
            missing = [name for name in filled if name not in self.gradients.touched]
            if missing:
                whole = len(missing) == len(filled)
                lines.append(f"group {part.name}" if whole else f"{some(missing)} of group {part.name}")
        return lines

    def stepped(self, changed: Collection[str]) -> bool:
        """Whether a step was taken: none is where gradients are missing or not finite and so nothing moves."""
        moved = any(name in changed for part in self.parts if part.trains for name in part.names)
        return moved or bool(self.gradients.reached and not self.gradients.broken)

    def judged(self, part: Part, changed: Set[str], *, sure: bool) -> tuple[list[str], list[str]]:
        """Faults and notes about what should move in a part.

        Args:
            part: The part.
            changed: From `changed`.
            sure: Whether there were enough steps for every gradient to come.
        """
        faults, notes = list[str](), list[str]()
        running = self._running(part)
        if running and not any(self._counted(path, changed) for path in running):
            faults.append(f"{part.name}: statistics of its norm layers should go on but rest: {some(running)}")
        filled = self._filled(part)
        if not part.trains or not filled:
            return faults, notes
        quiet = [name for name in filled if name not in self.gradients.reached]
        told = faults if sure else notes
        if len(quiet) == len(filled):
            line = f"{part.name}: {self._why(part)}" + ("" if changed & set(filled) else ", and it did not move")
            (notes if self.gradients.broken else told).append(f"{line}: {some(filled)}")
        elif not changed & set(filled) and part.name not in self.idle:
            told.append(f"{part.name}: should move but did not, {self._stuck(part, filled)}: {some(filled)}")
        else:
            bad, fine = self._single(part, filled, changed)
            told += bad
            notes += fine
        return faults, notes

    def _single(self, part: Part, names: Sequence[str], changed: Collection[str]) -> tuple[list[str], list[str]]:
        """Faults and notes about single parameters of a part that moves as a whole."""
        seen, meant = self.gradients, part.name in self.idle
        missing = [name for name in names if name not in seen.touched]
        dull = [name for name in names if name in seen.touched and name not in seen.reached]
        stayed = [name for name in names if name in seen.reached and name not in changed and not meant]
        stuck = [name for name in stayed if self._must_move(name, self.rates[part.name])]
        slow = [name for name in stayed if name not in stuck]
        unreached = _line(f"{part.name}: no gradient reached", missing, f"; {UNUSED}")
        bad = _line(f"{part.name}: should move but did not, although gradients reached them:", stuck)
        fine = [
            *_line(f"{part.name}: only gradients of 0 reached", dull),
            *_line(f"{part.name}: did not move, as their steps were too small for their numbers:", slow),
        ]
        if seen.broken or meant:
            return bad, unreached + fine
        return unreached + bad, fine

    def dull(self) -> list[str]:
        """Names of what only gradients of 0 reached, where it is half of what trains, outside of groups that are so."""
        sizes, found = 0, list[str]()
        for part in self.parts:
            if part.trains and part.name not in self.idle:
                sizes += sum(self.elements[name] for name in part.names)
                names = [name for name in self._filled(part) if name not in self.gradients.reached]
                if len(names) < len(self._filled(part)):
                    found += [name for name in names if name in self.gradients.touched]
        return found if found and 2 * sum(self.elements[name] for name in found) >= sizes else []

    def drifting(self, changed: Collection[str]) -> list[str]:
        """Notes about other buffers that changed in frozen modules."""
        known = {name for part in self.parts for path in part.norms for name in statistics(self.model, path)}
        alive = {name for part in self.parts if part.trains for name in part.names}
        moved = [
            name
            for name, _ in self.model.named_buffers()
            if name in changed and name not in known and frozen_around(name, self.elements, alive)
        ]
        held = [name for name in moved if parent_of(name) in self.phase.quiet]
        free = [name for name in moved if name not in held]
        lines = [f"buffers of frozen modules changed: {some(free)}; {HOLD}"] if free else []
        return lines + ([f"buffers of frozen modules changed although in eval mode: {some(held)}"] if held else [])

    def record(self, part: Part, changed: Collection[str], step: int) -> dict[str, Any]:
        """What was seen of a part, as plain values."""
        expected = None if part.trains and (part.name in self.idle or not self._filled(part)) else part.trains
        return {
            "phase": self.phase.name,
            "group": part.name,
            "tensors": len(part.names),
            "parameters": sum(self.elements[name] for name in part.names),
            "should_move": expected,
            "moved": sum(name in changed for name in part.names),
            "gradients": sum(name in self.gradients.reached for name in part.names),
            "norms": len(part.norms),
            "norms_should_move": len(self._running(part)),
            "norms_moved": sum(self._counted(path, changed) for path in part.norms),
            "from_step": self.began,
            "to_step": step,
        }

    def _why(self, part: Part) -> str:
        some_came = self.gradients.touched & set(part.names)
        return "only gradients of 0 reached it" if some_came else "no gradient reached it"

    def _stuck(self, part: Part, names: Collection[str]) -> str:
        """Why parameters with gradients stay: steps below the resolution of their numbers, or nobody knows."""
        given, parameters = max(own_rate(part.group), float(part.group["lr"])), dict(self.model.named_parameters())
        size, kind = max((_largest(parameters[name]) for name in names), key=itemgetter(0))
        if given < torch.finfo(kind).eps * size:
            # Processes that hold other parts would each name another size.
            of_size = "of such a size" if any(map(is_shard, parameters.values())) else f"of {size:.2g}"
            numbers = f"{str(kind).removeprefix('torch.')} weights {of_size}"
            return f"as a learning rate of {rate(given)} is too small to change {numbers}; raise it"
        return "although gradients reached it"

    def _must_move(self, name: str, given: float) -> bool:
        """Whether a step along the gradient, as well as one of the size of the rate, would have changed a parameter."""
        size, kind = _largest(self.model.get_parameter(name))
        step = given * min(self.gradients.largest.get(name, 0.0) / self.gradient_scale(), 1.0)
        return step > _PLAIN * torch.finfo(kind).eps * size

    def _filled(self, part: Part) -> list[str]:
        """Names of its parameters that have elements."""
        return [name for name in part.names if self.elements[name]]

    def _running(self, part: Part) -> list[str]:
        """Paths of its norm layers whose statistics go on: some that look like norm layers never change theirs."""
        going = [path for path in part.norms if path not in self.phase.still]
        return [p for p in going if getattr(self.model.get_submodule(p), "num_batches_tracked", None) is not None]

    def _counted(self, path: str, changed: Collection[str]) -> bool:
        """Whether the statistics of a norm layer changed."""
        return any(name in changed for name in statistics(self.model, path))


def _line(what: str, names: Collection[str], more: str = "") -> list[str]:
    return [f"{what} {some(names)}{more}"] if names else []


def _largest(parameter: Tensor) -> tuple[float, torch.dtype]:
    """The largest absolute value in what this process holds of a parameter, and its type."""
    own = piece(parameter.detach())
    return (float(own.abs().max()) if own.numel() else 0.0), own.dtype


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, of a model of shards the shards."""
    reshard(model)
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
