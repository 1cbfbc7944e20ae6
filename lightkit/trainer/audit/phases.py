"""Proof that a phase of a fine-tuning did what it says: what should move did, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.modules import inside, is_shard, parent_of, reshard
from lightkit.common.text import counted
from lightkit.device.ranks import Ranks
from lightkit.finetune.phases import Phase
from lightkit.finetune.plan import Plan, live_table
from lightkit.finetune.tables import (
    ParameterGroup,
    PhaseTable,
    base_rate,
    format_line,
    format_names,
    format_rate,
    split_by_group,
)
from lightkit.trainer.audit.observations import Fingerprints, GradientListener
from lightkit.trainer.audit.rules import (
    ENOUGH_STEPS,
    STUCK,
    TOO_SMALL,
    UNREACHED,
    ZERO,
    announce,
    gradient_faults,
    group_options,
    largest_number,
    membership_faults,
    mode_faults,
    norm_statistics,
    option_faults,
    own_tensors,
    rate_faults,
    state_faults,
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


class FinetuneAudit:
    """Compares every phase of a run with what it was to do.

    Args:
        model: The network without wrappers.
        optimizer: Its optimizer.
        action: `fail` ends the run, `warn` reports and goes on, `none` looks at nothing.
        report: Takes lines for people: notes, and with `warn` what else would end the run.
        plan: What was planned; every phase is compared with its part of it.
        phases: All phases, to know what never trains.
        must_train: Names of parameters that some phase has to train: those of a new output layer.
        rate_scale: Gives what all rates are multiplied with besides the schedule; None where the plan's rates no longer
            hold.
        scheduled_rates: Gives the rates that the schedule has set, in the order of the groups; None where it cannot.
        scheduled_options: Options of the groups that the schedule changes; None for any.
        gradient_scale: Gives what losses are multiplied with.
        skipped: Gives the number of optimizer steps left out so far.
        on_phase_end: Called when a phase has ended and `table` knows it.
        ranks: The processes that look together, each at its part of the model; None where this one sees all of it.

    Raises:
        UserError: No phase trains something of `must_train`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        action: str = "fail",
        report: Callable[[str], None] = lambda line: None,
        plan: Plan | None = None,
        phases: Sequence[Phase] = (),
        must_train: Collection[str] = (),
        rate_scale: Callable[[], float | None] = lambda: 1.0,
        scheduled_rates: Callable[[], Sequence[float] | None] = lambda: None,
        scheduled_options: Collection[str] | None = (),
        gradient_scale: Callable[[], float] = lambda: 1.0,
        skipped: Callable[[], int] = lambda: 0,
        on_phase_end: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.optimizer, self.action, self.report = model, optimizer, action, report
        self.plan, self.rate_scale, self.skipped = plan, rate_scale, skipped
        self.scheduled_rates, self.scheduled_options = scheduled_rates, scheduled_options
        self.gradient_scale, self.on_phase_end, self.ranks = gradient_scale, on_phase_end, ranks or Ranks()
        self._table: list[dict[str, Any]] = []
        self._record: PhaseRecord | None = None
        self._last_begin: int | None = None
        self._from_start = False
        trained = frozenset[str]().union(*(phase.trainable for phase in phases))
        idle = [name for name in must_train if phases and name not in trained]
        found = [f"new, but no phase trains it: {format_names(idle)}"] if idle else []
        for table in plan.phases if plan else ():
            found += [f"{table.phase}: {line}" for line in table.groups_without_rate()]
        if found and action != "none":
            self._report_faults(found, "before the first step", set())

    def begin(self, phase: Phase, expected: PhaseTable | None = None, *, epoch: int, step: int) -> None:
        """Check that everything is as a phase says, and watch it from here on.

        A resumed run may begin in the middle of a phase.

        Args:
            phase: What is to train from here on; the network is in that state already.
            expected: What was planned for it; None takes it from the plan.
            epoch: Epoch under way, counted from 0.
            step: Optimizer steps taken in the run.

        Raises:
            UserError: The network, the optimizer or the moment is not as the phase says.
        """
        if self.action == "none":
            return
        self._close_record()
        if expected is None and self.plan is not None:
            expected = self.plan.find(phase.name)
        zero_rate = frozenset(row.group for row in (expected.rows if expected else ()) if row.rate == 0.0)
        faults = self._moment_faults(phase, expected, epoch=epoch, step=step)
        faults += state_faults(self.model, self.optimizer, phase, zero_rates=zero_rate)
        if expected is not None:
            live = live_table(self.model, self.optimizer, phase=phase.name, step=step)
            faults += expected.differences(live, rate_scale=self.rate_scale())
        reported: set[str] = set()
        self._report_faults(faults, f"{phase.name}, before step {step}", reported)
        planned = {"weight_decay"} if expected is not None else set()
        may_change = None if self.scheduled_options is None else {*self.scheduled_options, *planned}
        self._record = PhaseRecord(
            self.model,
            phase,
            split_by_group(self.model, self.optimizer.param_groups, phase.trainable),
            first_step=step,
            skipped=self.skipped(),
            zero_rate=zero_rate,
            expected=expected,
            options=group_options(self.optimizer.param_groups, without=may_change),
            reported=reported,
            gradient_scale=self.gradient_scale,
            ranks=self.ranks,
        )
        self._record.update_rates(self.optimizer.param_groups)
        self._report_notes(self._record, expected.groups_that_stop() if expected else [])

    def after_steps(self, step: int) -> None:
        """Look at the beginning of each epoch, and early in the first steps of a phase.

        May be called after each step: most calls do nothing.

        Args:
            step: Optimizer steps taken in the run.

        Raises:
            UserError: Something frozen moved, no gradient reaches what trains, or the optimizer is not as planned.
        """
        record = self._record
        if record is None:
            return
        if record.early_steps and step - record.first_step >= record.early_steps[0]:
            self._look_early(record, step)
        if record.expected is not None and step in record.expected.steps[1:]:
            record.update_rates(self.optimizer.param_groups)
            faults = [*self._network_faults(record.phase), *self._optimizer_faults(record, step)]
            self._report_faults(faults, f"{record.phase.name}, after step {step}", record.reported)

    def _look_early(self, record: PhaseRecord, step: int) -> None:
        """Look whether anything frozen moved and whether gradients come, before the phase ends."""
        first = record.early_steps.pop(0) == EARLY_STEPS[0]
        record.update_gradients()
        record.update_rates(self.optimizer.param_groups)
        faults = list[str]()
        if first:
            faults += record.frozen_faults(record.find_changed(only_frozen=True))
            faults += self._network_faults(record.phase)
        any_gradient = bool(record.gradients.seen)
        silent = record.groups_without_gradient() if any_gradient and self._steps_taken(record, step) > 0 else []
        lines = [f"no gradient has reached {what} in {counted(step - record.first_step, 'step')}" for what in silent]
        if not record.early_steps:
            faults += [f"{line}; {UNUSED}" for line in lines]
        elif first:
            self._report_notes(record, lines)
        if any_gradient and not silent:
            record.early_steps.clear()
        self._report_faults(faults, f"{record.phase.name}, after step {step}", record.reported)

    def end(self, step: int) -> None:
        """Judge the phase at its end, or at that of training.

        Args:
            step: Optimizer steps taken in the run.

        Raises:
            UserError: Something moved that is frozen, or did not that should move.
        """
        record = self._record
        if record is None:
            return
        record.update_gradients()
        record.update_rates(self.optimizer.param_groups)
        changed, notes = record.find_changed(), list[str]()
        faults = [
            *record.frozen_faults(changed),
            *self._network_faults(record.phase),
            *self._optimizer_faults(record, step),
        ]
        steps = self._steps_taken(record, step) if record.took_step(changed) else 0
        enough = steps >= ENOUGH_STEPS
        for group in record.groups:
            self._table.append(record.to_json(group, changed, step))
            bad, fine = record.judge_group(group, changed, enough=enough) if steps > 0 else ([], [])
            faults, notes = faults + bad, notes + fine
        zero = record.mostly_zero_gradients() if enough and not record.gradients.nonfinite else []
        if zero:
            faults.append(f"only gradients of 0 reached half of what trains or more: {format_names(zero)}")
        self._close_record()
        self.on_phase_end()
        self._report_notes(record, [*notes, *record.buffer_notes(changed)])
        self._report_faults(faults, f"{record.phase.name}, until step {step}", record.reported)

    def table(self) -> list[dict[str, Any]]:
        """Return what was found of every phase that ended, a row for each of its groups, as plain values."""
        return [dict(row) for row in self._table]

    def _moment_faults(self, phase: Phase, expected: PhaseTable | None, *, epoch: int, step: int) -> list[str]:
        """Return a line if a phase begins too early or too late.

        A resumed run, and one that went back, may begin in the middle of a phase.
        """
        if self._last_begin is None:
            self._from_start = step == 0
        going_on = self._last_begin is not None and step > self._last_begin
        self._last_begin = step
        when = f"begins with {phase.name}, but this is epoch {epoch}, step {step}"
        if not phase.has_begun(epoch, step):
            return [f"the phase {when}: too early"]
        late = epoch > phase.epoch if phase.epoch is not None else step > (phase.step or 0)
        if expected is not None and self._from_start:  # a resumed run may have epochs of other lengths
            late = late or step > expected.steps[0]
        return [f"the phase {when}: too late"] if going_on and late else []

    def _close_record(self) -> None:
        if self._record is not None:
            self._record.gradients.close()
        self._record = None

    def _steps_taken(self, record: PhaseRecord, step: int) -> int:
        """Return the number of optimizer steps of the phase that were not left out."""
        return step - record.first_step - (self.skipped() - record.skipped)

    def _network_faults(self, phase: Phase) -> list[str]:
        """List the faults of the network that may also come in the middle of a phase."""
        return [
            *gradient_faults(self.model, phase),
            *membership_faults(self.model, self.optimizer),
            *mode_faults(self.model, phase),
        ]

    def _optimizer_faults(self, record: PhaseRecord, step: int) -> list[str]:
        """List where the optimizer is no longer as planned, or as it was when the phase began."""
        groups, expected, scale = self.optimizer.param_groups, record.expected, self.rate_scale()
        faults = option_faults(record.options, groups)
        if expected is not None:
            live = live_table(self.model, self.optimizer, phase=record.phase.name, step=step)
            faults += expected.differences(live, rate_scale=scale, decay=self.scheduled_options is not None)
        # With the rates of a step that begins another phase its own beginning is concerned.
        begins_another = self.plan is not None and any(step == table.steps[0] for table in self.plan.phases)
        compared = expected is not None and scale is not None and expected.knows_rates(step)
        return faults if begins_another or compared else faults + rate_faults(self.scheduled_rates(), groups)

    def _report_notes(self, record: PhaseRecord, lines: Iterable[str]) -> None:
        """Report what does not end the run and has not been reported yet."""
        for line in lines:
            text = f"{record.phase.name}: {line}"
            if text not in record.reported:
                record.reported.add(text)
                self.report(f"audit: {text}")

    def _report_faults(self, faults: Iterable[str], when: str, reported: set[str]) -> None:
        """Raise or report what any process has found and has not been reported yet."""
        lines = [line for line in self.ranks.unite(faults) if line not in reported]
        ends = None
        if self.action == "fail":
            ends = "not what was to be trained", "finetune.audit", "finetune.audit=warn"
            if lines:
                self._close_record()
        reported.update(lines)
        announce(lines, when, who="audit", tell=self.report, ends=ends)
